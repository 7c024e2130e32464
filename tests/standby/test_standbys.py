"""A standby: what it shows, what it survives, and how it becomes a store of its own."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import txnlog
from tests.support.log.settling import settle_early
from tests.support.replication.replica_folders import (
    FIRST,
    break_sector,
    make_written,
    reopened,
    skip_probes,
    write,
)
from tests.support.simulation.copy_job import PREPARED, check_whole_transactions, copy_all, judge
from tests.support.steps import append, begin_with, values
from txnlog.errors import (
    IllegalState,
    InvalidOption,
    NotAStore,
    ObjectNotFound,
    StorageError,
    StoreExists,
    TxnlogError,
)
from txnlog.names import TopicPartition
from txnlog.replication import Follower, Standby, open_replicas, root_names
from txnlog.replication.roots import copies
from txnlog.replication.standby import data_files
from txnlog.replication.standby.data_files import DataFileCopier
from txnlog.replication.standby.rounds import Promoted, Round, Rounds
from txnlog.replication.standby.source import SourceView
from txnlog.replication.standby.standby_storage import StandbyStorage, find_at
from txnlog.replication.standby.sweep import KEPT_ROUNDS
from txnlog.storage.adapters.local import LocalStorage
from txnlog.storage.base import Storage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, ProcessStopped, VirtualClock

pytestmark = pytest.mark.rule("Y2", "Y3", "Y4")


def store_of(storage: Storage, seed: int = 2) -> Store:
    return attach(storage, clock=VirtualClock(seed=seed))


def shown(target: Storage) -> Store:
    found = find_at(target)
    assert found is not None
    return store_of(found, seed=5)


def follow(source: Storage, target: Storage, seed: int = 3) -> Follower:
    standby = Follower(store_of(source, seed), target)
    standby.follow()
    return standby


class _Full(ForwardingStorage):
    """A standby's storage that has no room for files with ``lacks`` in their names."""

    lacks = ""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if self.lacks and self.lacks in name:
            raise StorageError("no space left")
        return self.inner.put_if_absent(name, data)


@pytest.mark.parametrize("lacks", ["/a/log/", "/b/log/", "/c/log/"])
def test_rounds_that_fail_again_and_again_leave_no_more_files(lacks: str) -> None:
    """Where there is no room they would fill what others make."""
    source, target = HeapStorage(), HeapStorage()
    store = attach(source, create=True, clock=VirtualClock())
    for topic in "abc":
        store.topics.create(topic)
    full = _Full(target)
    standby = Follower(store_of(source, seed=3), full)
    standby.follow()
    full.lacks = lacks
    left = []
    for _ in range(5):
        for topic in "abc":
            append(store, b"1", topic=topic)
        with pytest.raises(StorageError, match="no space left"):
            standby.follow()
        left.append(len([*target.list_all(root_names.STANDBY_LOGS)]))
    assert {*left} == {left[0]}
    full.lacks = ""
    standby.follow()
    standby.follow()
    assert len(target.list_folders(root_names.STANDBY_LOGS)) == 2
    assert values(shown(target), "c") == [b"1"] * 5


def write_many(store: Store) -> None:
    for number in range(12):
        append(store, b"%d" % number)


def open_pair(tmp_path: Path) -> tuple[Store, Follower, str]:
    store = txnlog.open(str(tmp_path / "store"), create=True)
    url = str(tmp_path / "standby")
    return store, Follower(store, url), url


def test_a_standby_lies_beside_its_source(tmp_path: Path) -> None:
    """In the store's folders its files would be taken for uploads that nobody has placed."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    for folder in (tmp_path / "store" / "topics" / "x", tmp_path):
        with pytest.raises(InvalidOption, match="are nested"):
            Follower(store, str(folder))


def test_a_standby_on_a_filesystem_for_a_single_writer(tmp_path: Path) -> None:
    """The option given to the follower must also be given to the reader."""
    fsspec.register_implementation("single", MemoryFileSystem, clobber=True)
    store = txnlog.open(str(tmp_path), create=True)
    store.topics.create("t")
    Follower(store, "single://standby", unsafe_single_writer=True).follow()
    assert txnlog.open("single://standby", unsafe_single_writer=True).topics.list() == ["t"]


def test_a_round_shows_what_there_was(tmp_path: Path) -> None:
    """Records, settings, offsets and open transactions; then what has come since, and no sooner."""
    store, standby, url = open_pair(tmp_path)
    store.topics.create("t", partitions=2, config={"retention.ms": "1000000"})
    with store.producer() as producer:
        producer.send("t", b"one", partition=1)
    consumer = store.consumer(group_id="g", auto_offset_reset="earliest")
    consumer.assign([TopicPartition("t", 1)])
    assert len(consumer.poll()) == 1
    consumer.commit()
    open_one = store.producer(transactional_id="x")
    open_one.init_transactions()
    open_one.begin_transaction()
    open_one.send("t", b"two", partition=1)
    open_one.flush()
    done = standby.follow()
    assert (done.round, done.files, done.lost) == (0, 2, ())

    copy = txnlog.open(url)
    assert copy.store_id == store.store_id
    assert values(copy, "t") == [b"one"]
    found = copy.examine(with_probe=False)
    assert {one.state for one in found} <= {"ok", "note"}
    assert copy.topics.describe("t").config == store.topics.describe("t").config
    assert copy.groups.describe("g").offsets[0].offset == 1
    assert copy.transactions.describe("x").status == store.transactions.describe("x").status
    open_one.commit_transaction()
    assert values(copy, "t") == [b"one"]
    done = standby.follow()
    assert (done.round, done.files, done.bytes) == (1, 0, 0), "the data was there"
    assert values(copy, "t") == [b"one", b"two"], "a store that is open sees the next round"
    assert Standby(copy).reached().number == 1
    assert standby.follow().logs == 0, "nothing has changed"


def test_it_can_be_read_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, standby, url = open_pair(tmp_path)
    store.topics.create("t")
    with pytest.raises(txnlog.errors.StoreNotFound):
        txnlog.open(url)
    standby.follow()
    copy = txnlog.open(url)
    with pytest.raises(StorageError, match="write to its source, or promote it") as refused:
        copy.topics.create("u")
    assert not refused.value.retriable
    with pytest.raises(StorageError, match="read only"), copy.producer() as producer:
        producer.send("t", b"no")
    caplog.clear()
    for looked_at in (copy, txnlog.open(str(tmp_path / "store"), salvage=True)):
        probed = next(looked_at.examine())
        assert (probed.check, probed.state) == ("probe", "unreadable")
        assert "read only" in probed.detail
        assert not caplog.text, "nothing of a probe was left behind"
    with pytest.raises(InvalidOption, match="is not a standby"):
        Standby(store).reached()
    with pytest.raises(InvalidOption, match="is not a standby"):
        Standby(store).promote()


def test_what_a_round_costs() -> None:
    """Where nothing is new: listings of each log, one put. Then what has changed."""
    source, target = FaultyStorage(SOURCE.copy()), FaultyStorage(TARGET.copy())
    standby = Follower(store_of(source), target)
    standby.follow()
    standby.follow()

    def requests_of_round() -> tuple[Counter[str], Counter[str]]:
        before = len(source.requests), len(target.requests)
        standby.follow()
        return (
            Counter(request.split()[0] for request in source.requests[before[0] :]),
            Counter(request.split()[0] for request in target.requests[before[1] :]),
        )

    read, put = requests_of_round()
    assert read["list"] == 3 * 3 + 2 * 1 + 2 * 1, "three topics, a group, an id"
    assert read["get"] == 1 + 1, "the id's state, the store's file"
    assert put == {"list": 2, "put_if_absent": 1}
    with store_of(source.inner, seed=15).producer() as producer:
        producer.send("b", b"new")
    read, put = requests_of_round()
    assert put["put_if_absent"] == 1 + 3, "data, an entry and a checkpoint; the round"


class _WhileQuietIsRead(ForwardingStorage):
    """Something happens whenever the log of one id is read."""

    happens: Callable[[], object] = staticmethod(lambda: None)

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        if folder == "transactions/quiet":
            self.happens()
        return self.inner.list_names(folder, start_after)


@pytest.mark.few(1)
@pytest.mark.parametrize("busy", ["id", "topic", "group"])
def test_a_log_that_is_cleaned_while_others_are_read(
    busy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes to read all others: from the second look on it is read beside none."""
    clock, source, target = VirtualClock(seed=1), HeapStorage(), HeapStorage()
    ages = {"log.cleanup.age.ms": 1_000, "transaction.max.timeout.ms": 1_000}
    store = attach(source, create=True, clock=clock, config=ages)
    store.topics.create("a")
    store.topics.create("b")
    producer, consumer = store.producer(), store.consumer(group_id="g")
    transactional = {}
    for name in ("busy", "quiet"):
        transactional[name] = store.producer(transactional_id=name, transaction_timeout_ms=1_000)
        transactional[name].init_transactions()
    where = TopicPartition("a", 0)
    at = 0

    def write() -> None:
        nonlocal at
        if busy == "topic":
            producer.send("a", b"x")
            producer.flush()
        elif busy == "group":
            consumer.commit({where: at})
        else:
            with transactional["busy"].transaction():
                transactional["busy"].send("b", b"x")
        at += 1

    def burst() -> None:
        for _ in range(100 if busy == "id" else 200):
            clock.time_ms += 100
            write()

    burst()
    slow = _WhileQuietIsRead(source)
    standby = Follower(store_of(slow), target)
    looks: list[int] = []
    look = standby._source.look

    def counted() -> SourceView:
        looks.append(at)
        return look()

    monkeypatch.setattr(standby._source, "look", counted)
    slow.happens = burst
    standby.follow()
    assert 1 < len(looks) <= 3, "the id's topic may be found busy after the id"
    looks.clear()
    before = at
    standby.follow()
    assert len(looks) <= 2, "one more, since the newest entry of the last round is gone"
    copy = shown(target)
    if busy == "group":
        offset = copy.groups.describe("g").offsets[0].offset
        assert offset is not None
        assert offset >= before - 1
    else:
        assert len(values(copy, "a" if busy == "topic" else "b")) >= before
    assert not [one for one in copy.examine(with_probe=False) if one.state not in ("ok", "note")]


def test_it_goes_where_nothing_else_is(tmp_path: Path) -> None:
    store, standby, url = open_pair(tmp_path)
    standby.follow()
    other = txnlog.open(str(tmp_path / "other"), create=True)
    with pytest.raises(StoreExists, match="standby of another store"):
        Follower(other, url).follow()
    with pytest.raises(NotAStore, match="not empty"):
        Follower(store, other.url).follow()
    with pytest.raises(InvalidOption, match="the store itself"):
        Follower(store, store.url)


@pytest.mark.more
def test_it_goes_on_behind_cleaning_manifests_and_deletions() -> None:
    """The source has left all it can to manifests, freed its entries and deleted segments."""
    source, target = HeapStorage(), HeapStorage()
    clock = VirtualClock(seed=1)
    source.time_ms = lambda: clock.time_ms
    ages = {"log.cleanup.age.ms": 1_000, "transaction.max.timeout.ms": 1_000}
    store = attach(source, create=True, clock=clock, config=ages)
    store.topics.create("t", config={"file.delete.delay.ms": 0})
    standby = Follower(store_of(source), target)
    standby.follow()
    for part in range(3):
        for number in range(200):
            with store.producer() as producer:
                producer.send("t", b"%d" % (200 * part + number))
            clock.time_ms += 100
        standby.follow()
        assert len(values(shown(target), "t")) == 200 * (part + 1)
    assert "00000000000000000001.json" not in source.list_names("topics/t/log"), "freed"
    store.topics.delete_records({TopicPartition("t", 0): 500})
    clock.time_ms += 100 * 86_400_000
    store.maintain()
    clock.time_ms += 100 * 86_400_000
    store.maintain()
    standby.follow()
    assert len(values(shown(target), "t")) == 100
    before = sum(1 for _ in target.list_all("topics/t/data"))
    gone = standby.sweep()
    after = {name for name, _ in target.list_all("topics/t/data")}
    assert gone >= before - len(after) > 0
    assert after == {name for name, _ in source.list_all("topics/t/data")}
    assert len(values(shown(target), "t")) == 100
    promoted = shown(target)
    Standby(promoted).promote()
    again = attach(target, clock=VirtualClock(clock.time_ms, seed=9))
    for number in range(200):
        with again.producer() as producer:
            producer.send("t", b"later %d" % number)
    assert len(values(again, "t")) == 300
    assert not [one for one in again.examine() if one.state not in ("ok", "note")]


def test_a_standby_of_a_standby() -> None:
    """It shows what that one has reached, and goes on when that is a store; an id is called log."""
    source, middle, last = HeapStorage(), HeapStorage(), HeapStorage()
    store = attach(source, create=True, clock=VirtualClock(seed=1))
    store.topics.create("t")

    def write(into: Store, value: bytes) -> None:
        for name in ("log", "x"):
            producer = into.producer(transactional_id=name)
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", value)
            producer.commit_transaction()

    write(store, b"1")
    standby = follow(source, middle)
    behind = Follower(shown(middle), last)
    behind.follow()
    with store.producer(transactional_id="x") as producer:
        producer.init_transactions()
    standby.follow()
    listed = [name for name, _ in StandbyStorage(middle).list_all("")]
    assert sorted({*listed}) == sorted(listed)
    assert sum(name.startswith("transactions/x/") for name in listed) == 1
    write(store, b"2")
    standby.follow()
    assert behind.follow().files == 2, "what is new"
    assert values(shown(last), "t") == [b"1", b"1", b"2", b"2"]
    Standby(shown(middle)).promote()
    write(store_of(middle, seed=11), b"3")
    behind.follow()
    assert len(values(shown(last), "t")) == 6


def test_what_a_sweep_costs() -> None:
    """No request for each file that waits for its deletion at the source."""
    source, target = FaultyStorage(HeapStorage()), HeapStorage()
    store = attach(source.inner, create=True, clock=VirtualClock(seed=1))
    store.topics.create("t")
    costs = []
    for _ in range(2):
        for number in range(20):
            with store.producer() as producer:
                producer.send("t", b"%d" % number)
        standby = follow(source, target)
        end = store.topics.describe("t").partitions[0].end_offset
        store.topics.delete_records({TopicPartition("t", 0): end})
        standby.follow()
        begun = len(source.requests)
        assert standby.sweep() == 0
        costs.append(Counter(request.split()[0] for request in source.requests[begun:]))
    assert costs[0] == costs[1]
    assert "size" not in costs[0]


def test_old_rounds_go(tmp_path: Path) -> None:
    """What stands for unchanged logs stays; the rest goes with its rounds."""
    store, standby, url = open_pair(tmp_path)
    store.topics.create("quiet")
    store.topics.create("t")
    copy = None
    for number in range(2 * KEPT_ROUNDS):
        with store.producer() as producer:
            producer.send("t", b"%d" % number)
        standby.follow()
        copy = copy or txnlog.open(url)
    assert len([*(Path(url) / "standby").glob("*.json")]) == KEPT_ROUNDS + 1
    logs = [*(Path(url) / "standby" / "logs").glob("*/topics/*/log/*.checkpoint")]
    assert len(logs) == KEPT_ROUNDS + 1
    assert copy is not None
    assert len(values(copy, "t")) == 2 * KEPT_ROUNDS
    assert values(copy, "quiet") == []


class _Ids:
    """A store whose ids expire, and come back, and a standby of it."""

    def __init__(self) -> None:
        self.clock, self.source = VirtualClock(seed=1), HeapStorage()
        self.source.time_ms = lambda: self.clock.time_ms
        ages = {"log.cleanup.age.ms": 1_000, "transaction.max.timeout.ms": 1_000}
        self.store = attach(self.source, create=True, clock=self.clock, config=ages)
        self.store.topics.create("t")
        self.target = FaultyStorage(HeapStorage())
        self.standby = self.follower()

    def follower(self) -> Follower:
        return Follower(attach(self.source, clock=self.clock), self.target)

    def write(self, transactional_id: str) -> None:
        with self.store.producer(
            transactional_id=transactional_id, transaction_timeout_ms=1_000
        ) as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("t", b"x")

    def expire(self) -> None:
        for _ in range(4):
            self.clock.time_ms += 10 * 86_400_000
            self.store.maintain()
        assert not [*self.store.transactions.list()]

    def judge(self) -> None:
        """The standby knows of each id what the source does, and keeps no file without a reason."""
        copy = shown(self.target)
        known = {path for path, _ in copy.storage.list_all("expired")}
        for path, _ in self.source.list_all("expired"):
            name = path.split("/")[1]
            is_alive = self.store.logs.transactions.head(name) is not None
            assert (path in known) is not is_alive
            assert (name in copy.storage.list_folders("expired")) is not is_alive
            assert is_alive or copy.storage.get(path) == self.source.get(path)
        rounds = Rounds(self.target)
        newest = rounds.newest()
        assert newest is not None
        kept = range(max(newest.number - KEPT_ROUNDS + 1, 0), newest.number + 1)
        led_to = set()
        for one in filter(None, map(rounds.read, kept)):
            led_to |= {
                root_names.standby_file(version.attempt, log)
                for log, version in rounds.logs(one).items()
            }
            led_to |= {root_names.expired_list(one.expired)} if one.expired else set()
        for path, _ in self.target.list_all("standby/logs"):
            of_log = path.rpartition("/")[0].replace("/manifests", "/log")
            assert {of_log, path} & led_to
        attempts = {name.split("/")[2] for name in led_to}
        assert attempts == {*self.target.list_folders("standby/logs")}


def test_expired_ids_cost_nothing_while_they_stay() -> None:
    """Whether there are many or none: not to who follows, and not to who reads a topic."""
    costs = []
    for count in (0, 40):
        ids = _Ids()
        for number in range(count):
            ids.write(f"id-{number}")
        ids.expire()
        for _ in range(KEPT_ROUNDS + 2):
            ids.standby.follow()
        begun = len(ids.target.requests)
        ids.standby.follow()
        newest = Rounds(ids.target.inner).newest()
        assert newest is not None
        size = len(ids.target.inner.get(root_names.round_file(newest.number)))
        requests = ids.target.requests[begun:]
        costs.append((size, Counter(request.split()[0] for request in requests)))
        values(shown(ids.target), "t")
        assert "expired" not in " ".join(ids.target.requests[begun:])
        ids.judge()
    assert costs[0][1] == costs[1][1]
    assert abs(costs[0][0] - costs[1][0]) < 100
    assert costs[0][1] == {"list": 2, "put_if_absent": 1, "list_folders": 1, "delete": 1}


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.more) for n in range(3, 30))]
)
def test_ids_that_expire_and_come_back(seed: int) -> None:
    """Random lives: what is left is what rounds lead to, and at last it goes on as a store."""
    ids, chance = _Ids(), random.Random(seed)
    for _ in range(30):
        for _ in range(chance.randint(0, 2)):
            ids.write(f"id-{chance.randint(0, 6)}")
        if chance.random() < 0.2:
            ids.expire()
        if chance.random() < 0.2:
            ids.standby = ids.follower()
        ids.standby.follow()
        ids.judge()
    Standby(shown(ids.target)).promote()
    promoted = attach(ids.target, clock=ids.clock)
    for number in range(7):
        ids_ = ids.store.logs.transactions
        head = ids_.head(f"id-{number}")
        assert promoted.logs.transactions.head(f"id-{number}") == head
        if head is None:
            assert promoted.logs.transactions.expired(f"id-{number}") == ids_.expired(
                f"id-{number}"
            )


def leave_behind(number: int) -> bool:
    """Others make rounds at a request of one's round, until what it knows is gone.

    It says so, or its round counts; then it goes on. False: its round has not as many requests.
    """
    ids = _Ids()
    ids.write("first")
    ids.expire()
    first = -1

    def go_on(_: str) -> None:
        if first >= 0 and len(target.requests) == first + number:
            for one in range(KEPT_ROUNDS + 2):
                ids.write(f"id-{one}")
                ids.expire()
                ids.standby.follow()

    target = FaultyStorage(ids.target.inner, before_request=go_on)
    slow = Follower(attach(ids.source, clock=ids.clock), target)
    slow.follow()
    ids.standby.follow()
    ids.write("second")
    first = len(target.requests)
    try:
        slow.follow()
    except StorageError as error:
        assert "run only one" in str(error), error  # noqa: PT017 - or it does well
    is_over = len(target.requests) > first + number
    slow.follow()
    ids.judge()
    return is_over


def test_a_follower_that_others_have_left_behind() -> None:
    """At whichever request."""
    assert next(number for number in itertools.count() if not leave_behind(number)) > 5


def test_a_source_that_is_not_there_deletes_nothing(tmp_path: Path) -> None:
    """Absence proves nothing: the disk is not mounted, or another one is."""
    store, standby, url = open_pair(tmp_path)
    store.topics.create("t")
    with store.producer() as producer:
        producer.send("t", b"one")
    standby.follow()
    (tmp_path / "store").rename(tmp_path / "away")
    with pytest.raises(TxnlogError):
        standby.follow()
    with pytest.raises(StorageError, match="s its disk mounted"):
        standby.sweep()
    (tmp_path / "store").mkdir()
    with pytest.raises(TxnlogError, match="s its disk mounted"):
        standby.follow()
    (tmp_path / "store").rmdir()
    (tmp_path / "away").rename(tmp_path / "store")
    for entry in (tmp_path / "store" / "topics" / "t" / "log").iterdir():
        entry.unlink()
    with pytest.raises(StorageError, match="has lost data"):
        Follower(store, url).follow()
    assert values(txnlog.open(url), "t") == [b"one"]


@pytest.mark.parametrize("goes_on", [True, False], ids=["the-same-process", "another-one"])
@pytest.mark.parametrize("is_known", [True, False], ids=["there", "cleaned"])
def test_a_source_that_was_restored_and_written_to(goes_on: bool, is_known: bool) -> None:
    """Other entries under the same numbers: they are refused, or all of their data is copied."""
    first, target = HeapStorage(), HeapStorage()
    source = ForwardingStorage(first)
    store = attach(source, create=True, clock=VirtualClock(seed=1))
    store.topics.create("t")

    def write(*sent: bytes) -> None:
        for value in sent:
            with store_of(source, seed=value[0]).producer() as producer:
                producer.send("t", value)

    write(b"1")
    backup = first.copy()
    write(b"2", b"3")
    standby = follow(source, target)
    source.inner = backup
    write(b"a", b"b", b"c", b"d")
    if not goes_on:
        standby = Follower(store_of(source, seed=7), target)
    if is_known:
        with pytest.raises(StorageError, match=r"has another entry 3 than the standby has"):
            standby.follow()
        assert values(shown(target), "t") == [b"1", b"2", b"3"]
        return
    log = store_of(source, seed=8).logs.topic("t")
    log.refresh()
    log.checkpoint()
    backup.delete([f"topics/t/log/{number:020}.json" for number in range(4)])
    standby.follow()
    assert values(shown(target), "t") == [b"1", b"a", b"b", b"c", b"d"]


def _trim(store: Store) -> None:
    store.topics.delete_records({TopicPartition("t", 0): 3})


def _compact(store: Store) -> None:
    store.maintenance.compact("t")


def _delete(store: Store) -> None:
    store.topics.delete("t")


def _recreate(store: Store) -> None:
    store.topics.delete("t")
    store.topics.create("t")


@pytest.mark.parametrize("restarted", [False, True], ids=["goes-on", "restarted"])
@pytest.mark.parametrize("release", [_trim, _compact, _delete, _recreate])
def test_what_the_source_has_lost_is_named_until_nothing_leads_to_it(
    tmp_path: Path, release: Callable[[Store], None], restarted: bool
) -> None:
    store, standby, url = open_pair(tmp_path)
    store.topics.create("t", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    for value in (b"one", b"two", b"three"):
        with store.producer() as producer:
            producer.send("t", value, key=b"k")
    lost = next((tmp_path / "store" / "topics" / "t" / "data").rglob("*.log"))
    lost.rename(tmp_path / "backup")
    assert len(standby.follow().lost) == 1
    (tmp_path / "backup").rename(lost)  # so that compaction can read it
    release(store)
    lost.unlink(missing_ok=True)
    if restarted:
        standby = Follower(store, url)
    assert standby.follow().lost == ()
    assert Standby(txnlog.open(url)).reached().lost == ()


@pytest.mark.parametrize("is_settled", [False, True], ids=["recent", "settled"])
@pytest.mark.parametrize("was_open", [False, True], ids=["aborted", "aborted-later"])
def test_what_was_aborted_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, was_open: bool, is_settled: bool
) -> None:
    """Its writer may have slept until its upload was deleted: nobody is shown it."""
    settle_early(monkeypatch)
    source, target = HeapStorage(), HeapStorage()
    store = attach(source, create=True, clock=VirtualClock(seed=1))
    store.topics.create("t")
    gone = begin_with(store, "p", b"gone")
    source.delete([name for name, _ in source.list_all("topics/t/data")])
    standby = Follower(store_of(source, seed=3), target)
    if was_open:
        assert len(standby.follow().lost) == 1, "it may be committed"
    gone.abort_transaction()
    append(store, *(b"one", b"two"))
    for _ in range(12 if is_settled else 0):
        append(store, b"more")
    assert standby.follow().lost == ()
    assert Follower(store_of(source, seed=4), target).follow().lost == ()
    assert values(shown(target), "t")[:2] == [b"one", b"two"]


def flip(path: Path) -> bytes:
    right = path.read_bytes()
    path.write_bytes(right[:-3] + bytes([right[-3] ^ 1]) + right[-2:])
    return right


@pytest.fixture(params=[False, True], ids=["small", "large"])
def is_large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether files are copied in parts."""
    if request.param:
        for module in (copies, data_files):
            monkeypatch.setattr(module, "CHUNK_BYTES", 40)
    return bool(request.param)


@pytest.mark.usefixtures("is_large")
@pytest.mark.parametrize("what", ["data/*/*.log", "manifests/*.arrow"])
def test_what_one_root_has_damaged_is_copied_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    skip_probes(monkeypatch)
    settle_early(monkeypatch)
    make_written(tmp_path, "0")
    for number in range(1, 9):
        write(reopened(tmp_path), str(number))
    damaged = min((tmp_path / FIRST).glob(f"topics/t/{what}"))
    right = flip(damaged)
    assert Follower(reopened(tmp_path), str(tmp_path / "standby")).follow().lost == ()
    name = damaged.relative_to(tmp_path / FIRST)
    assert (tmp_path / "standby" / name).read_bytes() == right


@pytest.mark.usefixtures("is_large")
@pytest.mark.parametrize("again", [False, True])
def test_what_is_damaged_everywhere_is_named_and_copied_anew(
    tmp_path: Path, *, again: bool
) -> None:
    """Some of it can be read until then, by whoever reads the standby."""
    store, standby, url = open_pair(tmp_path)
    store.topics.create("t")
    for value in (b"one", b"two"):
        append(store, value)
    damaged = min((tmp_path / "store").glob("topics/t/data/*/*.log"))
    right = flip(damaged)
    name = str(damaged.relative_to(tmp_path / "store"))
    for _ in range(2):
        assert standby.follow().lost == (name,)
        assert (Path(url) / name).read_bytes() == damaged.read_bytes()
        standby = Follower(store, url) if again else standby
    damaged.write_bytes(right)
    assert standby.follow().lost == ()
    assert (Path(url) / name).read_bytes() == right
    assert values(txnlog.open(url), "t") == [b"one", b"two"]


@pytest.mark.usefixtures("is_large")
@pytest.mark.parametrize("is_mended", [False, True])
def test_what_a_killed_round_has_left_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_mended: bool
) -> None:
    """It may have been damaged at the source, and copied as it was."""
    store, standby, url = open_pair(tmp_path)
    store.topics.create("t")
    for value in (b"one", b"two"):
        append(store, value)
    damaged = min((tmp_path / "store").glob("topics/t/data/*/*.log"))
    name = str(damaged.relative_to(tmp_path / "store"))
    right = flip(damaged)

    def stop(*_: object) -> None:
        raise ProcessStopped

    with monkeypatch.context() as killed:
        killed.setattr(Rounds, "put", stop)
        with pytest.raises(ProcessStopped):
            standby.follow()
    assert (Path(url) / name).read_bytes() == damaged.read_bytes()
    if not is_mended:
        assert Follower(store, url).follow().lost == (name,)
    damaged.write_bytes(right)
    assert Follower(store, url).follow().lost == ()
    assert (Path(url) / name).read_bytes() == right
    assert values(txnlog.open(url), "t") == [b"one", b"two"]


@pytest.mark.usefixtures("is_large")
def test_what_cannot_be_read_at_a_standby_is_copied_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed round has left it: no later one fails for it."""
    store, standby, url = open_pair(tmp_path)
    store.topics.create("t")
    for value in (b"one", b"two"):
        append(store, value)

    def stop(*_: object) -> None:
        raise ProcessStopped

    with monkeypatch.context() as killed:
        killed.setattr(Rounds, "put", stop)
        with pytest.raises(ProcessStopped):
            standby.follow()
    broken = min(Path(url).glob("topics/t/data/*/*.log"))
    right = broken.read_bytes()
    break_sector(monkeypatch, broken)
    assert Follower(store, url).follow().lost == ()
    assert broken.read_bytes() == right
    assert values(txnlog.open(url), "t") == [b"one", b"two"]


def test_what_a_round_shows_is_replaced_in_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may be killed at any time: what was damaged is there, or whole, and never gone."""
    store, standby, url = open_pair(tmp_path)
    store.topics.create("t")
    append(store, b"one")
    damaged = min((tmp_path / "store").glob("topics/t/data/*/*.log"))
    right = flip(damaged)
    name = str(damaged.relative_to(tmp_path / "store"))
    assert standby.follow().lost == (name,)
    damaged.write_bytes(right)
    deleted: list[str] = []
    delete = LocalStorage.delete

    def note(storage: LocalStorage, paths: Iterable[str]) -> None:
        paths = [*paths]
        deleted.extend(paths)
        delete(storage, paths)

    monkeypatch.setattr(LocalStorage, "delete", note)
    assert standby.follow().lost == ()
    assert (Path(url) / name).read_bytes() == right
    assert name not in deleted


def test_what_is_copied_is_read_once(*, is_large: bool) -> None:
    """And judged as it passes by, or where it was put."""
    read = Counter[str]()

    class Counting(ForwardingStorage):
        def get_range(self, name: str, start: int, stop: int) -> bytes:
            found = self.inner.get_range(name, start, stop)
            read[name] += len(found)
            return found

    source = HeapStorage()
    store = attach(source, create=True, clock=VirtualClock())
    store.topics.create("t")
    append(store, b"%0900d" % 1)
    follow(Counting(source), HeapStorage())
    ((name, size_bytes),) = source.list_all("topics/t/data")
    assert (read[name], size_bytes > 40) == (size_bytes, True), is_large


def test_a_file_that_the_source_has_lost_is_named(tmp_path: Path) -> None:
    store, standby, url = open_pair(tmp_path)
    store.topics.create("t")
    for value in (b"one", b"two"):
        with store.producer() as producer:
            producer.send("t", value)
    lost = next((tmp_path / "store" / "topics" / "t" / "data").rglob("*.log"))
    lost.rename(tmp_path / "backup")
    done = standby.follow()
    assert len(done.lost) == 1
    assert Standby(txnlog.open(url)).reached().lost == done.lost
    assert Follower(store, url).follow().lost == done.lost
    (tmp_path / "backup").rename(lost)
    assert standby.follow().lost == ()
    assert sorted(values(txnlog.open(url), "t")) == [b"one", b"two"]


def test_a_log_that_goes_on_while_lost_data_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refreshed then, and its round would show entries without their data."""
    source, target = HeapStorage(), HeapStorage()
    store = attach(source, create=True, clock=VirtualClock(seed=1))
    store.topics.create("t")

    def write(value: bytes) -> None:
        with store.producer() as producer:
            producer.send("t", value)

    write(b"one")
    source.delete([name for name, _ in source.list_all("topics/t/data")])
    write(b"two")
    judge = DataFileCopier._judge_missing

    def judge_late(*of: Any) -> None:
        write(b"three")
        judge(*of)

    monkeypatch.setattr(DataFileCopier, "_judge_missing", judge_late)
    standby = Follower(store_of(source, seed=4), target)
    monkeypatch.setattr(standby, "_copy_ahead", lambda _: None)
    assert len(standby.follow().lost) == 1
    copy = shown(target)
    end = copy.topics.describe("t").partitions[0].end_offset
    found = copy.scan("t", {TopicPartition("t", 0): 1}).to_arrow()
    assert found.column("value").to_pylist() == [b"two", b"three"][: end - 1]


@pytest.mark.few(1)
@pytest.mark.parametrize("is_made_anew", [False, True], ids=["deleted", "made anew"])
@pytest.mark.parametrize("what", ["first round", "later round", "sweep"])
def test_a_topic_is_deleted_before_any_request(
    monkeypatch: pytest.MonkeyPatch, what: str, is_made_anew: bool
) -> None:
    """Nothing of what it had is there any more: it is noticed, and the next call goes on."""
    settle_early(monkeypatch)
    made, target = HeapStorage(), HeapStorage()
    store = attach(made, create=True, clock=VirtualClock())
    store.topics.create("t", config={"file.delete.delay.ms": 0})
    write_many(store)
    if what != "first round":
        follow(made, target)
        write_many(store)
        store.topics.delete_records({TopicPartition("t", 0): 10})
        store.maintain()

    heap, left = made, 0

    def end_it(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            source = store_of(heap, seed=4)
            source.topics.delete("t")
            if is_made_anew:
                source.topics.create("t")
                write_many(source)
            source.maintain()

    for number in itertools.count(1):
        heap, copy = made.copy(), target.copy()
        reader = FaultyStorage(heap, {}, before_request=end_it)
        standby = Follower(store_of(reader, seed=3), copy)
        left = number
        with suppress(StorageError):
            standby.sweep() if what == "sweep" else standby.follow()
        if left > 0:
            assert number > 20
            break
        standby.follow()
        assert shown(copy).topics.list() == ["t"] * is_made_anew, (number, reader.requests)
        standby.sweep()


def test_a_sweep_beside_another_one_who_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data of the follower's next round was deleted at the source since: its round is lost."""
    clock, source, target = VirtualClock(seed=1), HeapStorage(), HeapStorage()
    source.time_ms = lambda: clock.time_ms
    store = attach(source, create=True, clock=clock)
    store.topics.create("t", config={"file.delete.delay.ms": 0})
    sweeps = follow(source, target)
    with store.producer() as producer:
        producer.send("t", b"one")
    slow = Follower(store_of(source, seed=4), target)
    put = Rounds.put

    def put_late(rounds: Rounds, entry: Round) -> bool:
        monkeypatch.setattr(Rounds, "put", put)
        store.topics.delete_records({TopicPartition("t", 0): 1})
        for _ in range(2):
            clock.time_ms += 100 * 86_400_000
            store.maintain()
        assert sweeps.sweep() == 1
        return put(rounds, entry)

    monkeypatch.setattr(Rounds, "put", put_late)
    with pytest.raises(StorageError, match="written by another process"):
        slow.follow()
    assert values(shown(target), "t") == []
    slow.follow()
    states = {one.state for one in shown(target).examine(with_probe=False)}
    assert not states & {"damage", "unreadable"}


class _ShowsNoData(ForwardingStorage):
    """A disk that lists no data files just now."""

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        return iter(()) if folder.endswith("/data") else self.inner.list_all(folder)


def test_a_sweep_keeps_what_the_source_does_not_show_but_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its disk may not be mounted: a sweep beside another one who is about to put a round."""
    source, target = HeapStorage(), HeapStorage()
    store = attach(source, create=True, clock=VirtualClock(seed=1))
    store.topics.create("t")
    sweeps = follow(_ShowsNoData(source), target)
    with store.producer() as producer:
        producer.send("t", b"one")
    slow = Follower(store_of(source, seed=4), target)
    put, swept = Rounds.put, []

    def put_late(rounds: Rounds, entry: Round) -> bool:
        monkeypatch.setattr(Rounds, "put", put)
        swept.append(sweeps.sweep())
        return put(rounds, entry)

    monkeypatch.setattr(Rounds, "put", put_late)
    slow.follow()
    assert swept == [0]
    assert values(shown(target), "t") == [b"one"]


# -- promotion -----------------------------------------------------------------------------------


def judge_late_follower() -> None:
    """Whoever follows, and had not heard of a promotion, changes nothing in the new store."""
    target = TARGET.copy()
    late = Follower(store_of(SOURCE, seed=7), target)
    late.follow()
    promote(target)
    with store_of(target, seed=12).producer() as producer:
        producer.send("b", b"its own")
    with suppress(IllegalState):
        late.follow()
    late.sweep()
    assert values(store_of(target, seed=13), "b")[-1] == b"its own"


def test_without_the_last_round_a_promotion_fences_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken variant of Y4: what the new store has written is swept away."""
    judge_late_follower()
    put = Rounds.put

    def put_rounds_alone(rounds: Rounds, entry: Round | Promoted) -> bool:
        return isinstance(entry, Promoted) or put(rounds, entry)

    monkeypatch.setattr(Rounds, "put", put_rounds_alone)
    with pytest.raises((TxnlogError, AssertionError)):
        judge_late_follower()


def test_promotion_tells_what_is_missing_and_fences(tmp_path: Path) -> None:
    store, standby, url = open_pair(tmp_path)
    store.topics.create("t")
    with store.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"one")
        standby.follow()
        copy = txnlog.open(url)
        with producer.transaction():
            producer.send("t", b"two")
        epoch = store.transactions.describe("x").producer_epoch
    done = Standby(copy).promote()
    assert done.missing == {TopicPartition("t", 0): 1}
    assert (done.round, done.unfinished) == (0, ())
    with pytest.raises(IllegalState, match="was promoted"):
        standby.follow()
    again = txnlog.open(url)
    assert not isinstance(again.storage, StandbyStorage)
    with again.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"other")
    assert again.transactions.describe("x").producer_epoch == epoch + 1
    assert values(again, "t") == [b"one", b"other"]
    assert values(copy, "t") == [b"one", b"other"], "who has it open reads on"
    with pytest.raises(StorageError, match="open it again"):
        copy.topics.create("u")
    assert not [one for one in again.examine() if one.state not in ("ok", "note")]


def test_promotion_tells_what_is_missing_of_a_source_with_replicas(tmp_path: Path) -> None:
    """Its URL is the controller's, which holds no store itself."""
    store = open_replicas(
        [tmp_path / "a", str(tmp_path / "b")], create=True, controller=str(tmp_path / "controller")
    ).store
    store.topics.create("t")
    Follower(store, tmp_path / "standby").follow()
    with store.producer() as producer:
        producer.send("t", b"one")
    done = Standby(txnlog.open(tmp_path / "standby")).promote(dry_run=True)
    assert (done.missing, done.why_unknown) == ({TopicPartition("t", 0): 1}, "")


def test_promotion_without_the_source(tmp_path: Path) -> None:
    store, standby, url = open_pair(tmp_path)
    store.topics.create("t")
    standby.follow()
    (tmp_path / "store").rename(tmp_path / "away")
    done = Standby(txnlog.open(url)).promote()
    assert done.missing is None
    assert done.why_unknown
    txnlog.open(url).topics.create("u")


def test_each_try_begins_where_the_last_one_has_stopped() -> None:
    """Half of the requests that copy data fail, and the process is killed half of the time."""
    source, target = PREPARED.copy(), HeapStorage()
    follow(source, target)
    with store_of(source, seed=15).producer() as producer:
        for number in range(12):
            producer.send("b", b"%d" % number)
            producer.flush()
    copied: Counter[str] = Counter()
    tries = 0

    class Failing(ForwardingStorage):
        def put_if_absent(self, name: str, data: bytes) -> bool:
            if "/data/" not in name:
                return super().put_if_absent(name, data)
            copied[name] += 1
            if len(copied) % 2 and copied[name] == 1:
                raise StorageError(f"{name}: injected")
            return super().put_if_absent(name, data)

    for_each = Follower(store_of(source, seed=3), Failing(target))
    while True:
        tries += 1
        try:
            for_each.follow()
            break
        except StorageError:
            if tries % 2:
                for_each = Follower(store_of(source, seed=3), Failing(target))
    assert tries <= 12
    assert max(copied.values()) <= 2, "what was there was not copied again"
    assert {*values(shown(target), "b")} >= {b"%d" % number for number in range(12)}


# -- crash points --------------------------------------------------------------------------------


def a_run() -> tuple[HeapStorage, HeapStorage]:
    """A source in which something has happened since its standby has followed."""
    source, target = PREPARED.copy(), HeapStorage()
    follow(source, target)
    copy_all(store_of(source), abort_once=True)
    return source, target


SOURCE, TARGET = a_run()
OTHER_FAULTS = (Fault.LOSE_RESPONSE, Fault.FAIL)


def requests_of(job: Callable[[Storage], object]) -> int:
    faulty = FaultyStorage(TARGET.copy())
    job(faulty)
    return len(faulty.requests)


def follow_on(target: Storage) -> None:
    follow(SOURCE, target, seed=7)


def promote(target: Storage) -> None:
    Standby(shown(target)).promote()


def failed_at_each_request(
    job: Callable[[Storage], object], fault: Fault
) -> Iterator[tuple[HeapStorage, str]]:
    """What a job leaves of the standby that fails at one of its requests, and which that was."""
    for number in range(requests_of(job)):
        target = TARGET.copy()
        faulty = FaultyStorage(target, {number: fault})
        context = f"{fault.value}: request {number}"
        try:
            job(faulty)
        except (ProcessStopped, TxnlogError) as error:
            context = f"{context}: {faulty.requests[-1]}: {error!r}"
        yield target, context


@pytest.mark.parametrize(
    "fault",
    [
        Fault.STOP_AFTER,
        pytest.param(Fault.STOP_BEFORE, marks=pytest.mark.slow),
        *(pytest.param(fault, marks=pytest.mark.more) for fault in OTHER_FAULTS),
    ],
)
def test_a_round_fails_at_each_request(fault: Fault) -> None:
    """It shows one round or the next; the next process goes on."""
    for target, context in failed_at_each_request(follow_on, fault):
        copy = find_at(target)
        assert copy is not None, context
        check_whole_transactions(copy, context)
        assert values(store_of(copy), "a") in ([], values(store_of(SOURCE), "a")), context
        follow(SOURCE, target, seed=8)
        copy = find_at(target)
        assert copy is not None
        judge(copy, context)


@pytest.mark.more
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault.STOP_BEFORE, marks=pytest.mark.slow),
        Fault.STOP_AFTER,
        Fault.LOSE_RESPONSE,
    ],
)
def test_a_promotion_fails_at_each_request(fault: Fault) -> None:
    """It is a standby until it is a store, with the same in it, and nobody follows any more."""
    for target, context in failed_at_each_request(promote, fault):
        try:
            target.size("txnlog.json")
        except ObjectNotFound:
            copy = shown(target)
            assert values(copy, "a") == [], context
            Standby(copy).promote()
        with pytest.raises(IllegalState):
            follow_on(target)
        copy_all(store_of(target, seed=11))
        judge(target, context)


@pytest.mark.parametrize("number", range(4))
def test_a_follower_that_sleeps_over_a_promotion_changes_nothing(number: int) -> None:
    """It was about to put its data, its logs or its round, and wakes up in a store of its own."""
    told = FaultyStorage(TARGET.copy())
    follow_on(told)
    puts = [at for at, text in enumerate(told.requests) if text.startswith("put_if_absent")]
    at = puts[(len(puts) - 1) * number // 3]
    target = TARGET.copy()

    def meanwhile(_: Fault) -> None:
        promote(target)
        copy_all(store_of(target, seed=12))

    faulty = FaultyStorage(target, {at: Fault.PAUSE}, on_wait=meanwhile)
    with pytest.raises(TxnlogError):
        follow_on(faulty)
    judge(target, f"request {at}")
    store = store_of(target, seed=13)
    assert not [one for one in store.examine() if one.state not in ("ok", "note")]


@pytest.mark.parametrize("folder", ["topics/t/log/", "groups/g/", "transactions/p/"])
def test_a_power_cut_at_the_source_takes_nothing_that_a_round_has_shown(folder: str) -> None:
    """A writer died between its put and the sync: after the cut others have the number."""
    source, target = HeapStorage(), HeapStorage()
    store = attach(source, create=True, clock=VirtualClock())
    store.topics.create("t")
    faulty = FaultyStorage(source)

    def die(text: str) -> None:
        if text.startswith(f"put_if_absent {folder}") and not faulty.faults:
            number = len(faulty.requests)
            faulty.faults = {number: Fault.SYNC_FAILS, number + 1: Fault.STOP_BEFORE}

    faulty._before_request = die
    with pytest.raises(ProcessStopped):
        copy_once(attach(faulty, clock=VirtualClock(seed=6)), b"not acknowledged")
    assert [name for name in source.unsynced if name.startswith(folder)]
    follow(source, target)
    before = values(shown(target))
    source.power_cut()
    copy_once(store_of(source, 8), b"acknowledged")
    follow(source, target, 9)
    assert values(shown(target)) == [*before, b"acknowledged"] == values(store_of(source))


def copy_once(store: Store, value: bytes) -> None:
    """A transaction, with a group's offset."""
    producer = begin_with(store, "p", value)
    producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "g")
    producer.commit_transaction()
