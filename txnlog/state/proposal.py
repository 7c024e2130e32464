"""An append that somebody else may place: what a writer proposes that was not the first. Pure.

Its writer has judged it against all entries before ``entry``; whoever places it has folded all
before his own, and looks for what has come between the two. Each answer is for ever: a proposal
that cannot be placed behind a state cannot be placed behind any later one. So it is placed at most
once, and its writer knows when nobody else will place it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from txnlog.state.topic import Append, Appends, TopicState

MOST_BEHIND = 16
"""A proposal that so many entries have overtaken is not placed any more, but by its own writer."""
MOST_TOGETHER = 128
"""So many appends are placed together."""
MOST_SEGMENTS = 1024
"""So many segments are placed together; an append of more is not proposed."""
_EXPIRY_SHARE = 4
"""By this fraction of the time in which producers expire a proposal is too old to be placed."""


class Proposal(msgspec.Struct, frozen=True, tag_field="kind", tag="proposal"):
    """An append without a transaction, as its writer would have put it as entry ``entry``.

    ``topic_time_ms`` is the topic's own time before that entry. ``begun_ms`` are the first and the
    last time at which an upload of its segments began, by its writer's clock; empty: not known.
    """

    topic_id: str
    entry: int
    topic_time_ms: int
    begun_ms: tuple[int, ...]
    append: Append

    @property
    def first_names(self) -> dict[int, str]:
        """By partition, the name of its first segment there."""
        return {place.partition: place.name for place in reversed(self.append.segments)}

    def may_be_placed(self, state: TopicState) -> bool:
        """Whether anybody may place it behind this state, which is not older than ``entry``.

        Once it is false it stays so: topics do not come back, offsets and times only grow, and what
        was appended since stays appended for as long as the proposal is young enough.
        """
        return (
            state.topic_id == self.topic_id
            and state.next_entry - self.entry <= MOST_BEHIND
            and state.append_time_ms - self.topic_time_ms
            <= state.producer_id_expiration_ms // _EXPIRY_SHARE
            and not self.was_overtaken(state)
            and not self.may_be_deleted(state)
            and not state.placed_since(self.entry, self.first_names)
        )

    def was_overtaken(self, state: TopicState) -> bool:
        """Whether its producer has appended anything since: this, or what was in doubt."""
        producer = self.append.producer
        known = state.producers.get(producer.producer_id) if producer else None
        return known is not None and known.entry >= self.entry

    def may_be_deleted(self, state: TopicState) -> bool:
        """Whether what was placed since may be deleted by now, this among it."""
        return any(
            place.base_offset < state.partitions[place.partition].log_start_offset
            for place in self.append.segments
        )

    def shows_all_since(self, state: TopicState) -> bool:
        """Whether a state is not behind the proposal, and has left nothing to manifests since."""
        begun = state.settled.end if state.settled else 0
        return begun <= self.entry <= state.next_entry


def is_proposable(state: TopicState, append: Append) -> bool:
    """Whether an append, built for this state, will stand for as long as proposals may be placed.

    Not if its producer would be forgotten meanwhile, or if it is too large.
    """
    producer = append.producer
    known = state.producers.get(producer.producer_id) if producer else None
    since_ms = state.append_time_ms - state.producer_id_expiration_ms // 2
    return len(append.segments) <= MOST_SEGMENTS // 2 and not (known and known.was_idle(since_ms))


def combine(
    state: TopicState, own: Append, proposals: Iterable[Proposal], *, nonce: str, at_ms: int
) -> tuple[Append | Appends, list[Proposal]]:
    """The entry behind ``state`` that places an append and what others have proposed, as it fits.

    Args:
        state: what the entry follows.
        own: built for this state; it comes first.
        proposals: of others, or of ``own``.
        nonce: of the entry, if it is one of several appends.
        at_ms: likewise the time that it carries.

    Returns:
        The entry, and which of the proposals it places.
    """
    ends = {place.partition: place.end_offset for place in own.segments}
    producer_ids = {own.producer.producer_id} if own.producer else set()
    taken_names = {place.name for place in own.segments}
    count = len(own.segments)
    appends, taken = [own], []
    for proposal in proposals:
        append = proposal.append
        # The same append may be proposed twice, and a producer that was copied has two.
        is_other = taken_names.isdisjoint(place.name for place in append.segments)
        if (
            not is_other
            or (append.producer and append.producer.producer_id in producer_ids)
            or count + len(append.segments) > MOST_SEGMENTS
            or len(appends) == MOST_TOGETHER
            or not proposal.shows_all_since(state)
            or not proposal.may_be_placed(state)
        ):
            continue
        for place in append.segments:
            ends.setdefault(place.partition, state.partitions[place.partition].end_offset)
        appends.append(_moved(append, ends))
        taken.append(proposal)
        if append.producer:
            producer_ids.add(append.producer.producer_id)
        taken_names |= {place.name for place in append.segments}
        count += len(append.segments)
    if not taken:
        return own, []
    return Appends(nonce, at_ms, tuple(appends)), taken


def _moved(append: Append, ends: dict[int, int]) -> Append:
    """The same append behind these ends of partitions, which move on."""
    segments = []
    for place in append.segments:
        moved = replace(place, base_offset=ends[place.partition])
        ends[place.partition] = moved.end_offset
        segments.append(moved)
    return replace(append, segments=tuple(segments))


DECODER: msgspec.json.Decoder[Proposal] = msgspec.json.Decoder(Proposal)
