"""What an unclean election announces, and what it means for those who had the store open."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import txnlog
from tests.support.replication.replica_folders import (
    lose,
    make,
    make_written,
    objects,
    reopened,
    values,
    write,
)
from tests.support.replication.replica_world import Roots
from txnlog.errors import (
    InvalidOption,
    LogTruncated,
    NotEnoughReplicas,
    TxnlogError,
    UploadExpired,
)
from txnlog.log.append_batching import BatchedAppend
from txnlog.log.uploads import UploadedSegment
from txnlog.names import TopicPartition, parse_data_file
from txnlog.replication import (
    Election,
    LostRange,
    Replicas,
    named_segments,
    open_replicas,
    root_names,
)
from txnlog.replication.roots import election, listings
from txnlog.replication.roots.election import take_out
from txnlog.replication.roots.epochs import FACTOR, UNCLEAN, Epoch, elected_unclean
from txnlog.replication.roots.losses import NamedSegment
from txnlog.replication.roots.trim import TrimNote
from txnlog.state.proposal import Proposal
from txnlog.state.segment import StoredSegment
from txnlog.state.topic_entries import Append
from txnlog.storage import envelope
from txnlog.storage.adapters.local import LocalStorage
from txnlog.storage.base import Storage
from txnlog.testing import VirtualClock

pytestmark = pytest.mark.rule("R12")

PARTITIONS = 4


# -- who had the store open ----------------------------------------------------------------------


def lose_all_but_the_last(store: txnlog.Store, folder: Path) -> None:
    """One of two roots is out when three records are written; then it leads."""
    Replicas(store).remove("r1")
    write(store, "2", "3", "4")
    lose(folder / "a")
    open_replicas(str(folder / "b")).elect("r1", unclean=True)


def send(store: txnlog.Store) -> Callable[[], object]:
    producer = store.producer()
    producer.send("t", b"1")
    producer.flush()

    def again() -> None:
        producer.send("t", b"5")
        producer.flush()

    return again


def transact(store: txnlog.Store) -> Callable[[], object]:
    producer = store.producer(transactional_id="p")
    producer.init_transactions()

    def run() -> None:
        with producer.transaction():
            producer.send("t", b"1")

    run()
    return run


def consume(store: txnlog.Store) -> Callable[[], object]:
    write(store, "1")
    consumer = store.consumer(group_id="g", auto_offset_reset="earliest")
    consumer.assign([TopicPartition("t", 0)])
    assert len(consumer.poll(timeout_ms=0)) == 1
    consumer.commit()
    return lambda: consumer.poll(timeout_ms=0)


def scan(store: txnlog.Store) -> Callable[[], object]:
    write(store, "1")
    return lambda: values(store)


@pytest.mark.condition(60)
@pytest.mark.parametrize("does", [send, transact, consume, scan])
def test_who_had_the_store_open_goes_no_further(
    tmp_path: Path, does: Callable[[txnlog.Store], Callable[[], object]]
) -> None:
    """Its knowledge of logs is outdated: it would put entries after lost ones."""
    store = make(tmp_path)
    store.topics.create("t", partitions=1)
    go_on = does(store)
    lose_all_but_the_last(store, tmp_path)
    with pytest.raises(LogTruncated, match="reopen the store") as raised:
        go_on()
    assert raised.value.fatal
    after = reopened(tmp_path)
    assert values(after) == ["1"]
    does(after)()
    assert values(reopened(tmp_path))[0] == "1"
    assert not [found for found in after.examine() if found.state in ("damage", "unreadable")]


def test_what_was_uploaded_before_is_not_placed(tmp_path: Path) -> None:
    """As by a task of Spark's, whose driver has begun after the election, or the other way."""
    store = make(tmp_path)
    store.topics.create("t", partitions=1)
    write(store, "1")
    lose_all_but_the_last(store, tmp_path)
    after = reopened(tmp_path)
    log = after.logs.topic("t")
    assert (store.storage.history(), after.storage.history()) == (-1, 2)
    spec = after.logs.topic_spec("t")
    segment = UploadedSegment("t", spec.topic_id, 0, StoredSegment(f"{1:032x}-0", 1, 70, 0, 0))
    with pytest.raises(UploadExpired, match="the unclean election of epoch 2"):
        log.place([segment], transaction=None, writer=None)
    log.place([replace(segment, history=2)], transaction=None, writer=None)


def test_what_others_had_proposed_before_is_not_placed(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.topics.create("t", partitions=1)
    lose_all_but_the_last(store, tmp_path)
    after = reopened(tmp_path)
    log = after.logs.topic("t")
    log.refresh()
    for history in (-1, 2):
        append = Append(nonce=f"{history}", at_ms=log.clock.now_ms(), segments=())
        proposal = Proposal("id", 1, 0, (), append, history=history)
        log._proposals.put(f"{1:020}-{history + 2:032x}-0.json", proposal)
    commit = BatchedAppend(log, log._proposals, lambda _: None, [], 1000)
    names = log._proposals.names(1)
    assert len(names) == 2
    found = commit._read(names)
    assert [proposal.history for proposal in found] == [2]


# -- data at some of the roots -------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> txnlog.Store:
    """Four partitions with three segments each, at one of three roots."""
    found = open_replicas(
        [str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "c")],
        controller=str(tmp_path / "control"),
        create=True,
        config={FACTOR: 1},
        clock=VirtualClock(),
    ).store
    found.topics.create("t", partitions=PARTITIONS)
    for number in range(3):
        with found.producer() as producer:
            for partition in range(PARTITIONS):
                producer.send("t", value=b"%d" % number, partition=partition)
                producer.flush()  # else all share a file
    return found


def incarnation(tmp_path: Path, root: str) -> Path:
    return tmp_path / "abc"[int(root[1:])] / root_names.incarnation_folder(0)


def partitions_at(tmp_path: Path, root: str) -> set[int]:
    parsed = map(parse_data_file, objects(incarnation(tmp_path, root)))
    return {found[0] for found in parsed if found is not None}


def ranges(election: Election) -> dict[int, LostRange]:
    assert election.older_range_count == len(election.older)
    return {one.partition: one for one in election.older}


def elect(tmp_path: Path, root: str, **how: bool) -> Election:
    replicas = open_replicas(str(tmp_path / "control"))
    return replicas.elect(root, unclean=True, **how)


def count(store: txnlog.Store, partition: int) -> int:
    """How many records of a partition can be read."""
    consumer = store.consumer(auto_offset_reset="earliest")
    consumer.assign([TopicPartition("t", partition)])
    return len(consumer.poll(timeout_ms=0))


@pytest.mark.condition(60)
def test_older_records_that_nobody_has_are_announced(store: txnlog.Store, tmp_path: Path) -> None:
    """They were acknowledged before the epoch that the election names; all others can be read."""
    Replicas(store).remove("r2", force=True)
    there = partitions_at(tmp_path, "r2")
    assert there
    lose(tmp_path / "a")
    lose(tmp_path / "b")
    planned = elect(tmp_path, "r2", dry_run=True)
    lost = {*range(PARTITIONS)} - there
    assert {*ranges(planned)} == lost
    for one in planned.older:
        assert (one.topic, one.start, one.end, one.record_count) == ("t", 0, 3, 3)
        assert one.members == ()
    assert planned.older_records == 3 * len(lost)
    assert planned.older_bytes == sum(one.size_bytes for one in planned.older) > 0
    assert elect(tmp_path, "r2") == planned
    after = reopened(tmp_path)
    for partition in range(PARTITIONS):
        if partition in lost:
            with pytest.raises(NotEnoughReplicas):
                count(after, partition)
        else:
            assert count(after, partition) == 3


def test_copies_of_who_was_out_as_long_count(store: txnlog.Store, tmp_path: Path) -> None:
    """A root that was out before the new leader got no deletions unknown to its logs."""
    Replicas(store).remove("r1", force=True)
    Replicas(store).remove("r2", force=True)
    lose(tmp_path / "a")
    planned = elect(tmp_path, "r2", dry_run=True)
    here = partitions_at(tmp_path, "r1") | partitions_at(tmp_path, "r2")
    assert {*ranges(planned)} == {*range(PARTITIONS)} - here
    assert all(one.members == () for one in planned.older)


def test_copies_of_who_was_in_sync_for_longer_may_go_yet(
    store: txnlog.Store, tmp_path: Path
) -> None:
    """A vacuum that knows of merges which the new leader does not may be about to delete them."""
    Replicas(store).remove("r2", force=True)
    Replicas(store).remove("r1", force=True)
    lose(tmp_path / "a")
    planned = elect(tmp_path, "r2", dry_run=True)
    doubtful = {number for number, one in ranges(planned).items() if one.members}
    assert doubtful == partitions_at(tmp_path, "r1") != set()
    assert {one.members for one in planned.older if one.members} == {("r1-0",)}
    elect(tmp_path, "r2")
    after = reopened(tmp_path)
    assert [count(after, partition) for partition in doubtful] == [3] * len(doubtful)
    Replicas(after).reassign()
    assert partitions_at(tmp_path, "r2") >= doubtful


def test_copies_that_somebody_may_be_about_to_delete(store: txnlog.Store, tmp_path: Path) -> None:
    """A note at the new leader names them: who trims has counted on copies that are gone now."""
    Replicas(store).remove("r2", force=True)
    here = incarnation(tmp_path, "r2")
    names = [name for name in objects(here) if parse_data_file(name)]
    note = envelope.encode(TrimNote((names[0],)))
    LocalStorage(str(here)).put(root_names.trim_note(f"{7:032x}"), note)
    lose(tmp_path / "a")
    lose(tmp_path / "b")
    planned = elect(tmp_path, "r2", dry_run=True)
    (noted,) = (one for one in planned.older if one.members == ("r2-0",))
    parsed = parse_data_file(names[0])
    assert parsed is not None
    assert (noted.partition, noted.record_count) == (parsed[0], 1)


def test_a_copy_that_is_too_short_is_none(store: txnlog.Store, tmp_path: Path) -> None:
    Replicas(store).remove("r2", force=True)
    here = incarnation(tmp_path, "r2")
    name = min(name for name in objects(here) if parse_data_file(name))
    (here / name).write_bytes((here / name).read_bytes()[:-1])
    lose(tmp_path / "a")
    lose(tmp_path / "b")
    before = {*range(PARTITIONS)} - partitions_at(tmp_path, "r2")
    parsed = parse_data_file(name)
    assert parsed is not None
    assert {*ranges(elect(tmp_path, "r2", dry_run=True))} == before | {parsed[0]}


def test_what_was_merged_since_is_announced(store: txnlog.Store, tmp_path: Path) -> None:
    """The new leader's logs name the old segments, which vacuum has deleted at the others."""
    Replicas(store).remove("r2", force=True)
    away = {*range(PARTITIONS)} - partitions_at(tmp_path, "r2")
    for root in ("r0", "r1"):
        for name in objects(incarnation(tmp_path, root)):
            if parse_data_file(name):
                (incarnation(tmp_path, root) / name).unlink()
    Replicas(store).remove("r1", force=True)
    lose(tmp_path / "a")
    planned = elect(tmp_path, "r2", dry_run=True)
    assert {*ranges(planned)} == away
    assert all(one.members == () for one in planned.older)


def test_a_topic_whose_log_cannot_be_read(store: txnlog.Store, tmp_path: Path) -> None:
    store.topics.create("u", partitions=1)
    Replicas(store).remove("r2", force=True)
    lose(tmp_path / "a")
    lose(tmp_path / "b")
    first = incarnation(tmp_path, "r2") / "topics/t/log" / f"{0:020}.json"
    first.write_bytes(b"{")
    planned = elect(tmp_path, "r2", dry_run=True)
    assert (planned.unread, planned.older) == (("t",), ())


def test_a_root_that_has_no_store_file(tmp_path: Path) -> None:
    """It was out before there was one; so nothing is named there."""
    store = make(tmp_path, **{FACTOR: 1})
    Replicas(store).remove("r1", force=True)
    (tmp_path / "b" / "incarnation-00000" / "txnlog.json").unlink()
    lose(tmp_path / "a")
    assert elect(tmp_path, "r1", dry_run=True).older_records == 0


def test_a_root_that_fails_while_it_is_looked_at(
    store: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Replicas(store).remove("r2", force=True)
    lose(tmp_path / "a")
    lose(tmp_path / "b")
    looked = listings.add_listing

    def lose_it(*arguments: object) -> None:
        shutil.move(incarnation(tmp_path, "r2"), tmp_path / "gone")
        looked(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(election, "add_listing", lose_it)
    with pytest.raises(NotEnoughReplicas, match=r"r2-0 at .* cannot lead"):
        elect(tmp_path, "r2")


def out_while_others_write(clock: VirtualClock, *out: str) -> Roots:
    """Roots of which some are out, and those in sync do not answer."""
    roots = Roots(3, {FACTOR: "1"})
    storage = roots.plain(clock)
    for root in out:
        take_out(storage.agreement, root)
    assert storage.put_if_absent("acknowledged", b"")
    roots.down.update({*roots.names}.difference(out))
    return roots


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_root_in_sync_that_answers_again_while_others_are_looked_at(
    clock: VirtualClock, *, dry_run: bool
) -> None:
    """Reading the new leader's logs takes a while: what was acknowledged meanwhile is not lost."""
    roots = out_while_others_write(clock, "c")
    storage = roots.plain(clock)

    def come_back(_: Storage) -> Iterator[NamedSegment]:
        roots.down.clear()
        assert roots.plain(clock).put_if_absent("meanwhile", b"")
        return iter(())

    with pytest.raises(InvalidOption, match="a-0 is in sync and answers"):
        election.elect(
            storage.agreement, "c", unclean=True, name_segments=come_back, dry_run=dry_run
        )
    assert [storage.get(name) for name in ("acknowledged", "meanwhile")] == [b"", b""]


def test_the_leader_that_answers_again_before_one_is_elected_by_setting(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that may lead are asked one after the other, and may take their time."""
    roots = Roots(2, {UNCLEAN: "true"})
    storage = roots.plain(clock)
    take_out(storage.agreement, "b")
    roots.down.add("a")
    check = storage.agreement.check_mark

    def come_back(epoch: Epoch, member: str, **how: float) -> None:
        check(epoch, member, **how)
        if member == "b-0":
            roots.down.clear()

    monkeypatch.setattr(storage.agreement, "check_mark", come_back)
    assert storage.put_if_absent("x", b"")
    assert roots.epoch().leader == "a-0"


def test_copies_that_are_lost_while_others_are_looked_at(clock: VirtualClock) -> None:
    """They were counted on; the next attempt announces what they alone had."""
    roots = out_while_others_write(clock, "b", "c")
    agreement = roots.plain(clock).agreement
    segment = NamedSegment("t", 0, 0, 1, 1, "topics/t/data/0/only.log", 1, 1)
    roots.heap("b-0").put(segment.path, b"x")

    def look(_: Storage) -> Iterator[NamedSegment]:
        yield segment
        roots.dead.add("b-0")

    with pytest.raises(NotEnoughReplicas, match=r"b-0 .*: try again"):
        election.elect(agreement, "c", unclean=True, name_segments=look)
    assert not roots.epoch().unclean
    done = election.elect(agreement, "c", unclean=True, name_segments=look)
    assert [(one.start, one.end, one.members) for one in done.older] == [(0, 1, ())]
    assert "b-0" in done.unseen


def test_who_elects_reads_the_new_leader_and_writes_nothing(tmp_path: Path) -> None:
    alone = named_segments._Alone(LocalStorage(str(tmp_path)))
    for write_ in (
        lambda: alone.put("x", b""),
        lambda: alone.put_if_absent("x", b""),
        lambda: alone.upload("x"),
        lambda: alone.delete(["x"]),
    ):
        with pytest.raises(TxnlogError, match="only read"):
            write_()


def test_who_opens_the_store_and_writes_holds_the_election(tmp_path: Path) -> None:
    """By the setting. It knows nothing of the other history; who does must reopen the store.

    Who only reads may see less than others do, and holds none.
    """
    before = make_written(tmp_path, "1")
    Replicas(before).alter({"unclean.leader.election.enable": True})
    bring_back = lose(tmp_path / "b")
    write(before, "2")
    bring_back()
    lose(tmp_path / "a")
    opened = reopened(tmp_path)
    with pytest.raises(NotEnoughReplicas, match="puts out no root"):
        values(opened)
    assert Replicas(opened).describe().leader == "r0-0"
    write(opened, "3")
    assert Replicas(opened).describe().leader == "r1-0"
    assert values(opened) == ["1", "3"]
    with pytest.raises(LogTruncated, match="reopen the store"):
        values(before)


def test_who_has_only_read_is_told_too(tmp_path: Path) -> None:
    """A process that has read, and never written, knows logs as they were."""
    before = make_written(tmp_path, "1")
    Replicas(before).alter({"unclean.leader.election.enable": True})
    bring_back = lose(tmp_path / "b")
    write(before, "2")
    reader = reopened(tmp_path)
    assert values(reader) == ["1", "2"]
    bring_back()
    lose(tmp_path / "a")
    write(reopened(tmp_path), "3")
    assert values(reopened(tmp_path)) == ["1", "3"]
    with pytest.raises(LogTruncated, match="reopen the store"):
        values(reader)


def test_an_election_within_the_first_round_of_a_process(clock: VirtualClock) -> None:
    """What it has put before is of the other history: it is not put again under this one."""
    roots = Roots(2)
    roots.down.add("b")
    other = roots.plain(clock)
    other.put("x", b"")
    roots.down.clear()

    def put_and_elect() -> None:
        storage.put("y", b"")
        agreement = other.agreement
        who = agreement.proposer("an unclean election")
        assert agreement.propose(elected_unclean(agreement.refresh(), "b-0", who))

    storage = roots.plain(clock)
    with pytest.raises(LogTruncated, match="reopen the store"):
        storage.put_round([put_and_elect])
    assert list(roots.heap("b-0").list_names("")) == []
