"""The matrix can see: the faults that were found by hand are found by it when their mends are out.

Each test takes one mend out, and runs the pairs (for one of them, the triples) in which it matters:
one of the cases fails, and none with the mend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.support.simulation.pairs.history import Violation
from tests.support.simulation.pairs.meeting import Case, How, run
from tests.support.simulation.pairs.slices import LAST
from tests.support.simulation.pairs.world import small_numbers
from txnlog.admin import maintenance
from txnlog.admin.purge_topic import _Purging
from txnlog.admin.times import Times
from txnlog.log import sequence_log
from txnlog.log.rewriting import TombstoneStay
from txnlog.log.sequence_log import SequenceLog
from txnlog.log.transaction_log import Head, TransactionLog
from txnlog.names import TopicPartition, expired_log, parse_closing_mark
from txnlog.read import changed_ranges, consistent_cut, latest
from txnlog.read.consistent_cut import FirstReading
from txnlog.read.consumer_reads import Fetcher
from txnlog.read.pin import PinnedTopics, pin_topics
from txnlog.read.plan import SegmentRange
from txnlog.schema import TopicSchema
from txnlog.state.cut import Part
from txnlog.state.cut import consistent_cut as whole_cut
from txnlog.storage import envelope
from txnlog.tables.fresh_table import _FreshTable

Patch = pytest.MonkeyPatch
Mutate = Callable[[Patch], None]
pytestmark = pytest.mark.more


@pytest.fixture(autouse=True)
def _small_numbers() -> Iterator[None]:
    with small_numbers():
        yield


def pairs(first: str, second: str, how: How, rules: str = "object store") -> list[Case]:
    """A pair at each request of the first one."""
    length = len(run(Case(rules, first, second, LAST, how)).footprint)
    return [Case(rules, first, second, at, how) for at in range(length)]


def failing_check(case: Case) -> str:
    """Which check fails in a case; "" if none does."""
    try:
        run(case)
    except Violation as violation:
        return violation.check
    return ""


def check_found(
    monkeypatch: Patch,
    mutate: Mutate,
    cases: Sequence[Case],
    *checks: str,
    prepare: Mutate = lambda _: None,
) -> None:
    """One of the cases fails one of these checks without the mend, and passes with it.

    ``prepare``: what is patched both times.
    """
    for case in cases:
        with monkeypatch.context() as patch:
            prepare(patch)
            mutate(patch)
            found = failing_check(case)
        if found:
            break
    else:
        raise AssertionError(f"none of {len(cases)} cases notices")
    assert found in checks, case
    with monkeypatch.context() as patch:
        prepare(patch)
        assert not failing_check(case), case


def test_a_cut_that_ignores_added_partitions(monkeypatch: Patch) -> None:
    """A snapshot is torn when a partition is added, and used, between two listings.

    With one round of readings only, as if others wrote all the while.
    """

    def without_added(
        ends: Mapping[TopicPartition, int], parts: Iterable[Part]
    ) -> dict[TopicPartition, int]:
        known = [
            replace(part, first_offsets={w: n for w, n in part.first_offsets.items() if w in ends})
            for part in parts
        ]
        return whole_cut(ends, known)

    def mutate(patch: Patch) -> None:
        patch.setattr(consistent_cut, "consistent_cut", without_added)

    def prepare(patch: Patch) -> None:
        patch.setattr("txnlog.snapshot.pin_topics", partial(pin_once, pin_topics))

    cases = pairs("read committed", "add partitions", "at once")
    check_found(monkeypatch, mutate, cases, "torn", prepare=prepare)


def pin_once(pin: Callable[..., PinnedTopics], *args: Any, **options: Any) -> PinnedTopics:
    """Pin topics in one round of readings."""
    return pin(*args, **{**options, "rounds": 1})


@pytest.mark.parametrize("reader", ["read committed", "read snapshot"])
def test_readings_of_several_moments_that_pass_for_an_instant(
    monkeypatch: Patch, reader: str
) -> None:
    """An effect is shown without its cause, which was committed after its topic was listed."""

    def mutate(patch: Patch) -> None:
        patch.setattr(FirstReading, "has_grown", lambda *_: False)

    cases = pairs(reader, "cause and effect", "at once")
    check_found(monkeypatch, mutate, cases, "effect without cause")


def test_a_remover_that_deletes_marks_of_the_next_life(monkeypatch: Patch) -> None:
    """A commit that was acknowledged is lost: a freed name was trusted, for lack of a mark."""

    def all_marks(listed: Sequence[str], _: int) -> list[str]:
        return [name for name in listed if parse_closing_mark(name) is not None]

    def remove(self: TransactionLog, head: Head) -> None:
        kept = SequenceLog(self._storage, expired_log(head.state.transactional_id), self._clock)
        kept.create(head.number, envelope.encode(head.state), -1)
        kept.delete_below(head.number)
        log = self._log(head.state.transactional_id)
        log.delete_below(head.number)
        log.delete_entries(head.number, head.number + 1)

    def mutate(patch: Patch) -> None:
        patch.setattr(sequence_log, "marks_below", all_marks)
        patch.setattr(TransactionLog, "remove", remove)

    stalls = [
        Case("object store", "expire ids", "work anew", at, third="revive", third_at=third_at)
        for at in (4, 8)  # what it found is dead; and before the copy of that is put
        for third_at in (16, 17, 18)  # one of them is its decision
    ]
    check_found(monkeypatch, mutate, stalls, "lost")


def test_a_reader_that_trusts_a_number_for_ever(monkeypatch: Patch) -> None:
    """A state that was put when its id was removed passes for the one that it has seen."""

    def mutate(patch: Patch) -> None:
        patch.setattr(TransactionLog, "_still_known", lambda _, id_: (id_.newest or (0,))[0])

    check_found(monkeypatch, mutate, pairs("commit", "remove ids", "at once"), "aborted read")


def test_a_position_that_stops_before_an_aborted_tail(monkeypatch: Patch) -> None:
    """Whoever reads until his position is the end never comes to one."""
    begin = Fetcher.begin

    def begin_without_ends(
        self: Fetcher,
        ranges: Sequence[SegmentRange],
        ends: Mapping[TopicPartition, int],
        schemas: Mapping[str, TopicSchema | None],
        *,
        as_records: bool,
    ) -> None:
        stops = {TopicPartition(r.topic, r.partition): r.stop_offset for r in ranges}
        begin(self, ranges, {**ends, **stops}, schemas, as_records=as_records)

    def mutate(patch: Patch) -> None:
        patch.setattr(Fetcher, "begin", begin_without_ends)

    cases = pairs("read committed", "poll", "late")
    check_found(monkeypatch, mutate, cases, "positions")


def test_tombstones_whose_time_was_taken_once(monkeypatch: Patch) -> None:
    """A reader that has begun a moment ago keeps a key that was deleted."""

    def mutate(patch: Patch) -> None:
        patch.setattr(TombstoneStay, "is_early", lambda *_: False)
        asked_ms = property(lambda times: round(times._asked_s * 1000))  # here clocks agree
        patch.setattr(Times, "latest_ms", asked_ms)

    cases = pairs("compaction", "table", "late")
    check_found(monkeypatch, mutate, cases, "table")


def test_transactions_that_nobody_ends(monkeypatch: Patch) -> None:
    """A process died when it had begun and placed nothing, or after its last marker."""

    def mutate(patch: Patch) -> None:
        patch.setattr(maintenance.Maintenance, "_tend_ids", lambda *_: iter(()))

    check_found(monkeypatch, mutate, pairs("begin", "flush", "dies"), "nobody ends")
    after_the_last_marker = pairs("commit", "read committed", "dies")[16:]
    check_found(monkeypatch, mutate, after_the_last_marker, "nobody ends")


def test_a_purge_that_others_stopped_and_that_ends_all_the_same(monkeypatch: Patch) -> None:
    """What another process has rewritten meanwhile still holds records of the key."""

    def mutate(patch: Patch) -> None:
        rewrite = _Purging.rewrite
        patch.setattr(_Purging, "rewrite", lambda *given: rewrite(*given) or True)

    check_found(monkeypatch, mutate, pairs("purge", "merge", "at once"), "purged")


def test_a_newest_record_beside_an_older_one_that_compaction_has_left(monkeypatch: Patch) -> None:
    """Of what was compacted, the keys that the rest has too are left out."""

    def mutate(patch: Patch) -> None:
        patch.setattr(latest, "_without", lambda batches, *_: ((b, None) for b in batches))

    case = Case("object store", "latest", "flush far", 0, third="compaction", third_at=LAST)
    check_found(monkeypatch, mutate, [case], "latest")


def test_a_feed_of_what_compaction_has_left(monkeypatch: Patch) -> None:
    """What was compacted meanwhile is read as it was."""

    def mutate(patch: Patch) -> None:
        patch.setattr(changed_ranges, "_is_whole", lambda *_: True)

    whole = pairs("feed", "compaction", "at once")
    cases = [replace(case, third="flush far", third_at=LAST) for case in whole]
    check_found(monkeypatch, mutate, cases, "feed")


def test_a_catalog_that_shows_what_it_has_shown(monkeypatch: Patch) -> None:
    """A table is of the moment at which it was asked for."""

    def mutate(patch: Patch) -> None:
        attempt = _FreshTable._attempt
        patch.setattr(_FreshTable, "_attempt", lambda t: t._answer[1] if t._answer else attempt(t))

    check_found(monkeypatch, mutate, pairs("catalog", "flush far", "at once"), "lost")
