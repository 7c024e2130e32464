"""Roots that answer too late: they are put out, and what they do later matters to nobody."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txnlog
from tests.replicas.stalled_roots import LAG_MS, Gate, MakeStall, end_at_a_pause
from tests.support.replication.replica_folders import (
    FIRST,
    SECOND,
    make,
    objects,
    reopened,
    values,
)
from tests.support.replication.world_entries import entry_of
from txnlog import names
from txnlog.errors import NotEnoughReplicas, StorageError
from txnlog.replication import Replicas
from txnlog.replication.roots import agreement, soundness
from txnlog.replication.roots.agreement import Agreement
from txnlog.replication.roots.epochs import Epoch, Member, Proposer, first_epoch
from txnlog.replication.roots.slowness import Slowness, TookTooLong, time_for
from txnlog.storage.base import Storage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.storage.server_storage import ServerStorage, check_once
from txnlog.testing import VirtualClock
from txnlog.time_limits import NoAnswer


@pytest.mark.parametrize(("slow", "left"), [(FIRST, "r1-0"), (SECOND, "r0-0")])
def test_a_slow_root_is_put_out(
    lagging: txnlog.Store, tmp_path: Path, gate: Gate, slow: str, left: str
) -> None:
    """Its put lands later, and is of nobody's interest."""
    gate.close(tmp_path / slow, "put_if_absent")
    assert lagging.storage.put_if_absent("x", b"1")
    described = Replicas(lagging).describe()
    assert described.in_sync == (left,)
    assert "no answer for" in described.why
    assert gate.asked == ["put_if_absent"]
    assert lagging.storage.put_if_absent("y", b"1")
    gate.open()
    assert objects(tmp_path / slow)["x"] == b"1"
    assert "y" not in objects(tmp_path / slow)
    assert reopened(tmp_path).storage.list_names("") == ["txnlog.json", "x", "y"]


def test_what_lands_late_at_an_old_leader_is_nothing(
    lagging: txnlog.Store, tmp_path: Path, gate: Gate
) -> None:
    """Another process has put the name by then, at the leader."""
    gate.close(tmp_path / FIRST, "put_if_absent")
    assert lagging.storage.put_if_absent("x", b"1")
    other = reopened(tmp_path)
    assert not other.storage.put_if_absent("x", b"2")
    lagging.storage.delete(["x"])
    assert other.storage.put_if_absent("x", b"2")
    gate.open()
    assert objects(tmp_path / FIRST)["x"] == b"1"
    assert lagging.storage.get("x") == reopened(tmp_path).storage.get("x") == b"2"
    Replicas(lagging).add(str(tmp_path / "a"))
    assert objects(tmp_path / "a/incarnation-00001")["x"] == b"2"


@pytest.mark.parametrize("unclean", [True, False])
def test_the_last_one_in_sync_stays(tmp_path: Path, gate: Gate, unclean: bool) -> None:
    """Also where an unclean election is allowed: it is there, and has everything."""
    settings = {"replica.lag.time.max.ms": LAG_MS, "unclean.leader.election.enable": unclean}
    store = make(tmp_path, **settings)
    Replicas(store).remove("r1")
    assert store.storage.put_if_absent("w", b"1")
    gate.close(tmp_path / FIRST, "put_if_absent", "get")
    with pytest.raises(NotEnoughReplicas, match=r"not answered yet|no answer"):
        store.storage.put_if_absent("x", b"1")
    assert Replicas(store).describe().in_sync == ("r0-0",)
    gate.end()  # the put may come last
    assert store.storage.get("x") == b"1"


def test_who_is_slow_and_shows_its_mark_is_read_on(
    lagging: txnlog.Store, tmp_path: Path, gate: Gate
) -> None:
    """A listing may be long: it is waited for."""
    check = lagging.storage.agreement.check_mark  # type: ignore[attr-defined]
    asked = []

    def open_then(*told: Any, **how: Any) -> None:
        asked.append(told)
        if len(asked) == 2:
            gate.open()
        check(*told, **how)

    lagging.storage.agreement.check_mark = open_then  # type: ignore[attr-defined]
    gate.close(tmp_path / FIRST, "list_names")
    assert lagging.storage.list_names("") == ["txnlog.json"]
    assert Replicas(lagging).describe().epoch == 0


def test_an_upload_that_is_left_just_when_its_call_ends_is_dropped(
    lagging: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither who left it nor who made the call may take the other one for who drops it."""
    ask = Slowness.ask

    def ask_too_late(slowness: Slowness, member: str, *told: Any) -> object:
        done = ask(slowness, member, *told)
        if member == "r1-0":
            raise TookTooLong("no answer")
        return done

    with lagging.storage.upload("topics/t/data/0/x-0.log") as upload:
        assert [*(tmp_path / SECOND / ".tmp").iterdir()] != []
        with monkeypatch.context() as patch:
            patch.setattr(Slowness, "ask", ask_too_late)
            upload.write(b"12")
        assert [*(tmp_path / SECOND / ".tmp").iterdir()] == []


def test_an_upload_that_is_slow_is_copied_from_another(
    lagging: txnlog.Store, tmp_path: Path, gate: Gate
) -> None:
    gate.close(tmp_path / SECOND, "upload")
    with lagging.storage.upload("topics/t/data/0/x-0.log") as upload:
        upload.write(b"12")
    assert Replicas(lagging).describe().in_sync == ("r0-0",)
    assert lagging.storage.get("topics/t/data/0/x-0.log") == b"12"


# -- uploads -------------------------------------------------------------------------------------


NAME = "topics/t/data/0/x-0.log"


@pytest.mark.parametrize("kind", ["write", "close"])
def test_an_upload_waits_while_all_roots_stall(
    lagging: txnlog.Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_stall: MakeStall,
    kind: str,
) -> None:
    """Nobody has a copy of what it was given: dropped at all roots it would be lost."""
    stall = make_stall(kind, tmp_path / FIRST, tmp_path / SECOND)
    end_at_a_pause(lagging, monkeypatch, stall)
    with lagging.storage.wait_up_to(1e9), lagging.storage.upload(NAME) as upload:
        upload.write(b"1")
        upload.write(b"2")
    assert lagging.storage.get(NAME) == b"12"
    in_sync = {"r0-0": FIRST, "r1-0": SECOND}
    assert {
        objects(tmp_path / in_sync[one])[NAME] for one in Replicas(lagging).describe().in_sync
    } == {b"12"}


@pytest.mark.parametrize("error", [StorageError("a fault"), RuntimeError("a fault")])
def test_an_upload_that_fails_when_it_goes_on_has_failed(
    lagging: txnlog.Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_stall: MakeStall,
    error: Exception,
) -> None:
    """Whatever it raises: nobody has the object."""
    stall = make_stall("close", tmp_path / FIRST, tmp_path / SECOND)
    stall.fails_with = error
    end_at_a_pause(lagging, monkeypatch, stall)
    upload = lagging.storage.upload(NAME)
    upload.write(b"1")
    with lagging.storage.wait_up_to(1e9), pytest.raises(type(error), match="a fault"):
        upload.close()
    assert NAME not in {*objects(tmp_path / FIRST), *objects(tmp_path / SECOND)}


@pytest.mark.parametrize("kind", ["write", "close"])
@pytest.mark.parametrize(("slow", "left"), [(FIRST, SECOND), (SECOND, FIRST)])
def test_an_upload_waits_for_no_root_while_another_has_it(
    lagging: txnlog.Store,
    tmp_path: Path,
    make_stall: MakeStall,
    kind: str,
    slow: str,
    left: str,
) -> None:
    make_stall(kind, tmp_path / slow)
    clock = lagging.storage.agreement.clock  # type: ignore[attr-defined]
    began_s = clock.monotonic_s()
    with lagging.storage.wait_up_to(1e9), lagging.storage.upload(NAME) as upload:
        upload.write(b"1")
        upload.write(b"2")
    assert clock.monotonic_s() - began_s < 10
    assert objects(tmp_path / left)[NAME] == lagging.storage.get(NAME) == b"12"


@pytest.mark.parametrize("kind", ["write", "close"])
def test_an_upload_ends_if_all_roots_stall_for_too_long(
    lagging: txnlog.Store, tmp_path: Path, make_stall: MakeStall, kind: str
) -> None:
    """After the time that its caller gives it, and not before."""
    stall = make_stall(kind, tmp_path / FIRST, tmp_path / SECOND)
    clock = lagging.storage.agreement.clock  # type: ignore[attr-defined]
    began_s = clock.monotonic_s()
    upload = lagging.storage.upload(NAME)
    with lagging.storage.wait_up_to(60), pytest.raises(TookTooLong):  # noqa: PT012 - one of the two
        upload.write(b"1")
        upload.close()
    assert 60 <= clock.monotonic_s() - began_s < 70
    stall.end()
    if kind == "write":  # an end that was left behind may land, under a name that nothing knows
        assert NAME not in lagging.storage.list_names("topics/t/data/0")


@pytest.mark.parametrize("kind", ["write", "close"])
def test_a_producer_has_its_delivery_timeout_when_all_roots_stall(
    lagging: txnlog.Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_stall: MakeStall,
    kind: str,
) -> None:
    lagging.topics.create("t", partitions=1)
    with lagging.producer(delivery_timeout_ms=10**9) as producer:
        stall = make_stall(kind, tmp_path / FIRST, tmp_path / SECOND)
        end_at_a_pause(lagging, monkeypatch, stall)
        producer.send("t", value=b"1")
        producer.flush()
    assert values(reopened(tmp_path)) == ["1"]


@pytest.mark.parametrize("kind", ["put_if_absent", "upload"])
def test_a_producer_goes_on_once_all_roots_do(
    lagging: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate, kind: str
) -> None:
    """Whichever of its requests they have left unanswered for longer than the lag."""
    lagging.topics.create("t", partitions=1)
    with lagging.producer(delivery_timeout_ms=10**9) as producer:
        producer.send("t", value=b"1")
        for folder in (FIRST, SECOND):
            gate.close(tmp_path / folder, kind)
        end_at_a_pause(lagging, monkeypatch, gate)
        producer.flush()
    assert gate.asked
    assert values(reopened(tmp_path)) == ["1"]


# -- a server that is checked ---------------------------------------------------------------------


class CheckedServer(ForwardingStorage, ServerStorage):
    """A root on a server: what is put there first by a process waits for its check."""

    def __init__(self, inner: Storage, check: Callable[[], None]) -> None:
        super().__init__(inner)
        self._check = check

    @property
    def server(self) -> int:
        return id(self)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        check_once(self.server, self._check)
        return self.inner.put_if_absent(name, data)


@pytest.fixture
def checking(
    lagging: txnlog.Store, tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second root is on a server, whose check waits at the gate."""
    gate.close(tmp_path / SECOND, "size")
    agreement = lagging.storage.agreement  # type: ignore[attr-defined]
    epoch = agreement.epoch()
    opened = {one: agreement.storage(epoch, one) for one in epoch.members}
    disk = opened["r1-0"]
    opened["r1-0"] = CheckedServer(disk, lambda: disk.size("txnlog.json") and None)
    monkeypatch.setattr(agreement, "storage", lambda _, member: opened[member])


@pytest.mark.usefixtures("checking")
def test_a_server_has_the_time_that_its_check_takes(
    lagging: txnlog.Store, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    """The check makes many requests, and the first put waits for it, while the server answers."""
    agreement = lagging.storage.agreement  # type: ignore[attr-defined]
    answers, asked = agreement.answers, []

    def open_then(epoch: Any, member: str) -> object:
        asked.append(member)
        if len(asked) == 2:
            gate.let_go()
        return answers(epoch, member)

    monkeypatch.setattr(agreement, "answers", open_then)
    assert lagging.storage.put_if_absent("x", b"1")
    assert asked[:2] == ["r1-0", "r1-0"]
    assert Replicas(lagging).describe().in_sync == ("r0-0", "r1-0")


@pytest.mark.usefixtures("checking")
def test_a_server_that_stands_still_while_it_is_checked_is_put_out(
    lagging: txnlog.Store, tmp_path: Path, gate: Gate
) -> None:
    gate.close(tmp_path / SECOND, "get")
    assert lagging.storage.put_if_absent("x", b"1")
    assert Replicas(lagging).describe().in_sync == ("r0-0",)


@pytest.mark.usefixtures("checking")
def test_a_check_that_never_ends_is_not_waited_for_for_ever(
    lagging: txnlog.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its puts hang, and the mark can be read."""
    monkeypatch.setattr("txnlog.replication.roots.agreement.MOST_LAGS", 1)
    assert lagging.storage.put_if_absent("x", b"1")
    assert Replicas(lagging).describe().in_sync == ("r0-0",)


def test_a_root_that_others_have_put_out_is_not_waited_for(
    lagging: txnlog.Store, tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as the epochs say so, though it shows its mark, so that a large read goes on."""
    name = f"{names.topic_data_folder('t')}/00000-s.log"
    lagging.storage.put(name, b"123456")
    Replicas(reopened(tmp_path)).remove("r0")
    answers = Agreement.answers
    shown: list[bool] = []

    def shows_its_mark(self: Agreement, epoch: Epoch, member: Member) -> bool:
        shown.append(answers(self, epoch, member))
        if len(shown) == 3:
            gate.let_go()
        return shown[-1]

    monkeypatch.setattr(Agreement, "answers", shows_its_mark)
    gate.close(tmp_path / FIRST, "get_range")
    assert lagging.storage.get_range(name, 1, 3) == b"23"
    assert shown == [True]
    gate.open()


# -- a file that hangs while its root's mark answers -----------------------------------------------


DATA = f"{names.topic_data_folder('t')}/00000-s.log"
ENTRY = "topics/t/log/00000000000000000000.json"


def entry(writer: str) -> bytes:
    return entry_of(DATA, writer)


def test_data_that_hangs_is_read_elsewhere_and_nobody_is_slow(
    lagging: txnlog.Store, tmp_path: Path, gate: Gate
) -> None:
    """The read may be large: so its root stays, and puts that come right after it count there."""
    lagging.storage.put(DATA, b"123456")
    gate.close(tmp_path / FIRST, "get_range")
    for _ in range(2):
        assert lagging.storage.get_range(DATA, 1, 3) == b"23"
    assert gate.asked == ["get_range"]
    assert not lagging.storage.agreement._failing  # type: ignore[attr-defined]
    assert lagging.storage.put_if_absent("x", b"1")
    assert Replicas(lagging).describe().in_sync == ("r0-0", "r1-0")
    gate.open()


def test_so_is_what_is_known_to_be_everywhere(
    lagging: txnlog.Store, tmp_path: Path, gate: Gate
) -> None:
    assert lagging.storage.put_if_absent("x", b"1")
    gate.close(tmp_path / FIRST, "size")
    assert lagging.storage.size("x") == 1
    assert gate.asked == ["size"]
    gate.open()


@pytest.fixture
def asked_beside(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> list[Member]:
    """Who was asked beside what hangs; then that goes on."""
    ask, asked = Agreement.ask_beside, list[Member]()

    def ask_then_end(
        self: Agreement, epoch: Epoch, member: Member, call: Any, within_s: float
    ) -> object:
        try:
            return ask(self, epoch, member, call, within_s)
        finally:
            if gate.asked and not asked:
                asked.append(member)
                gate.let_go()

    monkeypatch.setattr(Agreement, "ask_beside", ask_then_end)
    return asked


def test_that_another_root_lacks_what_hangs_proves_nothing(
    lagging: txnlog.Store, tmp_path: Path, gate: Gate, asked_beside: list[Member]
) -> None:
    lagging.storage.put(DATA, b"123456")
    (tmp_path / SECOND / DATA).unlink()
    gate.close(tmp_path / FIRST, "get_range")
    assert lagging.storage.get_range(DATA, 1, 3) == b"23"
    assert asked_beside == ["r1-0"]


THIRD = "c/incarnation-00000"


def test_what_hangs_at_two_roots_is_read_at_the_third(
    lagging: txnlog.Store, tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is asked beside one that hangs may hang, too."""
    monkeypatch.setattr(agreement, "MOST_LAGS", 2)
    Replicas(lagging).add(str(tmp_path / "c"))
    lagging.storage.put(DATA, b"123456")
    for folder in (FIRST, SECOND):
        gate.close(tmp_path / folder, "get_range")
    for _ in range(2):
        assert lagging.storage.get_range(DATA, 1, 3) == b"23"
    assert Replicas(lagging).describe().in_sync == ("r0-0", "r1-0", "r2-0")
    gate.open()


def test_the_third_root_leads_where_what_the_leader_alone_can_tell_hangs_at_two(
    lagging: txnlog.Store, tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soundness, "MOST_LAGS", 2)
    Replicas(lagging).add(str(tmp_path / "c"))
    for folder in (FIRST, SECOND, THIRD):
        (tmp_path / folder / ENTRY).parent.mkdir(parents=True)
        (tmp_path / folder / ENTRY).write_bytes(entry("decided"))
    for folder in (FIRST, THIRD):  # who came last is asked first
        gate.close(tmp_path / folder, "get", only=ENTRY)
    assert lagging.storage.get(ENTRY) == entry("decided")
    assert Replicas(lagging).describe().leader == "r1-0"
    gate.open()


@pytest.fixture
def differing(lagging: txnlog.Store, tmp_path: Path, gate: Gate) -> None:
    """A follower has what nobody has decided, and the leader's hangs, which only it can tell."""
    assert lagging.storage.put_if_absent("x", b"1")
    for folder, text in ((FIRST, "decided"), (SECOND, "not decided")):
        (tmp_path / folder / ENTRY).parent.mkdir(parents=True)
        (tmp_path / folder / ENTRY).write_bytes(entry(text))
    gate.close(tmp_path / FIRST, "get", only=ENTRY)


@pytest.mark.usefixtures("differing")
def test_another_root_leads_where_what_the_leader_alone_can_tell_hangs(
    lagging: txnlog.Store,
) -> None:
    """So nothing of the old leader's is shown any more, which leaves: it gives no copy, either."""
    assert lagging.storage.get(ENTRY) == entry("not decided")
    told = Replicas(lagging).history()
    assert f"{ENTRY} hangs at the leader r0-0; r1-0 has it whole" in told[1].why
    assert [one.in_sync for one in told[1:]] == [("r0-0", "r1-0"), ("r1-0",)]


@pytest.mark.usefixtures("differing")
def test_who_only_reads_waits_for_what_the_leader_alone_can_tell(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, shown = Agreement.answers, list[Member]()

    def shows_its_mark(self: Agreement, epoch: Epoch, member: Member) -> bool:
        shown.append(member)
        if len(shown) == 3:
            gate.let_go()
        return answers(self, epoch, member)

    monkeypatch.setattr(Agreement, "answers", shows_its_mark)
    reader = reopened(tmp_path)
    reader.storage.get(ENTRY)  # of two roots that differ it is not the leader's that is right
    assert shown[:3] == ["r0-0"] * 3
    assert "hangs" not in "".join(told.why for told in Replicas(reader).history())


# -- how many are left behind --------------------------------------------------------------------


def test_who_does_not_answer_is_asked_no_more_for_a_while() -> None:
    """And not at all when many requests are unanswered: each has a thread."""
    clock, asked = VirtualClock(), []

    def leave_behind(
        call: Callable[[], object], for_s: float, go_on: object = None, is_over: object = None
    ) -> Any:
        assert go_on is is_over is None
        asked.append(call)
        raise NoAnswer(f"no answer for {for_s} s")

    slowness = Slowness(leave_behind, clock)

    def ask() -> int:
        with pytest.raises(TookTooLong):
            slowness.ask("r0-0", lambda: 5, 10)
        return len(asked)

    assert [ask(), ask()] == [1, 1]
    clock.time_ms += 10_000
    assert ask() == 2
    for _ in range(20):
        clock.time_ms += 10_000
        ask()
    assert len(asked) == 8
    for call in asked[:]:
        call()
    assert ask() == 9
    with pytest.raises(TookTooLong, match="no answer"):
        slowness.ask("r1-0", lambda: 5, 10)


def test_the_controller_is_asked_again_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer that is lost stops nobody for as long as it was waited for; no child, at all."""
    clock, asked = VirtualClock(), []

    def leave_behind(
        call: Callable[[], object], for_s: float, go_on: object = None, is_over: object = None
    ) -> Any:
        assert go_on is is_over is None
        asked.append(for_s)
        if len(asked) == 1:
            raise NoAnswer(f"no answer for {for_s} s")
        return call()

    slowness = Slowness(leave_behind, clock)

    def ask() -> int:
        return slowness.ask("the controller", lambda: 5, 100, pause_s=10)

    for _ in range(2):
        with pytest.raises(TookTooLong):
            ask()
    clock.time_ms += 9_000
    with pytest.raises(TookTooLong, match="not answered yet"):
        ask()
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        assert ask() == 5
    clock.time_ms += 1_000
    assert ask() == 5
    assert asked == [100] * 3


def test_what_is_large_has_more_time() -> None:
    epoch = first_epoch({"r0": "/a"}, {}, Proposer("test", 0, "made"))
    assert time_for(epoch) == 10
    assert time_for(epoch, size_bytes=8 << 20) == 18
    assert time_for(epoch, count=1000) == 20
