"""Processes that only read decide nothing: they may see fewer of the roots than others do."""

from __future__ import annotations

import ast
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import txnlog
from tests.support.checkout import ROOT
from tests.support.cli.cli_command import cli
from tests.support.replication.replica_folders import lose, make, skip_probes, values, write
from tests.support.replication.replica_world import CONTROLLER, LAG_MS, Roots
from tests.support.replication.world_entries import entry_name, entry_of
from txnlog.errors import NotEnoughReplicas, StorageError
from txnlog.names import TopicPartition
from txnlog.replication import Replicas, open_replicas, root_names
from txnlog.replication.roots.epochs import FACTOR, MIN_INSYNC, UNCLEAN, root_of
from txnlog.replication.roots.replicated_storage import ReplicatedStorage, find_replicated
from txnlog.spark.setup_check import _Worker
from txnlog.store import attach
from txnlog.testing import VirtualClock
from txnlog.write.coordinator import Coordinator

pytestmark = pytest.mark.rule("R15", "R16")

LOG = "topics/t/log"


class Clock(VirtualClock):
    """Something happens while somebody sleeps."""

    def later(self, in_ms: int, call: Callable[[], object]) -> None:
        self._due = self.now_ms() + in_ms, call

    _due: tuple[int, Callable[[], object]] | None = None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        due, self._due = self._due, None
        if due is not None and self.now_ms() >= due[0]:
            due[1]()
        else:
            self._due = due


class Seen:
    """A store with a topic at three roots; ``reader`` observes, and may be cut off from some."""

    def __init__(self, **settings: str) -> None:
        self.clock = Clock()
        self.roots = Roots(3, settings)
        self.store = attach(self.roots.plain(self.clock, "writer"), create=True, clock=self.clock)
        self.store.topics.create("t", partitions=1)
        self.write("1")

    def reading(self) -> ReplicatedStorage:
        return self.roots.plain(self.clock, "reader", observes=True)

    def open(self) -> txnlog.Store:
        return attach(self.reading(), clock=self.clock)

    def write(self, value: str) -> None:
        write(self.store, value)

    def hide(self, *roots: str) -> None:
        self.roots.cut.update(("reader", root) for root in roots)

    def in_sync(self) -> set[str]:
        return {root_of(member) for member in self.roots.epoch().in_sync}


@pytest.mark.parametrize("hidden", ["bc", "ab", "a", "c", "abc"])
def test_who_reads_puts_out_no_root_that_others_reach(hidden: str) -> None:
    """Else those who write would be refused, with all their roots in order."""
    seen = Seen(**{MIN_INSYNC: "2"})
    store = seen.open()
    before = seen.roots.epoch()
    seen.hide(*hidden)
    seen.store.topics.create("u", partitions=1)
    says = r"`txnlog maintain`, or `txnlog replicas remove [abc]`\)"
    for read in (lambda: values(seen.open()), lambda: store.scan("u")):
        with pytest.raises(NotEnoughReplicas, match=says):
            read()
    assert seen.roots.epoch() == before
    seen.write("2")
    seen.roots.cut.clear()
    assert values(seen.open()) == ["1", "2"]


def test_who_reads_holds_no_election() -> None:
    """What is acknowledged is not at the root that it sees, which was in sync long ago."""
    seen = Seen(**{UNCLEAN: "true"})
    seen.roots.down.add("c")
    seen.write("2")
    assert seen.in_sync() == {"a", "b"}
    seen.roots.down.clear()
    seen.hide("a", "b")
    with pytest.raises(NotEnoughReplicas, match="puts out no root"):
        values(seen.open())
    assert seen.in_sync() == {"a", "b"}
    assert values(seen.store) == ["1", "2"]


def test_a_write_puts_out_what_a_reader_has_missed() -> None:
    seen = Seen()
    seen.roots.down.add("b")
    with pytest.raises(NotEnoughReplicas):
        values(seen.open())
    assert seen.in_sync() == {"a", "b", "c"}
    seen.write("2")
    assert seen.in_sync() == {"a", "c"}
    assert values(seen.open()) == ["1", "2"]


def test_a_reader_waits_for_those_who_write() -> None:
    """As long as they may take to find out that a root is gone, and then its successor."""
    seen = Seen()
    seen.roots.down.add("a")
    seen.clock.later(2 * LAG_MS, lambda: seen.write("2"))
    assert values(seen.open()) == ["1", "2"]
    assert seen.in_sync() == {"b", "c"}


def test_it_goes_on_with_what_all_were_seen_to_have() -> None:
    seen = Seen()
    storage = seen.reading()
    store = attach(storage, clock=seen.clock)
    assert values(store) == ["1"]
    began_s = seen.clock.monotonic_s()
    seen.hide("b")
    assert values(store) == ["1"]
    assert seen.clock.monotonic_s() - began_s < LAG_MS / 1000
    assert seen.in_sync() == {"a", "b", "c"}


def test_it_shows_nothing_that_a_root_may_lack_which_it_does_not_see() -> None:
    """The writer has died: if that root leads next, the entry was never there."""
    seen = Seen()
    storage = seen.reading()
    known = storage.list_names(LOG)
    seen.hide("b")
    assert storage.list_names(LOG) == known
    newest = f"{LOG}/{entry_name(len(known))}"
    seen.roots.heap("a-0").put_if_absent(newest, entry_of("x", "dead"))
    with pytest.raises(NotEnoughReplicas, match="replica b-0"):
        storage.list_names(LOG)
    seen.roots.cut.clear()
    assert f"{LOG}/{storage.list_names(LOG)[-1]}" == newest
    assert seen.roots.heap("b-0").get(newest)


def test_data_may_be_at_the_root_that_it_does_not_see() -> None:
    seen = Seen(**{FACTOR: "1"})
    storage = seen.reading()
    storage.list_names("topics/t/data/0")
    seen.hide("b", "c")
    with pytest.raises(NotEnoughReplicas, match="only reads"):
        storage.list_names("topics/t/data/0")


def test_an_empty_folder_at_the_leader_is_not_believed() -> None:
    """Where no follower answers, none shows that the leader has lost something."""
    seen = Seen()
    storage = seen.reading()
    assert storage.list_names(LOG)
    seen.hide("b", "c")
    leaders = seen.roots.heap("a-0")
    leaders.delete([name for name, _ in leaders.list_all("")])
    with pytest.raises(NotEnoughReplicas, match="leader a-0"):
        storage.list_names(LOG)


def test_what_it_sees_itself_it_judges() -> None:
    """A root that answers, and has other bytes than the leader: everybody would find that."""
    seen = Seen()
    newest = f"{LOG}/{seen.reading().list_names(LOG)[-1]}"
    seen.roots.heap("b-0").delete([newest])
    seen.roots.heap("b-0").put_if_absent(newest, entry_of("x", "dead"))
    assert seen.reading().get(newest) == seen.roots.heap("a-0").get(newest)
    assert seen.in_sync() == {"a", "c"}


# -- without the controller ----------------------------------------------------------------------


def test_everything_can_be_read_without_the_controller_while_all_roots_answer() -> None:
    """Also by who has just come; and nothing is written."""
    seen = Seen()
    store = seen.open()
    assert values(store) == ["1"]
    seen.write("2")
    seen.hide(CONTROLLER)
    newcomer = seen.open()
    for one in (store, newcomer):
        assert values(one) == ["1", "2"]
    with pytest.raises(StorageError, match="is down"):
        newcomer.topics.create("u", partitions=1)
    assert seen.store.topics.list() == ["t"]
    seen.hide("c")
    with pytest.raises(StorageError, match=r"is down\. Without it .*: c must answer"):
        values(store)


def test_who_reads_without_the_controller_follows_those_who_write() -> None:
    """Others put the leader out, and write: their epoch is at all roots before that counts."""
    seen = Seen()
    store = seen.open()
    assert values(store) == ["1"]
    seen.hide(CONTROLLER)
    seen.roots.down.add("a")
    seen.write("2")
    seen.roots.down.clear()
    assert values(store) == ["1", "2"]


def test_the_controller_is_asked_again_when_a_while_has_passed() -> None:
    seen = Seen()
    storage = seen.reading()
    storage.list_names(LOG)
    seen.hide(CONTROLLER)
    storage.list_names(LOG)
    assert "is down" in str(storage.agreement.lost)
    seen.roots.cut.clear()
    storage.list_names(LOG)
    assert storage.agreement.lost
    seen.clock.sleep(2 * LAG_MS / 1000)
    storage.list_names(LOG)
    assert storage.agreement.lost is None


@pytest.mark.parametrize("act", ["put", "put_if_absent", "confirm", "delete"])
def test_what_is_written_needs_the_controller(act: str) -> None:
    """Also where nobody has said that it will write."""
    seen = Seen()
    storage = seen.reading()
    storage.list_names(LOG)
    seen.hide(CONTROLLER)
    given = {"put": ("x", b""), "put_if_absent": ("x", b""), "delete": ([f"{LOG}/x"],)}
    with pytest.raises(StorageError, match="is down"):
        getattr(storage, act)(*given.get(act, (f"{LOG}/{entry_name(0)}",)))


def test_operators_are_told_what_can_be_known(folder: Path) -> None:
    """Epochs as roots keep them, what is wrong, and what to do; everything else is examined."""
    Replicas(txnlog.open(str(folder / "a"))).elect("r1")
    Replicas(txnlog.open(str(folder / "a"))).alter({"replica.lag.time.max.ms": 70})
    write(txnlog.open(str(folder / "a")), "2")
    lose(folder / "control")
    found = cli("replicas", "describe", "--history", "--store", folder / "a", "-o", "json")
    assert found.code == 1
    told = json.loads(found.out)
    assert told["condition"] == "no controller"
    assert [epoch["epoch"] for epoch in told["epochs"]] == [0, 2]
    assert "`txnlog replicas recover` makes it anew" in found.err
    assert "under others nothing was written" in found.err
    found = cli("doctor", "--store", folder / "a", "-o", "jsonl")
    assert found.code == 1
    findings = [json.loads(line) for line in found.out.splitlines()]
    by_check = {(one["check"], one["state"]): one["detail"] for one in findings}
    assert {state for _, state in by_check} == {"ok", "unreadable"}
    assert "it was not tried: the controller at" in by_check["probe", "unreadable"]
    assert "`txnlog replicas recover` makes it anew" in by_check["replicas", "unreadable"]
    assert ("topic", "ok") in by_check


@pytest.mark.parametrize("which", ["a", "control"])
def test_another_process_reads_without_the_controller_too(folder: Path, which: str) -> None:
    """One of Spark's, which was sent the storage: however the store was opened."""
    sent = pickle.dumps(txnlog.open(str(folder / which)).storage)
    lose(folder / "control")
    found = attach(pickle.loads(sent))
    assert values(found) == ["1"]
    assert values(attach(pickle.loads(pickle.dumps(found.storage)))) == ["1"]
    with pytest.raises(StorageError, match="is the controller's disk mounted"):
        write(found, "2")
    bring_back = lose(folder / "b")
    with pytest.raises(StorageError, match="r1 must answer"):
        values(attach(pickle.loads(sent)))
    bring_back()


CHANGES: dict[str, Callable[[Replicas], object]] = {
    "add": lambda replicas: replicas.add("r9"),
    "remove": lambda replicas: replicas.remove("r1", force=True),
    "reassign": lambda replicas: replicas.reassign(),
    "elect": lambda replicas: replicas.elect("r1"),
    "alter": lambda replicas: replicas.alter({FACTOR: 1}),
    "move_controller": lambda replicas: replicas.move_controller("elsewhere"),
    "forget": lambda replicas: replicas.forget("r1-0"),
    "verify": lambda replicas: [*replicas.verify(repair=True)],
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_operators_change_needs_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Else one who does not reach it deletes copies on which those rely who do."""
    skip_probes(monkeypatch)
    monkeypatch.chdir(tmp_path)
    make(tmp_path, **{FACTOR: 2})
    lose(tmp_path / "control")
    replicas = open_replicas(str(tmp_path / "a"))
    assert replicas.describe().condition == "no controller"
    with pytest.raises(StorageError, match="is gone: is the controller's disk mounted") as found:
        CHANGES[change](replicas)
    assert "while all roots answer" not in str(found.value)
    assert open_replicas(str(tmp_path / "a")).describe().leader == "r0-0"


def test_a_controller_that_is_behind_the_roots_is_refused() -> None:
    """One from a backup, for example: readers do not go by it. A root that is away is not asked."""
    seen = Seen()
    took = dict(seen.roots.controller._folders[root_names.EPOCHS])
    Seen.reading(seen).list_names(LOG)
    seen.roots.down.add("c")
    seen.write("2")
    seen.roots.down.clear()
    heap = seen.roots.controller
    later = [name for name in heap.list_names(root_names.EPOCHS) if name not in took]
    heap.delete([f"{root_names.EPOCHS}/{name}" for name in later])
    for hidden in ("", "a"):
        seen.hide(*hidden)
        with pytest.raises(StorageError, match="has an epoch 1 that the controller"):
            seen.reading().list_names(LOG)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    skip_probes(monkeypatch)
    store = make(tmp_path, **{"replica.lag.time.max.ms": 50})
    store.topics.create("t", partitions=1)
    write(store, "1")
    return tmp_path


@pytest.mark.more
def test_commands_that_read_leave_the_set_and_maintain_mends_it(folder: Path) -> None:
    url = str(folder / "control")
    reads = ["records", "read", "t", "--store", url]
    observer = txnlog.open(url, clock=VirtualClock())
    lose(folder / "b")
    refused, unknown = cli(*reads), cli("replicas", "verify", "--store", url)
    assert (refused.code, unknown.code) == (1, 1)
    assert "`txnlog maintain`" in refused.err
    assert "r1-0" in unknown.err
    assert "cannot be compared" in unknown.err
    for plan in (("maintain",), ("topics", "delete", "t"), ("topics", "merge", "t")):
        assert cli(*plan, "--dry-run", "--store", url).code == 1
    assert {*Replicas(observer).describe().in_sync} == {"r0-0", "r1-0"}
    mended = cli("maintain", "--store", url)
    assert (mended.code, "cannot be compared" in mended.err) == (1, True)
    assert cli("maintain", "--store", url).code == 0
    assert {*Replicas(observer).describe().in_sync} == {"r0-0"}
    shown = cli(*reads, "-o", "jsonl")
    assert (shown.code, shown.out.count("\n")) == (0, 1)


def test_verbs_that_are_no_observers_change_something() -> None:
    """Whoever adds one decides; none of these does nothing but read, under all of its options."""
    files = [*(ROOT / "cli/commands").rglob("*.py")]
    files += (ROOT / "txnlog/replication/commands").glob("*.py")
    texts = [path.read_text() for path in files]
    assert {
        function.name
        for text in texts
        for function in ast.parse(text).body
        if isinstance(function, ast.FunctionDef)
        and ".open_store(" in (ast.get_source_segment(text, function) or "")
    } == {
        "_change",
        "_open_store",
        "_rebuild_placed",
        "abort_transaction",
        "add_partitions",
        "add_schema",
        "alter_topic",
        "compact_topic",
        "configure",
        "create_topic",
        "delete_groups",
        "delete_offsets",
        "delete_schema",
        "delete_topic",
        "import_folders",
        "maintain_store",
        "merge_segments",
        "promote_standby",
        "publish_table",
        "purge_keys",
        "read_records",
        "remove_members",
        "run_bridge",
        "seek_group",
        "serve_catalog",
        "serve_pages",
        "translate_group",
        "trim_records",
        "verify_replicas",
        "write_records",
    }


def test_who_tries_an_executor_out_puts_out_nothing(folder: Path) -> None:
    """It may be the one host on which a disk is not mounted."""
    tell = _Worker(txnlog.open(str(folder / "control")))
    bring_back = lose(folder / "b")
    [said] = tell(iter([pa.RecordBatch.from_pylist([{"id": 1}])]))
    assert "NotEnoughReplicas" in said["error"][0].as_py()
    bring_back()
    assert {*Replicas(txnlog.open(str(folder / "control"))).describe().in_sync} == {"r0-0", "r1-0"}


@pytest.mark.parametrize("writes", [False, True])
def test_it_stays_one_in_another_process(*, writes: bool) -> None:
    """And the tasks of a job that writes decide as it does."""
    storage = Seen().reading()
    if writes:
        storage.will_write()
    made, arguments = storage.__reduce__()[:2]
    found = find_replicated(made(*arguments))  # type: ignore[operator, misc]
    assert found is not None
    assert found.agreement.observes is not writes


# -- who writes ----------------------------------------------------------------------------------


def transact(store: txnlog.Store) -> None:
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    with producer.transaction():
        producer.send("t", b"1")


def commit(store: txnlog.Store) -> None:
    consumer = store.consumer(group_id="g", auto_offset_reset="earliest")
    consumer.assign([TopicPartition("t", 0)])
    consumer.commit({TopicPartition("t", 0): 1})


def join(store: txnlog.Store) -> None:
    store.consumer("t", group_id="h").poll(timeout_ms=0)


def abort(store: txnlog.Store) -> None:
    store.transactions.abort("hangs", reason="a test", force=True)


def coordinate(store: txnlog.Store) -> None:
    """As jobs of Spark do."""
    Coordinator(store.logs, "spark", 60_000).initialize()


WRITES: dict[str, Callable[[txnlog.Store], object]] = {
    "send": lambda store: write(store, "2"),
    "transact": transact,
    "commit": commit,
    "join": join,
    "coordinate": coordinate,
    "maintain": lambda store: [*store.maintain()],
    "topics.create": lambda store: store.topics.create("u"),
    "topics.alter": lambda store: store.topics.alter("t", partitions=2),
    "topics.delete": lambda store: store.topics.delete("t"),
    "topics.delete_records": lambda store: store.topics.delete_records({TopicPartition("t", 0): 1}),
    "groups.reset_offsets": lambda store: store.groups.reset_offsets("g", "t", to="earliest"),
    "groups.delete": lambda store: store.groups.delete("g"),
    "groups.delete_offsets": lambda store: store.groups.delete_offsets("g", ["t:0"]),
    "groups.remove_members": lambda store: store.groups.remove_members("h"),
    "groups.expire": lambda store: store.groups.expire(older_than_ms=0),
    "maintenance.compact": lambda store: store.maintenance.compact("c"),
    "maintenance.merge": lambda store: store.maintenance.merge("t"),
    "maintenance.purge": lambda store: store.maintenance.purge("t", [{"key": b"k"}]),
    "transactions.abort": abort,
    "transactions.end_hanging": lambda store: [*store.transactions.end_hanging()],
    "transactions.expire_ids": lambda store: [*store.transactions.expire_ids()],
    "schemas.add": lambda store: store.schemas.add("s", '"string"'),
    "schemas.delete": lambda store: store.schemas.delete("old"),
    "schemas.set_compatibility": lambda store: store.schemas.set_compatibility("NONE"),
}
READS = {
    *("topics.list", "topics.describe", "topics.describe_all", "topics.segments", "topics.log"),
    *("topics.disk_usage", "topics.offsets", "topics.plan_delete_records"),
    *("groups.list", "groups.describe", "groups.describe_all", "groups.history"),
    *("transactions.list", "transactions.describe", "transactions.history"),
    *("transactions.producers", "transactions.hanging", "transactions.stable_offsets"),
    *("schemas.by_id", "schemas.version", "schemas.list", "schemas.compatibility"),
    *("schemas.check", "schemas.pinned", "kafka.export_topic"),
    *("tables.publish_delta", "tables.publish_iceberg"),
}
TESTED_ELSEWHERE = {"kafka.import_topic"}
"""It needs a folder of Kafka's."""


def test_each_method_is_known_to_read_or_to_write() -> None:
    store = Seen().store
    admins = ("topics", "groups", "maintenance", "transactions", "schemas", "kafka", "tables")
    found = {
        f"{admin}.{name}"
        for admin in admins
        for name, method in vars(type(getattr(store, admin))).items()
        if not name.startswith("_") and callable(method)
    }
    plain = {"coordinate", "send", "transact", "commit", "join", "maintain"}
    assert found == (WRITES.keys() - plain) | READS | TESTED_ELSEWHERE


@pytest.mark.parametrize("which", WRITES)
def test_who_writes_needs_nobody_else(which: str) -> None:
    """The leader is gone, and what is written by is read first: from the one that it elects."""
    seen = Seen()
    seen.store.topics.create("c", config={"cleanup.policy": "compact"})
    seen.store.schemas.add("old", '"string"')
    commit(seen.store)
    join(seen.store)
    hanging = seen.store.producer(transactional_id="hangs")
    hanging.init_transactions()
    hanging.begin_transaction()
    hanging.send("t", b"1")
    hanging.flush()
    store = attach(seen.roots.plain(seen.clock, "fresh", observes=True), clock=seen.clock)
    seen.roots.down.add("a")
    WRITES[which](store)
    assert seen.in_sync() == {"b", "c"}


def test_who_makes_the_store_needs_nobody_else() -> None:
    """A root has gone since the roots were made."""
    clock, roots = Clock(), Roots(3)
    roots.down.add("b")
    attach(roots.plain(clock, "maker", observes=True), create=True, clock=clock)
    assert {root_of(member) for member in roots.epoch().in_sync} == {"a", "c"}


def test_a_put_that_was_not_announced_counts_as_any_other() -> None:
    """Its epoch is kept, though it does not decide who is in sync."""
    roots = Roots(3)
    storage = roots.plain(Clock(), "reader", observes=True)
    storage.put("x", b"1")
    note = root_names.epoch_note(0)
    assert all(roots.heap(f"{root}-0").get(note) for root in "abc")
    roots.down.add("b")
    with pytest.raises(NotEnoughReplicas, match="puts out no root"):
        storage.put("y", b"1")
    assert roots.epoch().number == 0


def test_a_plan_decides_nothing() -> None:
    seen = Seen()
    store = seen.open()
    seen.roots.down.add("a")
    with pytest.raises(NotEnoughReplicas, match="puts out no root"):
        store.topics.create("u", dry_run=True)
    with pytest.raises(NotEnoughReplicas, match="puts out no root"):
        store.transactions.expire_ids(dry_run=True)
    with pytest.raises(NotEnoughReplicas, match="puts out no root"):
        store.maintain(dry_run=True)
    assert seen.in_sync() == {"a", "b", "c"}
