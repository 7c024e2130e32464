"""The judge can see: for each hazard of the design a broken variant of the library is caught.

Each test switches one mutation on, then runs what the suite runs anyhow: long runs of eight
processes, one seed after the other until one of them notices. The same run without the mutation
finds nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.seeds import tried_first
from tests.support.simulation.long_runs.judge import Violation
from tests.support.simulation.long_runs.run import (
    BROKEN,
    CALM,
    DAY_MS,
    LEAST_AGE_MS,
    ROUGH,
    STALLING,
    STORMY,
    long_run,
)
from txnlog.errors import (
    CommitFailed,
    CommitStateUnknown,
    CorruptEntry,
    ObjectNotFound,
    StorageError,
)
from txnlog.log import sequence_log
from txnlog.log.chapters import Chapters
from txnlog.log.settlement import Deadlines, Settlement
from txnlog.log.state_log import StateLog
from txnlog.log.transaction_log import Head, TransactionLog
from txnlog.read import consistent_cut
from txnlog.state import transaction as transitions
from txnlog.state.transaction import EntryRef, TransactionRef, TransactionState
from txnlog.storage.base import Storage
from txnlog.storage.create_once import create_once
from txnlog.testing import FaultRates, FaultyStorage
from txnlog.write import coordinator

Patch = pytest.MonkeyPatch
FEW_TURNS = 12
"""Of a run, where the mutation shows in most of such short ones."""
DOUBTFUL = replace(STORMY, fail=0.05, lose_response=0.05)
SLEEPY = replace(STALLING, delay=0.0, pause=0.01, pause_ms=(500, 20_000))


Mutate = Callable[[Patch], None]


DAMAGE = "damage"
"""What the library itself notices, so that the judge sees nothing more of the run."""


def failing_check(seed: int, rates: FaultRates, **options: Any) -> str:
    """Which check fails first in this run; "" if none does."""
    try:
        long_run(seed, rates, **options)
    except Violation as violation:
        return violation.check
    except CorruptEntry:
        return DAMAGE
    return ""


def check_caught(
    monkeypatch: Patch,
    mutate: Mutate,
    rates: FaultRates,
    *checks: str,
    first: int = 0,
    most: int = 60,
    prepare: Mutate = lambda _: None,
    **options: Any,
) -> None:
    """Look for a run that catches the mutation: one of these checks fails, and none without it.

    Other seeds are tried after the first, so that the test does not depend on it. That the
    library notices damage counts only where it is among the checks: it ends the run before the
    judge has seen anything, so the next seed has to show that the judge does.
    """
    for seed in tried_first(first, most):
        with monkeypatch.context() as patch:
            prepare(patch)
            mutate(patch)
            found = failing_check(seed, rates, **options)
        if found and (found != DAMAGE or DAMAGE in checks):
            break
    else:
        raise AssertionError(f"none of {most} runs notices")
    assert found in checks, f"seed {seed}"
    with monkeypatch.context() as patch:
        prepare(patch)
        assert failing_check(seed, rates, **options) == "", f"seed {seed}, without the mutation"


@pytest.mark.more
def test_hazard_1_a_lost_response_taken_for_a_conflict(monkeypatch: Patch) -> None:
    """Nobody reads back: what was committed is called fenced, and is seen all the same."""

    def create_once(storage: Storage, name: str, data: bytes, *_: object, **__: object) -> bool:
        try:
            return storage.put_if_absent(name, data)
        except StorageError:
            return False

    def mutate(patch: Patch) -> None:
        patch.setattr(sequence_log, "create_once", create_once)

    checks = ("aborted read", "torn", DAMAGE, "blocked", "hole")
    check_caught(monkeypatch, mutate, ROUGH, *checks, first=5, turns=FEW_TURNS)


def builds_on_anything(patch: Patch) -> None:
    """Who puts an entry does not confirm the one before it."""
    right = create_once

    def create(*given: Any, **named: Any) -> bool:
        storage, path, data, clock, _ = (*given, ())[:5]
        return right(storage, path, data, clock, **named)

    patch.setattr(sequence_log, "create_once", create)


@pytest.mark.more
def test_hazard_1_a_decision_that_is_not_durable_is_believed(monkeypatch: Patch) -> None:
    """Nobody confirms what he finds: a power cut takes it, and leaves what followed from it."""

    def mutate(patch: Patch) -> None:
        patch.setattr(TransactionLog, "confirm", lambda *_: None)
        builds_on_anything(patch)

    checks = ("torn", "lost", "offsets", "aborted read")
    check_caught(monkeypatch, mutate, BROKEN, *checks, first=3, turns=20)


@pytest.mark.more
def test_hazard_1_a_group_passes_what_is_not_durable(monkeypatch: Patch) -> None:
    """A power cut takes the records, and others that come in their place are passed over."""

    def mutate(patch: Patch) -> None:
        patch.setattr(StateLog, "confirm_read", lambda _: None)
        builds_on_anything(patch)

    check_caught(monkeypatch, mutate, BROKEN, "offsets", "lost", "torn", first=280, turns=30)


@pytest.mark.more
def test_hazard_2_an_unknown_outcome_taken_for_a_failure(monkeypatch: Patch) -> None:
    """A commit that may have happened is called failed."""
    put_decision = coordinator.Coordinator._put_decision

    def sure_of_it(self: coordinator.Coordinator) -> None:
        try:
            put_decision(self)
        except CommitStateUnknown as error:
            self._decision = None
            raise CommitFailed("surely nothing was committed") from error

    def mutate(patch: Patch) -> None:
        patch.setattr(coordinator.Coordinator, "_put_decision", sure_of_it)

    def prepare(patch: Patch) -> None:
        patch.setattr("txnlog.storage.create_once._PUT_ATTEMPTS", 1)

    # Producers repeat what is in doubt, so few runs come to it.
    check_caught(
        monkeypatch,
        mutate,
        DOUBTFUL,
        *("aborted read", "torn"),
        prepare=prepare,
        first=20,
        most=150,
        turns=30,
    )


@pytest.mark.more
def test_hazard_3_a_freed_name_is_believed_in(monkeypatch: Patch) -> None:
    """A process that slept trusts its put, though cleaning had freed the name."""

    def mutate(patch: Patch) -> None:
        patch.setattr(Chapters, "is_closed", lambda *_: False)

    check_caught(
        monkeypatch,
        mutate,
        SLEEPY,
        "blocked",
        DAMAGE,
        "lost",
        "torn",
        "hole",
        "aborted read",
        cleanup_ages_ms=(LEAST_AGE_MS,),
        first=6,
        most=150,
        turns=20,
    )


@pytest.mark.more
def test_hazard_4_a_zombie_shares_the_next_outcome(monkeypatch: Patch) -> None:
    """An entry is decided by the newest state of its id, whichever transaction that is of."""

    def decide_entry(
        entry: EntryRef, transaction: TransactionRef, state: TransactionState | None
    ) -> object:
        if state is not None and state.outcome is not None:
            return state.outcome
        return decide(entry, transaction, state)

    decide = transitions.decide_entry

    def mutate(patch: Patch) -> None:
        patch.setattr(transitions, "decide_entry", decide_entry)

    checks = "aborted read", "torn"
    check_caught(monkeypatch, mutate, STALLING, *checks, first=3, turns=FEW_TURNS)


@pytest.mark.more
def test_hazard_5_the_last_stable_offsets_alone(monkeypatch: Patch) -> None:
    """A snapshot without the cut is torn, and money is missing."""

    def mutate(patch: Patch) -> None:
        patch.setattr(consistent_cut, "consistent_cut", lambda ends, _: dict(ends))

    check_caught(monkeypatch, mutate, CALM, "torn", "bank", first=2, turns=FEW_TURNS)


@pytest.mark.more
def test_hazard_6_nobody_ends_what_hangs(monkeypatch: Patch) -> None:
    """Transactions never time out: readers wait for who has stopped."""

    def mutate(patch: Patch) -> None:
        patch.setattr(Deadlines, "overdue", lambda *_: False)

    check_caught(monkeypatch, mutate, STALLING, "blocked", first=4, turns=FEW_TURNS)


@pytest.mark.more
def test_hazard_7_listings_are_cached(monkeypatch: Patch) -> None:
    """A listing is answered from memory for a while, as fsspec's directory cache does."""

    def mutate(patch: Patch) -> None:
        patch.setattr(FaultyStorage, "list_names", _cached_listing)

    # Also as damage: listings that contradict themselves again and again.
    checks = ("blocked", "offsets", "torn", "lost", "hole", DAMAGE)
    check_caught(monkeypatch, mutate, CALM, *checks, first=5, turns=FEW_TURNS)


def _cached_listing(self: Any, folder: str, start_after: str = "") -> list[str]:
    if not folder.endswith("/log"):
        return list_names(self, folder, start_after)
    cache = self.__dict__.setdefault("listings", {})
    now_ms = self._actor.simulation.clock.time_ms
    found, at_ms = cache.get(folder, ([], 0))
    if now_ms - at_ms > 20_000:
        found = list_names(self, folder, "")
        cache[folder] = found, now_ms
    return [name for name in found if name > start_after]


list_names = FaultyStorage.list_names


def overwrite(storage: Any, name: str, data: bytes) -> None:
    """What an ordinary filesystem does with an open file."""
    storage.delete([name])
    storage.put(name, data)


@pytest.mark.more
def test_hazard_8_objects_are_written_in_place(monkeypatch: Patch) -> None:
    """The name is there as soon as the first half is written."""

    def put_if_absent(self: Any, name: str, data: bytes) -> bool:
        half = data[: len(data) // 2]
        if not self._request(f"create {name}", lambda: self.inner.put_if_absent(name, half)):
            return False
        self._request(f"write {name}", lambda: overwrite(self.inner, name, data))
        return True

    def mutate(patch: Patch) -> None:
        patch.setattr(FaultyStorage, "put_if_absent", put_if_absent)

    check_caught(monkeypatch, mutate, CALM, DAMAGE, first=3, turns=FEW_TURNS)


@pytest.mark.more
def test_hazard_9_a_put_that_looks_first_and_writes_then(monkeypatch: Patch) -> None:
    """Between the look and the write somebody else writes, and is overwritten."""

    def exists(storage: Storage, name: str) -> bool:
        try:
            storage.get(name)
        except ObjectNotFound:
            return False
        return True

    def put_if_absent(self: Any, name: str, data: bytes) -> bool:
        if self._request(f"exists {name}", lambda: exists(self.inner, name)):
            return False
        self._request(f"put {name}", lambda: overwrite(self.inner, name, data))
        return True

    def mutate(patch: Patch) -> None:
        patch.setattr(FaultyStorage, "put_if_absent", put_if_absent)

    # A decision may be what is overwritten.
    checks = "order", "lost", "two values", "torn", "hole", "gap", "aborted read"
    check_caught(monkeypatch, mutate, CALM, *checks, first=5, turns=FEW_TURNS)


@pytest.mark.more
def test_hazard_10_a_reader_believes_its_own_clock(monkeypatch: Patch) -> None:
    """What is past its timeout by the reader's clock counts as aborted, and nobody is told."""

    def current_head(self: Settlement, transactional_id: str, _: object) -> Head:
        head = self._transactions.describe(transactional_id)
        state, now_ms = head.state, self._clock.now_ms()
        if state.open and now_ms - (state.started_at_ms or 0) > state.timeout_ms:
            aborted = transitions.prepare_abort(head.state, now_ms=0, nonce="", fence=True)
            return Head(head.number + 1, aborted)
        return head

    def mutate(patch: Patch) -> None:
        patch.setattr(Settlement, "_current_head", current_head)

    check_caught(
        monkeypatch,
        mutate,
        CALM,
        "torn",
        "lost",
        "hole",
        "aborted read",
        "duplicate",
        skew_ms=60_000,
        cleanup_ages_ms=(DAY_MS,),
        first=2,
        turns=FEW_TURNS,
    )
