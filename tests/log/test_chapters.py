"""Chapters: names are freed only behind a mark that says so for ever (hazard 3, invariant L17).

The runs at random are a model of that alone: writers take the next number of a log, cleaners close
and free what is behind; anybody sleeps between any two requests, for any time, and no clock is
asked. Whoever is told that it was the first of a name must have been.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.steps import begin, new_store, values
from txnlog.errors import ObjectNotFound, StorageError
from txnlog.log import chapters
from txnlog.log.chapters import Chapters, FreeingRule
from txnlog.log.sequence_log import SequenceLog
from txnlog.log.state_log import CHECKPOINT_INTERVAL
from txnlog.names import LogFile, parse_closing_mark, parse_log_file
from txnlog.state.group import OffsetCommit
from txnlog.storage.base import Storage
from txnlog.store import attach
from txnlog.testing import FaultRates, FaultyStorage, HeapStorage, Process, Simulation, VirtualClock

pytestmark = pytest.mark.rule("L17", "hazard 3")

FOLDER = "groups/g"
KEPT = 2
"""So many of the newest entries are never freed."""
RESTLESS = FaultRates(
    fail=0.01,
    lose_response=0.02,
    land_late=0.01,
    delay=0.02,
    pause=0.08,
    stop=0.005,
    partial=0.2,
    tear_listing=0.2,
    tear_delete=0.5,
    tear_ms=(0, 500),
    pause_ms=(100, 10_000),
)


class FirstOfEach(HeapStorage):
    """Remembers who was the first to put each name, whatever was deleted since."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, bytes] = {}

    def put_if_absent(self, name: str, data: bytes) -> bool:
        done = super().put_if_absent(name, data)
        if done:
            self.first.setdefault(name, data)
        return done


Put = Callable[[SequenceLog, int, bytes], bool]


def put_and_look(log: SequenceLog, number: int, data: bytes) -> bool:
    return log.create(number, data) and not log.chapters.is_closed(number)


def look_and_put(log: SequenceLog, number: int, data: bytes) -> bool:
    """Wrong: what was not closed then may be closed, and freed, by now."""
    return not log.chapters.is_closed(number) and log.create(number, data)


def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chapters of one number; two marks become one."""
    monkeypatch.setattr(chapters, "CHAPTER", 1)
    monkeypatch.setattr(chapters, "FANOUT", 2)


def run(seed: int, put: Put = put_and_look, age_ms: int = 0) -> tuple[int, int]:
    """How many puts were believed in; and how many of these were not the first of their name."""
    storage = FirstOfEach()
    simulation = Simulation(seed, storage=storage, rates=RESTLESS, step_ms=(0, 30))
    believed: list[tuple[str, bytes]] = []

    def write(process: Process) -> None:
        log = SequenceLog(process.storage, FOLDER, process.clock)
        for turn in range(25):
            try:
                number = max(log.listing().entries, default=-1) + 1
                data = f"{process.name}/{process.incarnation}/{turn}".encode()
                log.durable = number - 1  # who has put that one confirms nothing
                if put(log, number, data):
                    believed.append((log.path(number), data))
            except StorageError:
                continue

    def clean(process: Process) -> None:
        log = SequenceLog(process.storage, FOLDER, process.clock)
        for _ in range(40):
            try:
                end = max(log.listing().entries, default=0) - KEPT
                log.chapters.clean(end, FreeingRule(age_ms))
            except StorageError:
                continue

    for number in range(4):
        simulation.spawn(f"writer-{number}", write)
    for number in range(2):
        simulation.spawn(f"cleaner-{number}", clean)
    simulation.run()
    return len(believed), sum(storage.first[path] != data for path, data in believed)


@pytest.mark.condition(52)
@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(n, marks=pytest.mark.more) for n in range(2, 40))]
)
def test_whoever_believes_in_a_name_was_its_first(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """However long anybody slept, wherever a deletion stopped: no clock is asked."""
    short(monkeypatch)
    count, wrong = run(seed)
    assert count > 10
    assert wrong == 0


@pytest.mark.condition(52)
@pytest.mark.parametrize(
    "seed", [*range(1), *(pytest.param(n, marks=pytest.mark.more) for n in range(1, 40))]
)
def test_the_same_where_the_folder_is_seldom_listed(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Cleaners that slept close on from what they knew, where others have freed and widened."""
    short(monkeypatch)
    monkeypatch.setattr(chapters, "MOST_CLOSED", 1)
    closed: list[int] = []

    def close_on(self: Chapters, end: int) -> None:
        right_close_on(self, end)
        closed.append(end)

    right_close_on = Chapters._close_on
    monkeypatch.setattr(Chapters, "_close_on", close_on)
    count, wrong = run(seed, age_ms=5_000)
    assert count > 10
    assert closed or seed > 0  # cleaners may die early
    assert wrong == 0


def wide_first(self: Chapters, number: int) -> bool:
    sizes = [chapters._size(level) for level in range(chapters.LEVELS, 0, -1)]
    levels = range(chapters.LEVELS, 0, -1)
    return any(
        self._is_there(number - number % size, level)
        for size, level in zip(sizes, levels, strict=True)
    )


def narrow_goes_first(self: Chapters, marks: chapters._Marks, freed_end: int) -> None:
    for level in range(1, chapters.LEVELS):
        wide = chapters._size(level + 1)
        for first in sorted({n - n % wide for n in marks.firsts[level]}):
            if first + wide > freed_end:
                break
            gone = [n for n in marks.firsts[level] if first <= n < first + wide]
            self._storage.delete([self.path(n, level) for n in gone])
            self._clock.sleep(20.0)
            self._put(first, level + 1)
            marks.firsts[level + 1].add(first)


def freed_first(self: Chapters, end: int, rule: FreeingRule) -> None:
    listed = self._storage.list_names(self._folder)
    chapters.delete_files(self._storage, self._folder, listed, end)
    right(self, end, rule)


right = Chapters.clean


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("is_closed", lambda *_: False),
        pytest.param("is_closed", wide_first, marks=pytest.mark.more),
        pytest.param("_widen", narrow_goes_first, marks=pytest.mark.more),
        pytest.param("clean", freed_first, marks=pytest.mark.more),
        pytest.param(None, look_and_put, marks=pytest.mark.more),
    ],
    ids=["no look", "the wide mark first", "narrow marks go first", "freed first", "early look"],
)
def test_the_runs_show_what_is_broken(
    monkeypatch: pytest.MonkeyPatch, name: str | None, broken: Put
) -> None:
    """Each part of the rule is needed: without it somebody believes in a name that was freed."""
    short(monkeypatch)
    if name is not None:
        monkeypatch.setattr(Chapters, name, broken)
    put = put_and_look if name else broken
    assert any(run(seed, put)[1] for seed in range(150))


def fill(log: SequenceLog, begin: int, end: int) -> None:
    for number in range(begin, end):
        log.storage.put(log.path(number), b"")
        log.storage.put(log.path(number, LogFile.COMMIT), b"")


def test_marks_become_few(monkeypatch: pytest.MonkeyPatch, clock: VirtualClock) -> None:
    """What is freed stays closed; what is not may be put."""
    monkeypatch.setattr(chapters, "CHAPTER", 4)
    monkeypatch.setattr(chapters, "FANOUT", 4)
    heap = HeapStorage()
    log = SequenceLog(heap, FOLDER, clock)
    for end in range(0, 800, 8):
        fill(log, end, end + 8)
        log.chapters.clean(end, FreeingRule(10**9, most_closed=2))
        names = heap.list_names(FOLDER)
        marks = [mark for name in names if (mark := parse_closing_mark(name))]
        assert len(marks) <= 2 * 4 + end // 64 + 4
        assert len(names) - len(marks) <= 2 * (2 * 4 + 2 * 8 + 4)
    freed = min(log.listing().entries)
    assert freed > 760
    assert all(log.chapters.is_closed(number) for number in range(freed))
    assert not any(log.chapters.is_closed(number) for number in range(792, 10_000))


def test_what_waits_is_not_listed_each_time(
    monkeypatch: pytest.MonkeyPatch, clock: VirtualClock
) -> None:
    """However many names wait for their time: a cleaning lists what is new; all, now and then."""
    heap = HeapStorage()
    heap.time_ms = lambda: clock.time_ms
    log = SequenceLog(heap, FOLDER, clock)
    listed: list[int] = []

    def list_names(folder: str, start_after: str = "") -> list[str]:
        found = HeapStorage.list_names(heap, folder, start_after)
        listed.append(len(found))
        return found

    monkeypatch.setattr(heap, "list_names", list_names)
    rule = FreeingRule(900_000)
    for end in range(64, 64 * 400, 64):
        fill(log, end - 64, end)
        log.chapters.clean(end, rule)
        clock.time_ms += 9_000
        assert log.chapters.is_closed(end - 1)
        assert not log.chapters.is_closed(end)
    # A hundred chapters are closed in that age, a quarter of which comes on top.
    assert min(log.listing().entries) >= 64 * (400 - 100 - 25 - 3)
    names = 2 * 64 + 1  # of a chapter
    assert max(listed) < names * (100 + 25 + 3)
    assert sum(count > 2 * names for count in listed) < 17 + 400 / 24
    # Another process, which knows nothing, closes on from where this one was.
    other = SequenceLog(heap, FOLDER, clock)
    fill(log, 64 * 399, 64 * 400)
    other.chapters.clean(64 * 400, rule)
    log.chapters.clean(64 * 400, rule)
    assert log.chapters.is_closed(64 * 400 - 1)


def test_a_log_that_was_long_already_is_closed_in_few_marks(clock: VirtualClock) -> None:
    """An old store's: what lies behind is closed by wide marks, and some more the next time."""
    heap = HeapStorage()
    log = SequenceLog(heap, FOLDER, clock)
    for end in (1_000_000, 1_000_100, 1_000_200, 1_000_300, 1_000_400, 1_000_500):
        log.chapters.clean(end, FreeingRule(1))
    assert len(heap.list_names(FOLDER)) < 350
    assert all(log.chapters.is_closed(number) for number in range(0, 999_999, 61))
    assert not log.chapters.is_closed(1_000_512)


def test_the_storages_clock_tells_how_old_a_mark_is(
    monkeypatch: pytest.MonkeyPatch, clock: VirtualClock
) -> None:
    """One process's clock is days ahead: it frees nothing before its time."""
    monkeypatch.setattr(chapters, "CHAPTER", 1)
    heap = HeapStorage()
    heap.time_ms = lambda: clock.time_ms
    log = SequenceLog(heap, FOLDER, VirtualClock(clock.time_ms + 10**9))
    fill(log, 0, 30)
    for end, passed_ms, freed in ((10, 0, 0), (11, 59_999, 0), (12, 1, 10), (13, 59_999, 11)):
        clock.time_ms += passed_ms
        log.chapters.clean(end, FreeingRule(60_000))
        assert min(log.listing().entries) == freed


def test_a_mark_is_durable_before_what_it_closes_goes(
    monkeypatch: pytest.MonkeyPatch, clock: VirtualClock
) -> None:
    """Its put may have failed to be synced: whoever builds on it makes sure first."""
    monkeypatch.setattr(chapters, "CHAPTER", 1)
    heap = HeapStorage()
    log = SequenceLog(heap, FOLDER, clock)
    fill(log, 0, 8)
    with heap.failing_sync():
        log.chapters.clean(4, FreeingRule(0))
        monkeypatch.setattr(HeapStorage, "put_if_absent", unsynced_put)
        log.chapters.clean(5, FreeingRule(0))
    assert min(log.listing().entries) == 4
    heap.power_cut(lambda _: False)
    assert all(log.chapters.is_closed(number) for number in range(4))


def test_a_wide_mark_is_durable_before_the_narrow_ones_go(
    monkeypatch: pytest.MonkeyPatch, clock: VirtualClock
) -> None:
    """Another process has put it, and its sync has failed: whoever finds it makes sure."""
    short(monkeypatch)
    heap = HeapStorage()
    found: list[str] = []

    def put_before(text: str) -> None:
        if text.startswith("put_if_absent") and text.endswith(".closed-2"):
            found.append(text.partition(" ")[2])
            with heap.failing_sync():
                heap.put_if_absent(found[-1], b"another's")

    log = SequenceLog(FaultyStorage(heap, before_request=put_before), FOLDER, clock)
    fill(log, 0, 8)
    for end in range(1, 9):
        log.chapters.clean(end, FreeingRule(0))
        if found:
            break
    assert found
    assert heap.power_cut() == []
    assert log.chapters.is_closed(0)


def test_a_stray_far_behind_costs_nothing_for_what_lies_between(
    monkeypatch: pytest.MonkeyPatch, clock: VirtualClock
) -> None:
    """A writer that slept has put entry 0 again, 1,000 chapters later."""
    monkeypatch.setattr(chapters, "CHAPTER", 1)
    monkeypatch.setattr(chapters, "_MOST_AT_ONCE", 2_000)
    storage = FaultyStorage(HeapStorage())
    log = SequenceLog(storage, FOLDER, clock)
    log.chapters.clean(1_000, FreeingRule(60_000))
    fill(log, 0, 1)
    fill(log, 995, 1_002)
    clock.time_ms += 60_000
    storage.requests.clear()
    log.chapters.clean(1_001, FreeingRule(60_000))
    assert min(log.listing().entries) == 1_000
    assert len(storage.requests) < 50


real_put = HeapStorage.put_if_absent


def unsynced_put(self: HeapStorage, name: str, data: bytes) -> bool:
    with self.failing_sync():
        return real_put(self, name, data)


def names_in(storage: Storage, folder: str) -> list[str]:
    return [name for name in storage.list_names(folder) if parse_log_file(name) is not None]


def test_folders_on_a_disk_stay_small_however_fast_it_is(
    monkeypatch: pytest.MonkeyPatch, clock: VirtualClock
) -> None:
    """No time passes at all: logs of topics, groups and ids hold so many names and no more."""
    monkeypatch.setattr(chapters, "CHAPTER", 8)
    monkeypatch.setattr(chapters, "MOST_CLOSED", 4)
    monkeypatch.setattr(chapters, "STAY_OPEN", 3)
    heap = HeapStorage(like_disk=True)
    store = new_store(heap, clock)
    reader = attach(heap, clock=clock)
    producer = begin(store)
    producer.commit_transaction()
    most = dict.fromkeys(("topics/t/log", "groups/g", "transactions/p"), 0)
    for turn in range(150):
        with producer.transaction():
            producer.send("t", b"%d" % turn)
        store.logs.group("g").commit([OffsetCommit("t", 0, turn + 1)])
        store.logs.group("g").checkpoint_if_due()
        if turn % 50 == 49:
            assert values(reader) == [b"%d" % n for n in range(turn + 1)]
        for folder in most:
            most[folder] = max(most[folder], len(names_in(heap, folder)))
    # Chapters that stay; what was closed last, and came since; in an id's log its newest 64, too.
    at_a_checkpoint = 2 * CHECKPOINT_INTERVAL + 8
    assert most["groups/g"] <= 4 * 8 + at_a_checkpoint + 2
    assert most["topics/t/log"] <= 2 * (4 * 8 + at_a_checkpoint) + 2
    assert most["transactions/p"] <= 4 * 8 + 64 + 2 * 96 + 8
    assert [found for found in store.examine(with_probe=False) if found.state == "damage"] == []


@pytest.mark.parametrize("freed", [False, True])
def test_only_what_was_freed_may_be_gone(
    monkeypatch: pytest.MonkeyPatch, clock: VirtualClock, *, freed: bool
) -> None:
    """The entry before: one that a server has lost would leave a hole."""
    short(monkeypatch)
    heap = HeapStorage()
    log = SequenceLog(heap, FOLDER, clock)
    fill(log, 0, 4)
    if freed:
        log.chapters.clean(4, FreeingRule(0))
    heap.delete([log.path(3)])
    if freed:
        assert log.create(4, b"next")
    else:
        with pytest.raises(ObjectNotFound):
            log.create(4, b"next")
    assert (log.path(4).rpartition("/")[2] in heap.list_names(FOLDER)) is freed
