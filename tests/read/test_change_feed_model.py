"""Feeds of changes through a topic's whole life, against a dict that is folded record by record.

Between any two moments: each change has the row before that the dict has, and all of them together
make of the rows at the one moment those at the other. Vacuum deletes what compaction has replaced:
then the feed is the same, or an error.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from contextlib import suppress
from itertools import cycle
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from tests.support.read.keyed_worlds import KEYS, TYPED, Key, Placed, World, newest, read
from tests.support.tiers import more
from txnlog.errors import InvalidOption, OffsetOutOfRange, SnapshotExpired
from txnlog.read.changed_rows import ChangeFeed
from txnlog.store import attach
from txnlog.testing import Fault, FaultyStorage, ProcessStopped

STEPS = 24
Change = tuple[str, Placed, Placed]
"""Its kind, the record whose row is shown, and the one that made the change."""


def expected_changes(
    before: list[Placed], after: list[Placed], starts: dict[int, int]
) -> dict[Key, list[Change]]:
    """By key, what the records of a range do one after the other."""
    lanes: dict[Key, dict[int, list[Placed]]] = defaultdict(lambda: defaultdict(list))
    for record in sorted(after):
        if record.sent.key is not None:
            lanes[record.sent.key][record.partition].append(record)
    rows = {record.sent.key: record for record in newest_of_all(before)}
    found: dict[Key, list[Change]] = {}
    for key, of_partitions in lanes.items():
        line: list[tuple[int, Placed]] = []
        for partition, records in of_partitions.items():
            older = [r for r in records if r.offset < starts.get(partition, 0)]
            records = [*older[-1:], *records[len(older) :]]
            for at, record in enumerate(records):
                line.append((min(later.sent.time_ms for later in records[at:]), record))
        line.sort(key=lambda item: (item[0], item[1]))
        current = rows.get(key)
        if current is not None:
            line = line[[record for _, record in line].index(current) + 1 :]
        found[key] = [*fold(current, [record for _, record in line])]
    return {key: changes for key, changes in found.items() if changes}


def newest_of_all(records: list[Placed]) -> list[Placed]:
    """The newest record of each key, those that delete it too."""
    last: dict[tuple[Key, int], Placed] = {}
    for record in sorted(records):
        if record.sent.key is not None:
            last[record.sent.key, record.partition] = record
    found: dict[Key, Placed] = {}
    for (key, _), record in sorted(last.items(), key=lambda item: item[1].sent.time_ms):
        found[key] = record
    return [*found.values()]


def fold(current: Placed | None, records: list[Placed]) -> list[Change]:
    found: list[Change] = []
    for record in records:
        had = current is not None and not current.sent.deletes
        if had:
            assert current is not None
            kind = "delete" if record.sent.deletes else "update_before"
            found.append((kind, current, record))
        if not record.sent.deletes:
            found.append(("update_after" if had else "insert", record, record))
        current = record
    return found


class FeedWorld(World):
    """A world that remembers all that showed at its moments."""

    limits = cycle([(3, 1 << 20), (1000, 1), (1000, 150), (3, 150)])
    """Of rows of the range, and bytes of those before, that are worked on together."""

    def _moment(self) -> None:
        now = [*self.visible]
        self.moments.append((self.store.snapshot("t").token(), now))
        if self.holder is None and len(self.ends) == self.partitions:
            self.moments.append((self.clock.time_ms - 500, now))

    def step_moment(self) -> None:
        if self.rng.random() < 0.5:
            self.clock.time_ms += 1000
            self._moment()

    def _trim(self) -> None:
        if self.rng.random() < 0.2:
            super()._trim()

    def key_of(self, row: dict[str, Any]) -> Key:
        if self.is_typed:
            return row["name"], row["n"]
        name, _, n = row["key"].decode().partition("/")
        return name, int(n)

    vacuums = False
    refused: frozenset[int] = frozenset()
    """The moments, by number, since which no feed knows what was done."""

    def may_have_expired(self, moment: int) -> bool:  # noqa: ARG002
        """Whether what is left since a moment, by its number, need not be known any more."""
        return self.may_expire

    def check_feed(self, done: Counter[str]) -> None:
        """From an earlier moment to a later one, or to now."""
        if not self.moments:
            return
        first = self.rng.randrange(len(self.moments))
        second = self.rng.randrange(first, len(self.moments) + 1)
        since, before = self.moments[first]
        until, after = None, self.visible
        if second < len(self.moments):
            until, after = self.moments[second]
        try:
            feed = self.store.changes("t", since, until, pre_images=True)
            rows = feed.to_arrow().to_pylist()
        except SnapshotExpired:
            done["expired"] += 1
            assert self.may_have_expired(first)
            return
        except InvalidOption:  # until was taken while a transaction was open
            # Or aborted records came later, and were merged with what was there at a time.
            assert isinstance(since, int) or not {*before} <= {*after}
            return
        assert first not in self.refused
        found: dict[Key, list[tuple[Any, ...]]] = defaultdict(list)
        typed = "_" if self.is_typed else ""
        for row in rows:
            place = row[f"{typed}partition"], row[f"{typed}offset"]
            time_ms = round(row[f"{typed}timestamp"].timestamp() * 1000)
            value = row["v"] if self.is_typed else int(row["value"])
            found[self.key_of(row)].append((row["_change"], *place, time_ms, value))
            done[row["_change"]] += 1
        expected = {
            key: [
                (kind, made.partition, made.offset, made.sent.time_ms, shown.sent.time_ms)
                for kind, shown, made in changes
            ]
            for key, changes in expected_changes(before, after, feed.start_offsets).items()
        }
        assert found == expected
        self.check_applied(before, after, rows)
        self.check_in_shares(feed, rows)

    def check_applied(
        self, before: list[Placed], after: list[Placed], rows: list[dict[str, Any]]
    ) -> None:
        """The rows at the beginning, with the changes applied, are those at the end."""
        state = {record.sent.key: record.sent.time_ms for record in newest(before)}
        for row in rows:
            key = self.key_of(row)
            value = row["v"] if self.is_typed else int(row["value"])
            if row["_change"] in ("update_before", "delete"):
                assert state.pop(key) == value
            else:
                assert key not in state
                state[key] = value
        assert state == {record.sent.key: record.sent.time_ms for record in newest(after)}

    def check_in_shares(self, feed: ChangeFeed, rows: list[dict[str, Any]]) -> None:
        """A range that does not fit into memory, and old rows that lie far apart."""
        with pytest.MonkeyPatch.context() as patched:
            most_rows, most_bytes = next(self.limits)
            patched.setattr("txnlog.read.changed_rows._MOST_ROWS", most_rows)
            patched.setattr("txnlog.read.changed_rows._MOST_OLDER_BYTES", most_bytes)
            patched.setattr("txnlog.read.changed_rows._MOST_PLACES", 4)
            patched.setattr("txnlog.read.changed_rows._BATCH_ROWS", 2)
            patched.setattr("txnlog.read.changed_rows._FAR", 1)
            shares = feed.to_arrow().to_pylist()
        by_key: dict[Key, list[dict[str, Any]]] = defaultdict(list)
        others: dict[Key, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            by_key[self.key_of(row)].append(row)
        for row in shares:
            others[self.key_of(row)].append(row)
        assert by_key == others

    may_expire = False

    def vacuum(self) -> None:
        """Delete what was replaced; a day later, so that all of it is old enough."""
        self.may_expire = True
        self.clock.time_ms += 8 * 86_400_000
        self.store.maintain("t")


class TrimmedWorld(FeedWorld):
    """Tokens stay after records were deleted that they had."""

    trims_one_in: ClassVar[int] = 2
    has_trimmed = False

    def _trim(self) -> None:
        kept = [moment for moment in self.moments if isinstance(moment[0], str)]
        World._trim(self)
        self.moments += kept
        self.has_trimmed = True

    def check_feed(self, done: Counter[str]) -> None:
        try:
            super().check_feed(done)
            done["right after a trim"] += self.has_trimmed
        except OffsetOutOfRange:
            done["deleted"] += 1
            assert self.has_trimmed


class PurgedWorld(FeedWorld):
    """Keys are purged: a feed from a token before is an error; elsewhere they were never there."""

    has_columns = 0
    rewritten = expired = purged = 0
    """The moments before the last compaction or new column; before the last one before a purge;
    before the last purge."""
    is_of_snapshot = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kills = random.Random(1)

    def may_have_expired(self, moment: int) -> bool:
        """Of a time it is not known whether what was compacted before the purge was so then."""
        is_token = isinstance(self.moments[moment][0], str)
        last = self.expired if self.is_of_snapshot else self.purged
        return self.may_expire or (moment < last if is_token else self.expired > 0)

    def _trim(self) -> None:
        """Another column."""
        if self.is_typed:
            self.has_columns += 1
            more = [pa.field(f"w{n}", pa.int32()) for n in range(self.has_columns)]
            self.store.topics.alter("t", schema=pa.schema([*TYPED, *more]))
            self.rewritten = len(self.moments)

    def _compact(self) -> None:
        self._purge()
        if self.rng.random() < 0.5:
            super()._compact()
            self.rewritten = len(self.moments)

    def _compact_partly(self) -> None:
        if self.rng.random() < 0.5:
            super()._compact_partly()
            self.rewritten = len(self.moments)
        self._purge()

    def check_feed(self, done: Counter[str]) -> None:
        super().check_feed(done)
        for number in self.rng.sample(range(len(self.moments)), min(1, len(self.moments))):
            moment, records = self.moments[number]
            self.is_of_snapshot = True
            try:
                scan = self.store.snapshot("t", at=moment).scan("t", columns=self.columns[:3])
                found = {*read(scan)}
            except SnapshotExpired:
                assert self.may_have_expired(number)
                continue
            finally:
                self.is_of_snapshot = False
            assert found <= {(r.partition, r.offset, r.sent.time_ms) for r in records}
            done["moments"] += 1

    def _purge(self) -> None:
        if self.holder is not None:
            return
        name, n = purged = self.rng.choice(KEYS)
        key = {"name": name, "n": n} if self.is_typed else {"key": f"{name}/{n}".encode()}
        shown: list[set[Key | None]] = [
            {record.sent.key for record in newest(then)} for _, then in self.moments
        ]
        if self.kills.random() < 0.5:
            self._die_purging(key)
            self.clock.time_ms += 1000
            self._moment()
            scan = self.store.scan("t", columns=self.columns, latest=True)
            now: set[Key | None] = {self.key_of(row) for row in scan.to_arrow().to_pylist()}
            shown += [now] * (len(self.moments) - len(shown))
            if self.vacuums and self.kills.random() < 0.5:
                self.vacuum()
        self.store.maintenance.purge("t", [key])
        self.expired, self.purged = self.rewritten, len(self.moments)
        self.refused |= {
            number
            for number, keys in enumerate(shown)
            if purged in keys and isinstance(self.moments[number][0], str)
        }

        def left(records: list[Placed]) -> list[Placed]:
            return [record for record in records if record.sent.key != purged]

        self.visible = left(self.visible)
        self.moments = [(moment, left(records)) for moment, records in self.moments]

    def _die_purging(self, key: dict[str, Any]) -> None:
        """At some request, or after the last one."""
        killed = {self.kills.randrange(60): Fault.STOP_AFTER}
        storage = FaultyStorage(self.store.storage, killed)
        with pytest.MonkeyPatch.context() as patched, suppress(ProcessStopped):
            patched.setattr("txnlog.admin.purge_topic._BYTES_PER_ENTRY", 1)
            attach(storage, clock=self.clock).maintenance.purge("t", [key])


def run(
    seed: int,
    *,
    is_typed: bool,
    stray_rate: float,
    vacuums: bool = False,
    of: type[FeedWorld] = FeedWorld,
) -> Counter[str]:
    world = of(random.Random(seed), is_typed, stray_rate)
    # Of a row that shows again once a tombstone is gone the feed tells nothing.
    config = {"retention.ms": "-1", "file.delete.delay.ms": "0", "delete.retention.ms": 10**12}
    world.store.topics.alter("t", config=config)
    world.vacuums = vacuums
    done: Counter[str] = Counter()
    for _ in range(STEPS):
        done[world.step()] += 1
        world.step_moment()
        if vacuums and world.holder is None and world.rng.random() < 0.15:
            world.vacuum()
        for _ in range(3):
            world.check_feed(done)
        places = {(r.sent.key, r.partition) for r in world.visible if r.sent.key}
        done["keys in two partitions"] += len(places) > len({key for key, _ in places})
    return done


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each segment that is compacted has an entry of its own."""
    monkeypatch.setattr("txnlog.admin.compaction.compact.DEFAULT_GROUP_BYTES", 1)


@pytest.mark.few(1)
@pytest.mark.parametrize("is_typed", [False, True], ids=["plain", "typed"])
@pytest.mark.parametrize("seed", [2, *more([0, 1, 3])])
@pytest.mark.parametrize("stray_rate", [0.4, *more([0.01])])
def test_each_change_has_the_row_that_a_dict_has(
    seed: int, is_typed: bool, stray_rate: float
) -> None:
    done = run(seed, is_typed=is_typed, stray_rate=stray_rate)
    assert not done["expired"]
    if seed == 2:
        assert done["update_before"]
        assert done["delete"]
        assert done["compact"]


@pytest.mark.few(1)
@pytest.mark.parametrize("is_typed", [False, True], ids=["plain", "typed"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.more) for n in (1, 2))])
def test_what_was_vacuumed_is_an_error_or_still_right(seed: int, is_typed: bool) -> None:
    done = run(seed, is_typed=is_typed, stray_rate=0.4, vacuums=True)
    assert done["update_before"]
    if seed == 0:
        assert done["expired"]


@pytest.mark.few(1)
@pytest.mark.parametrize("is_typed", [False, True], ids=["plain", "typed"])
@pytest.mark.parametrize("seed", [4, *more([1, 2, 3])])
def test_what_was_trimmed_is_an_error_or_still_right(seed: int, is_typed: bool) -> None:
    done = run(seed, is_typed=is_typed, stray_rate=0.4, of=TrimmedWorld)
    if seed == 4 and is_typed:
        assert done["deleted"]
        assert done["update_before"]
        assert done["right after a trim"]


@pytest.mark.few(1)
@pytest.mark.parametrize("is_typed", [False, True], ids=["plain", "typed"])
@pytest.mark.parametrize("seed", [3, *more([1, 2, 4])])
@pytest.mark.parametrize("vacuums", [False, True])
def test_what_was_purged_is_an_error_or_was_never_there(
    seed: int, is_typed: bool, vacuums: bool
) -> None:
    done = run(seed, is_typed=is_typed, stray_rate=0.4, vacuums=vacuums, of=PurgedWorld)
    if seed == 3:
        assert done["update_before"]
        assert done["moments"]
        assert done["expired"]


@pytest.mark.slow
@pytest.mark.parametrize("vacuums", [False, True])
@pytest.mark.parametrize("is_typed", [False, True], ids=["plain", "typed"])
@pytest.mark.parametrize("stray_rate", [0.4, 0.01])
def test_many_lives(stray_rate: float, is_typed: bool, vacuums: bool) -> None:
    for seed in range(100, 140):
        run(seed, is_typed=is_typed, stray_rate=stray_rate, vacuums=vacuums)
