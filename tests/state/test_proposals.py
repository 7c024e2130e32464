"""Proposals, without any storage: what may be placed, behind what, and what it then means."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from txnlog.log.manifest_table import ManifestTable
from txnlog.state.manifest import Settled
from txnlog.state.producers import ProducerRef
from txnlog.state.proposal import (
    MOST_BEHIND,
    MOST_SEGMENTS,
    MOST_TOGETHER,
    Proposal,
    combine,
    is_proposable,
)
from txnlog.state.segment import SegmentEntry, StoredSegment
from txnlog.state.topic import TopicState
from txnlog.state.topic_entries import Append, Appends, Created, Deleted, TopicEntry, Trimmed

pytestmark = pytest.mark.rule("L14")

PARTITIONS = 3
HOUR_MS = 3_600_000


class Log:
    """A topic's state, and what may come next."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.names = 0
        self.now_ms = 1_700_000_000_000
        self.state = TopicState(producer_id_expiration_ms=24 * HOUR_MS)
        self.add(Created("n", self.now_ms, "id 0", PARTITIONS, {}))

    def add(self, entry: TopicEntry) -> None:
        self.state.apply(self.state.next_entry, entry)

    def append(self, producer: ProducerRef | None = None, segments: int = 2) -> Append:
        """One that fits behind the state."""
        ends = {n: part.end_offset for n, part in enumerate(self.state.partitions)}
        sequences = {n: self.state.next_sequence(producer, n) for n in ends} if producer else {}
        places = []
        for _ in range(segments):
            self.names += 1
            number, count = self.chance.randrange(PARTITIONS), self.chance.randint(1, 3)
            sequence = sequences.get(number, -1)
            name = f"segment-{self.names}"
            places.append(
                SegmentEntry(number, ends[number], StoredSegment(name, count, 9, 1, 1), sequence)
            )
            ends[number] += count
            if producer:
                sequences[number] += count
        return Append("n", self.now_ms, tuple(places), producer=producer)

    def propose(self, append: Append) -> Proposal:
        state = self.state
        assert state.topic_id is not None
        return Proposal(
            state.topic_id, state.next_entry, state.append_time_ms, (1, 1), append, MOST_BEHIND
        )

    def step(self) -> None:
        """Anything that may come next."""
        self.now_ms += self.chance.choice([0, 1000, HOUR_MS])
        ends = {n: part.end_offset for n, part in enumerate(self.state.partitions)}
        match self.chance.randrange(12):
            case _ if not self.state.exists:
                topic_id = f"id {self.state.next_entry}"
                self.add(Created("n", self.now_ms, topic_id, PARTITIONS, {}))
            case 0 if self.chance.random() < 0.2:
                self.add(Deleted("n", self.now_ms))
            case 1:
                number = self.chance.randrange(PARTITIONS)
                self.add(Trimmed("n", self.now_ms, {number: ends[number]}))
            case 2:
                self.now_ms += 20 * HOUR_MS
            case _:
                self.add(self.append(ProducerRef(self.chance.randrange(5), 0)))
        self.state.expire()


def together(state: TopicState, own: Append, others: Sequence[Proposal]) -> list[Append]:
    """The appends of the entry."""
    entry, taken = combine(state, own, others, nonce="n", at_ms=own.at_ms)
    found = [entry] if isinstance(entry, Append) else [*entry.appends]
    assert len(found) == 1 + len(taken)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_what_cannot_be_placed_once_never_can(seed: int) -> None:
    """Whatever comes: so a writer that is refused knows that nobody places it later."""
    log = Log(seed)
    open_ones: list[Proposal] = []
    closed: list[Proposal] = []
    for _ in range(200):
        for _ in range(2 * log.state.exists):
            ref = ProducerRef(log.chance.randrange(5), 0) if log.chance.random() < 0.7 else None
            append = log.append(ref)
            if is_proposable(log.state, append):
                open_ones.append(log.propose(append))
        log.step()
        if log.state.exists and open_ones and log.chance.random() < 0.3:
            chosen = log.chance.sample(open_ones, min(5, len(open_ones)))
            entry, _ = combine(log.state, log.append(), chosen, nonce="n", at_ms=log.now_ms)
            log.add(entry)
        assert not [found for found in closed if found.may_be_placed(log.state)]
        closed += [found for found in open_ones if not found.may_be_placed(log.state)]
        open_ones = [found for found in open_ones if found.may_be_placed(log.state)]
        # What stands is accepted as its own writer would have it accepted.
        for found in open_ones:
            producer = found.append.producer
            if producer is not None:
                batches: dict[int, tuple[int, int]] = {}
                for at in found.append.segments:
                    first, count = batches.get(at.partition, (at.base_sequence, 0))
                    batches[at.partition] = first, count + at.stored.record_count
                assert log.state.check_sequences("t", producer, batches) is None
    assert len(closed) > 100


@pytest.mark.parametrize("seed", range(10))
def test_an_entry_means_what_its_appends_mean_one_by_one(seed: int) -> None:
    """Offsets, sequences, producers and times; the same is told by manifests."""
    one, other = Log(seed), Log(seed)
    for turn in range(20):
        refs = [*map(ProducerRef, range(5), [turn // 10] * 5), None]
        appends = [replace(one.append(ref), at_ms=one.now_ms + turn * 1000) for ref in refs]
        proposals = [one.propose(append) for append in appends[1:]]
        found = together(one.state, appends[0], proposals)
        assert len(found) == len(refs)
        one.add(Appends("n", one.now_ms + turn * 1000, tuple(found)))
        for append in found:
            other.add(append)
    for a, b in zip(one.state.partitions, other.state.partitions, strict=True):
        assert a.end_offset == b.end_offset
        assert [replace(s, entry=0) for s in a.segments] == [
            replace(s, entry=0) for s in b.segments
        ]
    assert one.state.append_time_ms == other.state.append_time_ms
    for number, known in one.state.producers.items():
        assert known.partitions == other.state.producers[number].partitions
    rows = ManifestTable.of(
        [(number, part.segments) for number, part in enumerate(one.state.partitions)],
        {entry.number: entry for entry in one.state.recent},
        [],
    )
    starts = [0] * PARTITIONS
    told = rows.producers(24 * HOUR_MS, log_starts=starts, now_ms=one.state.append_time_ms)
    blank = {"since_entry": -1, "since_ms": -1}
    assert {n: replace(p, **blank) for n, p in told.items()} == {
        n: replace(p, **blank) for n, p in one.state.producers.items()
    }
    assert rows.entries() == one.state.recent


def test_an_entry_does_not_grow_without_bounds() -> None:
    """So many appends, of so many segments in all; one that is larger is not proposed."""
    log = Log(1)
    small = [log.propose(log.append(segments=1)) for _ in range(2 * MOST_TOGETHER)]
    assert len(together(log.state, log.append(), small)) == MOST_TOGETHER
    large = [log.propose(log.append(segments=MOST_SEGMENTS // 2)) for _ in range(5)]
    found = together(log.state, log.append(segments=1), large)
    assert sum(len(append.segments) for append in found) <= MOST_SEGMENTS
    assert len(found) == 2
    assert is_proposable(log.state, large[0].append)
    assert not is_proposable(log.state, log.append(segments=MOST_SEGMENTS // 2 + 1))


def test_the_same_append_and_the_same_producer_are_placed_once() -> None:
    """Proposed twice, proposed by a copy of the producer, or placed as one's own already."""
    log = Log(2)
    own, ref = log.append(ProducerRef(1, 0)), ProducerRef(2, 0)
    once, copy = log.propose(log.append(ref)), log.propose(log.append(replace(ref)))
    newer = log.propose(log.append(ProducerRef(2, 1)))
    anonymous = log.propose(log.append())
    mine = log.propose(log.append(ProducerRef(1, 0)))
    others = [log.propose(own), mine, once, once, copy, newer, anonymous, anonymous]
    found = together(log.state, own, others)
    assert [append.producer for append in found] == [own.producer, ref, None]


def test_what_was_left_to_manifests_may_be_the_proposed() -> None:
    """Where the state does not show all that has come since, nothing is concluded from it."""
    log = Log(3)
    log.add(log.append())
    proposal = log.propose(log.append())
    assert len(together(log.state, log.append(), [proposal])) == 2
    log.add(log.append())
    log.add(log.append())
    log.state.leave_to_manifests(Settled(0, log.state.next_entry - 1, False))
    assert proposal.may_be_placed(log.state)
    assert len(together(log.state, log.append(), [proposal])) == 1


def test_a_state_that_is_behind_places_nothing() -> None:
    """Its entry would lose anyhow, and what the proposal follows is not known."""
    log, behind = Log(4), Log(4)
    log.add(log.append())
    proposal = log.propose(log.append())
    assert len(together(behind.state, behind.append(), [proposal])) == 1


def test_a_producer_that_will_be_forgotten_proposes_nothing() -> None:
    """Else its sequences might not be known any more when somebody places them."""
    log, ref = Log(5), ProducerRef(1, 0)
    log.add(log.append(ref))
    assert is_proposable(log.state, log.append(ref))
    proposal = log.propose(log.append(ref))
    log.now_ms += 13 * HOUR_MS
    for _ in range(9):
        log.add(log.append())
    assert not is_proposable(log.state, log.append(ref))
    assert is_proposable(log.state, log.append(ProducerRef(2, 0)))
    assert not proposal.may_be_placed(log.state)


def test_many_entries_behind_is_too_late() -> None:
    """So that nobody has to look back further."""
    log = Log(6)
    log.add(log.append())
    proposal = log.propose(log.append())
    for _ in range(MOST_BEHIND):
        assert proposal.may_be_placed(log.state)
        log.add(log.append())
    assert proposal.may_be_placed(log.state)
    log.add(log.append())
    assert not proposal.may_be_placed(log.state)
