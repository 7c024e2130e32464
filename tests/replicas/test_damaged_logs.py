"""One bit of what logs are made of is wrong on a root: the checksum decides, not who leads."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.replication.replica_folders import (
    FIRST,
    SECOND,
    make_written,
    objects,
    reopened,
    values,
    write,
)
from txnlog import names
from txnlog.errors import CorruptEntry
from txnlog.replication import ReplicaDifference, Replicas
from txnlog.replication.roots import soundness
from txnlog.replication.roots.members import OwnerMark
from txnlog.state.membership import ToldAt
from txnlog.storage import envelope
from txnlog.storage.adapters.local import LocalStorage
from txnlog.storage.base import CannotReplace

pytestmark = pytest.mark.rule("R14")

ENTRY = "topics/t/log/00000000000000000001.json"


def flip(path: Path, bit: int | None = None) -> None:
    """Change one bit of a file; the middle one if none is given."""
    data = bytearray(path.read_bytes())
    at = bit if bit is not None else 4 * len(data)
    data[at // 8] ^= 1 << at % 8
    path.write_bytes(data)


def check_whole(folder: Path, *sent: str) -> None:
    """Everything is read, both roots are in sync, and have the same.

    What a reader has not met at a follower is found by those who look for it.
    """
    store = reopened(folder)
    assert values(store) == [*sent]
    for found in Replicas(store).verify(with_contents=True, repair=True):
        assert (found.kind, found.members, found.is_repaired) == ("damaged", ("r1-0",), True)
    assert sorted(Replicas(store).describe().in_sync) == ["r0-0", "r1-0"]
    assert objects(folder / FIRST) == objects(folder / SECOND)


@pytest.mark.parametrize("root", [FIRST, SECOND])
def test_one_bit_of_an_entry_at_one_root(tmp_path: Path, root: str) -> None:
    """Whichever bit: it is read from the other root, and mended. Nobody leaves the set."""
    make_written(tmp_path, "1", "2")
    size = (tmp_path / root / ENTRY).stat().st_size
    chance = random.Random(root)
    for bit in chance.sample(range(8 * size), 6):
        flip(tmp_path / root / ENTRY, bit)
        check_whole(tmp_path, "1", "2")


def test_a_root_that_leads_with_a_damaged_entry(tmp_path: Path) -> None:
    """It was a follower, and nobody had read the entry there."""
    store = make_written(tmp_path, "1")
    flip(tmp_path / SECOND / ENTRY)
    Replicas(store).elect("r1")
    check_whole(tmp_path, "1")
    assert Replicas(reopened(tmp_path)).describe().leader == "r0-0"


def test_each_root_has_damaged_another_entry(tmp_path: Path) -> None:
    store = make_written(tmp_path, "1")
    write(store, "2")
    flip(tmp_path / FIRST / ENTRY)
    flip(tmp_path / SECOND / ENTRY.replace("1.json", "2.json"))
    check_whole(tmp_path, "1", "2")


def test_a_writer_that_meets_a_damaged_entry(tmp_path: Path) -> None:
    """The one that it builds on, at the leader: it is acknowledged at both roots."""
    store = make_written(tmp_path, "1")
    flip(tmp_path / FIRST / ENTRY)
    write(reopened(tmp_path), "2")
    write(store, "3")
    check_whole(tmp_path, "1", "2", "3")


def test_an_entry_that_is_damaged_at_both_roots(tmp_path: Path) -> None:
    """That is told. It is nobody's fault who leads, and nothing is changed."""
    make_written(tmp_path, "1")
    for root in (FIRST, SECOND):
        flip(tmp_path / root / ENTRY, 400 if root == FIRST else 500)
    before = objects(tmp_path / FIRST), objects(tmp_path / SECOND)
    store = reopened(tmp_path)
    with pytest.raises(CorruptEntry, match=r"00001\.json is damaged"):
        values(store)
    assert Replicas(store).describe().in_sync == ("r0-0", "r1-0")
    assert (objects(tmp_path / FIRST), objects(tmp_path / SECOND)) == before


@pytest.mark.parametrize("root", [FIRST, SECOND])
def test_a_root_that_joins_copies_what_is_sound(tmp_path: Path, root: str) -> None:
    """Of all objects that have a checksum of their own, whoever leads."""
    store = make_written(tmp_path, "1", "2")
    with store.producer(transactional_id="w") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", value=b"3")
    whole = objects(tmp_path / FIRST)
    for name in filter(names.is_framed, whole):
        flip(tmp_path / root / name)
    joined = Replicas(store).add(str(tmp_path / "c"))
    number = int(joined.member.removeprefix("r2-"))
    assert number == (1 if root == FIRST else 0)  # it begins anew when another one leads
    assert objects(tmp_path / f"c/incarnation-0000{number}") == whole


@pytest.fixture
def cannot_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: LocalStorage, name: str, data: bytes) -> None:
        raise CannotReplace("not here")

    monkeypatch.setattr(LocalStorage, "replace", refuse)


@pytest.mark.usefixtures("cannot_replace")
def test_a_storage_that_cannot_replace(tmp_path: Path) -> None:
    """Its root leaves the set, and joins again with what is whole."""
    make_written(tmp_path, "1")
    flip(tmp_path / FIRST / ENTRY)
    store = reopened(tmp_path)
    assert values(store) == ["1"]
    assert Replicas(store).describe().in_sync == ("r1-0",)
    Replicas(store).add(str(tmp_path / "a"))
    assert objects(tmp_path / "a/incarnation-00001") == objects(tmp_path / SECOND)


@pytest.mark.usefixtures("cannot_replace")
def test_roots_that_cannot_replace_what_each_has_damaged(tmp_path: Path) -> None:
    """Each has alone what the other lacks: none leaves. One that comes gets all; then they do."""
    store = make_written(tmp_path, "1")
    write(store, "2")
    whole = objects(tmp_path / FIRST)
    for root, name in ((FIRST, ENTRY), (SECOND, ENTRY.replace("1.json", "2.json"))):
        flip(tmp_path / root / name)
    for _ in range(3):
        assert values(reopened(tmp_path)) == ["1", "2"]
    assert {*Replicas(store).describe().in_sync} == {"r0-0", "r1-0"}
    found = verify(tmp_path)
    assert [one.members for one in found] == [("r0-0",), ("r1-0",)]
    assert all("`add` another root" in one.detail and not one.is_repaired for one in found)
    Replicas(reopened(tmp_path)).add(str(tmp_path / "c"))
    assert [(one.members, one.is_repaired) for one in verify(tmp_path)] == [
        (("r0-0",), True),
        (("r1-0",), True),
    ]
    assert len(Replicas(store).describe().in_sync) == 1
    for root in "ab":
        Replicas(reopened(tmp_path)).add(str(tmp_path / root))
    assert verify(tmp_path) == []
    for root in "abc":
        assert objects(max((tmp_path / root).glob("incarnation-*"))) == whole, root


def verify(folder: Path) -> list[ReplicaDifference]:
    return [*Replicas(reopened(folder)).verify(with_contents=True, repair=True)]


@pytest.mark.usefixtures("cannot_replace")
def test_a_root_that_cannot_replace_and_has_alone_what_the_leader_has_lost(
    tmp_path: Path,
) -> None:
    """It stays until that is given back to the leader, as whoever lists the log does."""
    store = make_written(tmp_path, "1")
    write(store, "2")
    Replicas(store).elect("r1")
    flip(tmp_path / FIRST / ENTRY)
    (tmp_path / SECOND / ENTRY.replace("1.json", "2.json")).unlink()
    reopened(tmp_path).storage.get(ENTRY)
    assert {*Replicas(store).describe().in_sync} == {"r0-0", "r1-0"}
    for _ in range(2):
        assert values(reopened(tmp_path)) == ["1", "2"]
    assert Replicas(store).describe().in_sync == ("r1-0",)


def test_what_is_framed_is_judged(tmp_path: Path) -> None:
    """Of a store's objects only data and manifests have no checksum of their own."""
    store = make_written(tmp_path, "1", "2")
    with store.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.poll()
        consumer.commit()
    store.maintain()
    for name, data in objects(tmp_path / FIRST).items():
        framed = data.startswith(b'{"format":')
        assert framed == names.is_framed(name), name
        assert framed or names.is_unique(name), name


MEMBER = "0123456789abcdef" * 2
SMALL = [
    names.heartbeat("g", names.Heartbeat(MEMBER, 3, 2, 1)),
    names.join_request("g", names.JoinRequest(MEMBER, 7)),
    names.leave_request("g", MEMBER),
    f"transactions/p/{names.witness_file(4, 1_700_000_000_000)}",
    f"staging/{MEMBER}.{'1' * 32}-4.{'2' * 32}.read",
    f"staging/{MEMBER}.{'2' * 32}.skipped",
]


@pytest.mark.parametrize("where", [FIRST, SECOND])
@pytest.mark.parametrize("name", SMALL, ids=lambda name: name.rpartition(".")[2])
def test_what_processes_tell_each_other_is_judged_too(
    tmp_path: Path, name: str, where: str
) -> None:
    """By one flipped bit in it nobody leaves the set, whoever leads."""
    store = make_written(tmp_path, "1")
    data = envelope.encode(ToldAt(1_700_000_000_000))
    assert store.logs.storage.put_if_absent(name, data)
    flip(tmp_path / where / name)
    assert reopened(tmp_path).logs.storage.get(name) == data
    assert (tmp_path / FIRST / name).read_bytes() == data
    assert (tmp_path / SECOND / name).read_bytes() == data
    assert Replicas(store).describe().in_sync == ("r0-0", "r1-0")


def test_who_is_blamed(tmp_path: Path) -> None:
    """Of three: who has other bytes than their checksum says, else the minority, else nobody.

    By what is compared first; then data is judged by the log, and a damaged leader leads no more.
    """
    store = make_written(tmp_path, "1")
    Replicas(store).add(str(tmp_path / "c"))
    roots = [tmp_path / name / "incarnation-00000" for name in "abc"]

    def blamed() -> tuple[str, list[str]]:
        (found,) = Replicas(store).verify(with_contents=True)
        return found.kind, sorted(found.members)

    flip(roots[1] / ENTRY)
    assert blamed() == ("damaged", ["r1-0"])
    flip(roots[1] / ENTRY)
    flip(roots[0] / ENTRY)
    assert blamed() == ("damaged", ["r0-0"])
    other = envelope.encode(OwnerMark("x", "y", "r0"))
    (roots[0] / ENTRY).write_bytes(other)
    assert blamed() == ("differs", ["r0-0"])
    (roots[1] / ENTRY).write_bytes(envelope.encode(OwnerMark("x", "z", "r0")))
    assert blamed() == ("undecided", ["r0-0", "r1-0", "r2-0"])
    for root in roots[:2]:
        flip(root / ENTRY)
    assert blamed() == ("damaged", ["r0-0", "r1-0"])


@pytest.mark.parametrize("reads_first", [True, False])
def test_a_leader_that_has_lost_its_newest_entry(tmp_path: Path, *, reads_first: bool) -> None:
    """What another root in sync has was acknowledged, or may be: its number is not given away."""
    store = make_written(tmp_path, "1")
    write(store, "2")
    (tmp_path / FIRST / ENTRY.replace("1.json", "2.json")).unlink()
    if reads_first:
        assert values(reopened(tmp_path)) == ["1", "2"]
    else:
        (found,) = Replicas(reopened(tmp_path)).verify()
        assert (found.kind, found.members) == ("missing", ("r0-0",))
    write(reopened(tmp_path), "3")
    check_whole(tmp_path, "1", "2", "3")


def test_a_leader_that_has_lost_an_entry_in_the_middle(tmp_path: Path) -> None:
    store = make_written(tmp_path, "1")
    write(store, "2")
    (tmp_path / FIRST / ENTRY).unlink()
    check_whole(tmp_path, "1", "2")


def test_what_lies_in_a_closed_chapter_was_deleted(tmp_path: Path) -> None:
    """The deletion begins at the leader: nothing comes back from where it has not been yet."""
    store = make_written(tmp_path, "1")
    for root in (FIRST, SECOND):
        checkpoint = tmp_path / root / ENTRY.replace("1.json", "1.checkpoint")
        checkpoint.write_bytes((tmp_path / root / ENTRY).read_bytes())
        mark = tmp_path / root / "topics/t/log" / names.closing_mark(0, 1)
        mark.write_bytes((tmp_path / root / ENTRY).read_bytes())
    first = ENTRY.replace("1.json", "0.json")
    (tmp_path / FIRST / first).unlink()
    assert f"topics/t/log/{store.storage.list_names('topics/t/log')[0]}" != first
    assert not (tmp_path / FIRST / first).exists()
    (found,) = Replicas(store).verify()
    assert (found.kind, found.members) == ("extra", ("r1-0",))


@pytest.mark.parametrize("undecided", [False, True])
def test_a_leader_that_has_lost_what_a_checkpoint_tells_of(
    tmp_path: Path, *, undecided: bool
) -> None:
    """The newest entry, beside it, or one below it that a transaction has yet to decide.

    It is built on all the same, and only what lies in closed chapters is ever deleted.
    """
    store = make_written(tmp_path, "1")
    producer = store.producer(transactional_id="w")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", value=b"2")
    producer.flush()
    if not undecided:
        producer.commit_transaction()
    write(store, "3")
    store.logs.topic("t").checkpoint_at_end()
    lost = ENTRY.replace("1.json", f"{2 if undecided else 3}.json")
    (tmp_path / FIRST / lost).unlink()
    write(reopened(tmp_path), "4")
    if undecided:
        producer.commit_transaction()
    check_whole(tmp_path, "1", "2", "3", "4")


def test_what_is_lost_above_a_checkpoint_needs_no_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the leader's log is listed from where it was lost, not from a chapter's beginning."""
    store = make_written(tmp_path, "1")
    for value in ("2", "3", "4", "5"):
        write(store, value)
    lost = max((tmp_path / FIRST / "topics/t/log").glob("*.json"))
    lost.unlink()
    first = names.log_file_prefix(int(lost.stem) - 1)
    monkeypatch.setattr(soundness, "MOST_TOGETHER", 2)
    starts: list[str] = []
    list_names = LocalStorage.list_names

    def note(storage: LocalStorage, folder: str, start_after: str = "") -> list[str]:
        if storage.url.endswith(FIRST) and folder == "topics/t/log":
            starts.append(start_after)
        return list_names(storage, folder, start_after)

    monkeypatch.setattr(LocalStorage, "list_names", note)
    assert reopened(tmp_path).storage.list_names("topics/t/log", first)[-1] == lost.name
    assert lost.exists()
    assert min(starts) == first


def test_a_lost_entry_is_repaired(tmp_path: Path) -> None:
    store = make_written(tmp_path, "1")
    write(store, "2")
    (tmp_path / FIRST / ENTRY.replace("1.json", "2.json")).unlink()
    (found,) = Replicas(reopened(tmp_path)).verify(repair=True)
    assert (found.kind, found.is_repaired) == ("missing", True)
    assert objects(tmp_path / FIRST) == objects(tmp_path / SECOND)
