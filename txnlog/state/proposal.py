"""An append that another writer may place, proposed by a writer that lost a race. Pure.

Its writer has judged it against all entries before ``entry``; the placer has folded all before its
own, and looks for changes between the two. Each answer is final: a proposal that cannot be placed
after a state cannot be placed after any later one. So it is placed at most once, and its writer
knows when nobody else will place it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec.structs import replace

from txnlog.limits import AnyNumber, Counter, CounterOrNone, Name, TimeMs
from txnlog.state.producers import ProducerRef
from txnlog.state.topic import TopicState
from txnlog.state.topic_entries import Append, Appends, Bundle
from txnlog.state.transaction import TransactionRef

MOST_BEHIND = 128
"""Once this many entries have overtaken a proposal, only its own writer places it."""
MOST_TOGETHER = 128
"""How many appends are placed together at most."""
MOST_SEGMENTS = 1024
"""How many segments are placed together at most; a larger append is not proposed."""
_EXPIRY_SHARE = 4
"""The fraction of producers' expiry after which a proposal is too old to be placed."""


class Proposal(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="proposal"):
    """An append as its writer would have put it as entry ``entry``.

    If it has a transaction, that may have ended before it is placed, as before a put that lands
    late: then it is on no list, and does not count. ``topic_time_ms`` is the topic's own time
    before that entry. ``begun_ms`` are the first and the last time at which an upload of its
    segments began, by its writer's clock; empty: not known. ``history`` is that of the storage that
    they were uploaded to: in another history they may be lost.
    """

    topic_id: Name
    entry: Counter
    topic_time_ms: TimeMs
    begun_ms: Annotated[tuple[TimeMs, ...], AnyNumber]
    append: Append
    history: CounterOrNone = -1

    @property
    def first_names(self) -> dict[int, str]:
        """By partition, the name of its first segment there."""
        return {place.partition: place.stored.name for place in reversed(self.append.segments)}

    def may_be_placed(self, state: TopicState) -> bool:
        """Whether it may be placed after this state, which is not older than ``entry``.

        Once false it stays false: topics do not come back, offsets and times only grow, and newer
        appends stay remembered for as long as the proposal is young enough.
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
        """Whether its producer has appended anything since: this, or an append in doubt."""
        owner = owner_of(self.append)
        known = state.producers.get(owner.producer_id) if owner else None
        return known is not None and known.entry >= self.entry

    def may_be_deleted(self, state: TopicState) -> bool:
        """Whether records placed since, perhaps these, may be deleted by now."""
        return any(
            place.base_offset < state.partitions[place.partition].log_start_offset
            for place in self.append.segments
        )

    def shows_all_since(self, state: TopicState) -> bool:
        """Whether a state is not older than the proposal, and has settled nothing since."""
        begun = state.settled.end if state.settled else 0
        return begun <= self.entry <= state.next_entry


def owner_of(append: Append) -> ProducerRef | TransactionRef | None:
    """The owner of an append's sequence numbers."""
    return append.transaction or append.producer


def is_proposable(state: TopicState, append: Append) -> bool:
    """Whether an append, built for this state, stays valid for as long as proposals may be placed.

    Not if its producer would be forgotten meanwhile, or if it is too large.
    """
    owner = owner_of(append)
    known = state.producers.get(owner.producer_id) if owner else None
    since_ms = state.append_time_ms - state.producer_id_expiration_ms // 2
    return len(append.segments) <= MOST_SEGMENTS // 2 and not (known and known.was_idle(since_ms))


def combine(
    state: TopicState, own: Append, proposals: Iterable[Proposal], *, nonce: str, at_ms: int
) -> tuple[Append | Appends | Bundle, list[Proposal]]:
    """The file after ``state`` that places an append and others' proposals, as far as they fit.

    It is one entry if none of them has a transaction; else each is an entry, with its own outcome.
    ``own``: built for this state; it comes first. ``proposals``: of others, or of ``own``.
    ``nonce``, ``at_ms``: of the file, if it has several appends. Returns it, and the proposals that
    it places.
    """
    ends = {place.partition: place.end_offset for place in own.segments}
    first_owner = owner_of(own)
    producer_ids = {first_owner.producer_id} if first_owner else set()
    taken_names = {place.stored.name for place in own.segments}
    count = len(own.segments)
    appends, taken = [own], []
    for proposal in proposals:
        append, owner = proposal.append, owner_of(proposal.append)
        # The same append may be proposed twice, and a copied producer has two.
        is_other = taken_names.isdisjoint(place.stored.name for place in append.segments)
        if (
            not is_other
            or (owner and owner.producer_id in producer_ids)
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
        if owner:
            producer_ids.add(owner.producer_id)
        taken_names |= {place.stored.name for place in append.segments}
        count += len(append.segments)
    if not taken:
        return own, []
    is_bundle = any(append.transaction for append in appends)
    return (Bundle if is_bundle else Appends)(nonce, at_ms, tuple(appends)), taken


def _moved(append: Append, ends: dict[int, int]) -> Append:
    """Move an append to these ends of partitions, which it advances."""
    segments = []
    for place in append.segments:
        moved = replace(place, base_offset=ends[place.partition])
        ends[place.partition] = moved.end_offset
        segments.append(moved)
    return replace(append, segments=tuple(segments))


DECODER: msgspec.json.Decoder[Proposal] = msgspec.json.Decoder(Proposal)
