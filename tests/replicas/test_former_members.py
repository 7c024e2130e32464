"""A root leaves and comes back, and alone has whole what the leader lost or damaged of logs."""

from __future__ import annotations

import shutil
from pathlib import Path
from threading import Timer

import pytest

import txnlog
from tests.replicas.stalled_roots import LAG_MS, Gate
from tests.support.replication.replica_folders import (
    FIRST,
    SECOND,
    break_sector,
    lose,
    make_written,
    objects,
    reopened,
    skip_probes,
    values,
    write,
)
from txnlog.errors import InvalidOption, NotEnoughReplicas
from txnlog.replication import Replicas
from txnlog.replication.roots import slowness
from txnlog.replication.roots.epochs import Root
from txnlog.replication.roots.members import MemberOpener
from txnlog.replication.roots.replicated_storage import ReplicatedStorage, find_replicated
from txnlog.storage import Storage
from txnlog.storage.reach import UnnamedUrl

pytestmark = pytest.mark.rule("R19")

LOG = "topics/t/log"
THIRD = "b/incarnation-00001"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> txnlog.Store:
    """Entries 1, 2 and 3 have a record each; 2 is a transaction's."""
    skip_probes(monkeypatch)
    store = make_written(tmp_path, "1")
    producer = store.producer(transactional_id="w")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", value=b"2")
    producer.commit_transaction()
    write(store, "3")
    return store


def file(number: int, kind: str = "json") -> str:
    return f"{LOG}/{number:020}.{kind}"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def put_out(folder: Path, member: str = "r1-0") -> None:
    """As whoever finds that it fails does."""
    storage = reopened(folder).storage
    assert isinstance(storage, ReplicatedStorage)
    assert storage.agreement.put_out(storage.agreement.refresh(), member, "it fails")


def come_back(folder: Path, root: str = "b") -> None:
    Replicas(reopened(folder)).add(str(folder / root))


HURT = pytest.mark.parametrize(
    "hurt",
    [file(2), file(2, "commit"), file(3)],
    ids=["an entry", "a marker", "the newest entry"],
)


@HURT
@pytest.mark.parametrize("how", ["lost", "damaged"])
def test_it_brings_back_what_it_alone_has_whole(
    store: txnlog.Store, tmp_path: Path, hurt: str, how: str
) -> None:
    """Its new incarnation and the leader get it, and then the old one may go."""
    whole = objects(tmp_path / SECOND)
    if how == "lost":
        (tmp_path / FIRST / hurt).unlink()
    else:
        flip(tmp_path / FIRST / hurt)
    put_out(tmp_path)
    with pytest.raises(InvalidOption, match=rf"{hurt}.*`txnlog replicas add`"):
        Replicas(reopened(tmp_path)).forget("r1-0")
    come_back(tmp_path)
    assert objects(tmp_path / THIRD) == whole
    assert values(reopened(tmp_path)) == ["1", "2", "3"]
    [*Replicas(reopened(tmp_path)).verify(with_contents=True, repair=True)]
    assert objects(tmp_path / FIRST) == whole
    Replicas(reopened(tmp_path)).forget("r1-0")
    assert sorted(Replicas(store).describe().in_sync) == ["r0-0", "r1-1"]


@HURT
def test_a_root_that_is_taken_out_leaves_it_behind(tmp_path: Path, hurt: str) -> None:
    (tmp_path / FIRST / hurt).unlink()
    Replicas(reopened(tmp_path)).remove("r1")
    assert objects(tmp_path / FIRST) == objects(tmp_path / SECOND)
    assert values(reopened(tmp_path)) == ["1", "2", "3"]


@HURT
def test_so_does_a_leader(tmp_path: Path, hurt: str) -> None:
    (tmp_path / SECOND / hurt).unlink()
    Replicas(reopened(tmp_path)).remove("r0")
    assert objects(tmp_path / FIRST) == objects(tmp_path / SECOND)
    assert values(reopened(tmp_path)) == ["1", "2", "3"]


@pytest.mark.parametrize(("root", "other"), [(FIRST, SECOND), (SECOND, FIRST)])
def test_a_root_that_is_taken_out_with_other_bytes_gives_none(
    tmp_path: Path, root: str, other: str
) -> None:
    """`verify` has told to take it out for these: what it has counts no more as decided."""
    wrong = (tmp_path / root / file(3)).read_bytes()
    (tmp_path / root / file(2)).write_bytes(wrong)
    Replicas(reopened(tmp_path)).remove("r0" if root == FIRST else "r1")
    assert values(reopened(tmp_path)) == ["1", "2", "3"]
    flip(tmp_path / other / file(2))
    come_back(tmp_path, root[0])
    new = objects(tmp_path / root[0] / "incarnation-00001")
    assert new[file(2)] == (tmp_path / other / file(2)).read_bytes()


def test_a_root_that_does_not_answer_is_taken_out_at_once(
    store: txnlog.Store, tmp_path: Path
) -> None:
    """Nothing is to be had of it, so nobody lists what the others have, nor waits for it."""
    Replicas(store).add(str(tmp_path / "c"))
    (tmp_path / SECOND / file(9)).write_bytes(b"being put")
    lose(tmp_path / "c")
    other = reopened(tmp_path)
    began_s = other.logs.clock.monotonic_s()
    Replicas(other).remove("r2")
    assert other.logs.clock.monotonic_s() - began_s < 1


def test_a_log_that_cannot_be_shared_keeps_no_other_behind(
    store: txnlog.Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is told which one a root that leaves may have more of."""
    entry = f"groups/g/{1:020}.json"
    (tmp_path / SECOND / entry).parent.mkdir(parents=True)
    (tmp_path / SECOND / entry).write_bytes(b"it differs")
    (tmp_path / FIRST / file(3)).unlink()
    list_names = ReplicatedStorage.list_names

    def fail(storage: ReplicatedStorage, folder: str, start_after: str = "") -> list[str]:
        if folder == "groups/g":
            raise NotEnoughReplicas("r0-0 fails")
        return list_names(storage, folder, start_after)

    monkeypatch.setattr(ReplicatedStorage, "list_names", fail)
    Replicas(reopened(tmp_path)).remove("r1")
    assert "r1 leaves, and may alone have some of groups/g: r0-0 fails" in caplog.text
    assert file(3) in objects(tmp_path / FIRST)


def test_a_log_that_cannot_be_compared_keeps_no_root_in_sync(
    store: txnlog.Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is told of which file nobody knows whether others have its bytes."""
    break_sector(monkeypatch, tmp_path / SECOND / file(2))
    Replicas(store).remove("r1")
    assert f"r1-0 leaves, and may alone have some of {file(2)}: " in caplog.text
    assert Replicas(store).describe().in_sync == ("r0-0",)


def test_what_is_damaged_at_all_in_sync_is_repaired(tmp_path: Path) -> None:
    whole = objects(tmp_path / SECOND)
    put_out(tmp_path)
    come_back(tmp_path)
    for root in (FIRST, THIRD):
        flip(tmp_path / root / file(2))
    (found,) = Replicas(reopened(tmp_path)).verify(with_contents=True, repair=True)
    assert (found.name, found.is_repaired) == (file(2), True)
    assert values(reopened(tmp_path)) == ["1", "2", "3"]
    assert objects(tmp_path / FIRST) == objects(tmp_path / THIRD) == whole


def test_one_at_a_place_that_was_not_named_stops_nobody(
    store: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has is left out, as if it did not answer."""
    Replicas(store).add(str(tmp_path / "c"))
    put_out(tmp_path, "r2-0")
    put_out(tmp_path)
    at = MemberOpener.at

    def unnamed(opener: MemberOpener, root: Root, member: str, store: str) -> Storage:
        if member == "r2-0":
            raise UnnamedUrl(f"the store names {root.url}, and nothing is sent there")
        return at(opener, root, member, store)

    monkeypatch.setattr(MemberOpener, "at", unnamed)
    flip(tmp_path / FIRST / file(2))
    come_back(tmp_path)
    assert values(reopened(tmp_path)) == ["1", "2", "3"]


def test_one_whose_listings_hang_stops_nobody(
    store: txnlog.Store, tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its mark answers: it is waited for once, at one of its incarnations."""
    Replicas(store).alter({"replica.lag.time.max.ms": LAG_MS})
    monkeypatch.setattr(slowness, "MOST_LAGS", 10**9)
    for member in ("r2-0", "r2-1"):
        come_back(tmp_path, "c")
        put_out(tmp_path, member)
    for number in range(2):
        gate.close(tmp_path / "c" / f"incarnation-0000{number}", "list_all")
    put_out(tmp_path)
    flip(tmp_path / FIRST / file(2))
    watch = Timer(20, gate.let_go)
    watch.start()
    come_back(tmp_path)
    assert watch.is_alive()
    watch.cancel()
    assert gate.asked == ["list_all"]
    assert values(reopened(tmp_path)) == ["1", "2", "3"]


def test_what_was_given_away_meanwhile_is_kept_where_it_is(
    store: txnlog.Store, tmp_path: Path
) -> None:
    """The leader lost an acknowledged entry, and its number has another one by now."""
    Replicas(store).alter({"replica.auto.return": "true"})
    (tmp_path / FIRST / file(3)).unlink()
    put_out(tmp_path)
    write(reopened(tmp_path), "4")
    for member in ("r1-1", "r1-2"):
        [*reopened(tmp_path).maintain()]
        assert member in Replicas(store).describe().in_sync
        if member == "r1-1":
            put_out(tmp_path, member)
    assert values(reopened(tmp_path)) == ["1", "2", "4"]
    assert Replicas(store).describe().replicas[1].old == ("r1-0", "r1-1")
    with pytest.raises(InvalidOption, match=rf"r1-0 has 1 objects.*{file(3)}.*forget r1-0 --lost"):
        Replicas(store).forget("r1-0")
    shutil.rmtree(tmp_path / SECOND)
    Replicas(store).forget("r1-0", lost=True)


def test_an_outcome_that_was_marked_otherwise_stays(store: txnlog.Store, tmp_path: Path) -> None:
    """An entry whose marker was lost was taken for aborted: two markers say nothing any more."""
    (tmp_path / FIRST / file(2, "commit")).unlink()
    put_out(tmp_path)
    abort = (tmp_path / SECOND / file(2, "commit")).read_bytes()
    (tmp_path / FIRST / file(2, "abort")).write_bytes(abort)
    come_back(tmp_path)
    assert values(reopened(tmp_path)) == ["1", "3"]
    with pytest.raises(InvalidOption, match=rf"r1-0 has 1 objects.*{file(2, 'commit')}"):
        Replicas(store).forget("r1-0")


def test_what_a_failed_leader_has_alone_is_not_brought_back(
    store: txnlog.Store, tmp_path: Path
) -> None:
    """It may never have been acknowledged. It stays until its number has another entry."""
    stray = objects(tmp_path / FIRST)[file(3)]
    (tmp_path / FIRST / file(4)).write_bytes(stray)
    put_out(tmp_path, "r0-0")
    come_back(tmp_path, "a")
    assert file(4) not in objects(tmp_path / "a/incarnation-00001")
    with pytest.raises(InvalidOption, match=file(4)):
        Replicas(store).forget("r0-0")
    write(reopened(tmp_path), "4")
    Replicas(store).forget("r0-0")
    assert values(reopened(tmp_path)) == ["1", "2", "3", "4"]


def test_a_failed_leader_brings_back_what_it_has_later_entries_to(tmp_path: Path) -> None:
    """Whoever put these had seen that all have it: a root that leads since has lost it."""
    whole = objects(tmp_path / FIRST)
    put_out(tmp_path, "r0-0")
    (tmp_path / SECOND / file(2)).unlink()
    come_back(tmp_path, "a")
    assert objects(tmp_path / "a/incarnation-00001") == objects(tmp_path / SECOND) == whole


def test_nothing_comes_back_from_another_history(store: txnlog.Store, tmp_path: Path) -> None:
    """What an unclean election has lost stays lost, though its number is free."""
    put_out(tmp_path)
    write(reopened(tmp_path), "4", "5")
    (tmp_path / "a").rename(tmp_path / "away")
    Replicas(store).elect("r1", unclean=True)
    (tmp_path / "away").rename(tmp_path / "a")
    come_back(tmp_path, "a")
    assert values(reopened(tmp_path)) == ["1", "2", "3"]
    assert file(4) in objects(tmp_path / FIRST)
    Replicas(reopened(tmp_path)).forget("r0-0")


def test_a_leader_that_gave_a_name_away_gives_nothing(tmp_path: Path) -> None:
    """It has a later entry: it had lost the one before when another one took its number."""
    first, later = (f"transactions/v/{number:020}.json" for number in (7, 8))
    fence, fenced = ((tmp_path / FIRST / file(number)).read_bytes() for number in (0, 1))

    def opened() -> ReplicatedStorage:
        storage = find_replicated(reopened(tmp_path).logs.storage)
        assert storage is not None
        storage.will_write()
        return storage

    assert opened().put_if_absent(first, fence)
    assert opened().put_if_absent(later, fence)
    (tmp_path / FIRST / first).unlink()
    assert not opened().put_if_absent(first, fenced)
    assert Replicas(reopened(tmp_path)).describe().in_sync == ("r1-0",)
    flip(tmp_path / SECOND / first)
    damaged = (tmp_path / SECOND / first).read_bytes()
    come_back(tmp_path, "a")
    assert opened().get(first) == damaged
    with pytest.raises(InvalidOption, match=first):
        Replicas(reopened(tmp_path)).forget("r0-0")
