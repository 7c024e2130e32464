"""Roots that answer too late: they are put out, and what they do later matters to nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import txnlog
from tests.support.replication.replica_folders import (
    FIRST,
    SECOND,
    make,
    objects,
    reopened,
    skip_probes,
    values,
)
from txnlog.errors import NotEnoughReplicas, StorageError
from txnlog.replication import Replicas
from txnlog.replication.roots.epochs import Proposer, first_epoch
from txnlog.replication.roots.slowness import Slowness, TookTooLong, time_for
from txnlog.storage.adapters.local import LocalStorage
from txnlog.storage.base import Upload
from txnlog.storage.time_limits import NoAnswer
from txnlog.testing import VirtualClock

LAG_MS = 200


class Gate:
    """Requests of some kinds to one folder wait before it until it is opened."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._opened = threading.Event()
        self._waiting = threading.Semaphore(0)
        self._through = 0
        self.asked: list[str] = []

    def close(self, folder: Path, *kinds: str) -> None:
        for kind in kinds:
            self._patch.setattr(LocalStorage, kind, self._gated(folder, kind))

    def _gated(self, folder: Path, kind: str) -> Callable[..., Any]:
        method = getattr(LocalStorage, kind)

        def gated(storage: LocalStorage, *given: Any) -> Any:
            if storage.url != str(folder) or self._opened.is_set():
                return method(storage, *given)
            self.asked.append(kind)
            self._opened.wait()
            try:
                return method(storage, *given)
            finally:
                self._waiting.release()

        return gated

    def let_go(self) -> None:
        """Let them through."""
        self._opened.set()

    def open(self) -> None:
        """Let them through, and wait until one has come through."""
        self.let_go()
        assert self._waiting.acquire(timeout=10)
        self._through += 1

    def end(self) -> None:
        """Wait for all others: the next test may have a folder of the same name."""
        self._opened.set()
        for _ in range(len(self.asked) - self._through):
            assert self._waiting.acquire(timeout=10)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    skip_probes(monkeypatch)
    gate = Gate(monkeypatch)
    yield gate
    gate.end()


@pytest.fixture
def made(gate: Gate, tmp_path: Path) -> txnlog.Store:
    return make(tmp_path, **{"replica.lag.time.max.ms": LAG_MS})


@pytest.mark.parametrize(("slow", "left"), [(FIRST, "r1-0"), (SECOND, "r0-0")])
def test_a_slow_root_is_put_out(
    made: txnlog.Store, tmp_path: Path, gate: Gate, slow: str, left: str
) -> None:
    """Its put lands later, and is of nobody's interest."""
    gate.close(tmp_path / slow, "put_if_absent")
    assert made.storage.put_if_absent("x", b"1")
    described = Replicas(made).describe()
    assert described.in_sync == (left,)
    assert "no answer for" in described.why
    assert gate.asked == ["put_if_absent"]
    assert made.storage.put_if_absent("y", b"1")
    gate.open()
    assert objects(tmp_path / slow)["x"] == b"1"
    assert "y" not in objects(tmp_path / slow)
    assert reopened(tmp_path).storage.list_names("") == ["txnlog.json", "x", "y"]


def test_what_lands_late_at_an_old_leader_is_nothing(
    made: txnlog.Store, tmp_path: Path, gate: Gate
) -> None:
    """Another process has put the name by then, at the leader."""
    gate.close(tmp_path / FIRST, "put_if_absent")
    assert made.storage.put_if_absent("x", b"1")
    other = reopened(tmp_path)
    assert not other.storage.put_if_absent("x", b"2")
    made.storage.delete(["x"])
    assert other.storage.put_if_absent("x", b"2")
    gate.open()
    assert objects(tmp_path / FIRST)["x"] == b"1"
    assert made.storage.get("x") == reopened(tmp_path).storage.get("x") == b"2"
    Replicas(made).add(str(tmp_path / "a"))
    assert objects(tmp_path / "a/incarnation-00001")["x"] == b"2"


@pytest.mark.parametrize("unclean", [True, False])
def test_the_last_one_in_sync_stays(tmp_path: Path, gate: Gate, unclean: bool) -> None:
    """Also where an unclean election is allowed: it is there, and has everything."""
    settings = {"replica.lag.time.max.ms": LAG_MS, "unclean.leader.election.enable": unclean}
    store = make(tmp_path, **settings)
    Replicas(store).remove("r1")
    gate.close(tmp_path / FIRST, "put_if_absent", "get")
    with pytest.raises(NotEnoughReplicas, match=r"not answered yet|no answer"):
        store.storage.put_if_absent("x", b"1")
    assert Replicas(store).describe().in_sync == ("r0-0",)
    gate.open()
    assert store.storage.get("x") == b"1"


def test_who_is_slow_and_shows_its_mark_is_read_on(
    made: txnlog.Store, tmp_path: Path, gate: Gate
) -> None:
    """A listing may be long: it is waited for."""
    check = made.storage.agreement.check_mark  # type: ignore[attr-defined]
    asked = []

    def open_then(*told: Any, **how: Any) -> None:
        asked.append(told)
        if len(asked) == 2:
            gate.open()
        check(*told, **how)

    made.storage.agreement.check_mark = open_then  # type: ignore[attr-defined]
    gate.close(tmp_path / FIRST, "list_names")
    assert made.storage.list_names("") == ["txnlog.json"]
    assert Replicas(made).describe().epoch == 0


def test_an_upload_that_is_left_just_when_its_call_ends_is_dropped(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither who left it nor who made the call may take the other one for who drops it."""
    ask = Slowness.ask

    def ask_too_late(slowness: Slowness, member: str, *told: Any) -> object:
        done = ask(slowness, member, *told)
        if member == "r1-0":
            raise TookTooLong("no answer")
        return done

    with made.storage.upload("topics/t/data/0/x-0.log") as upload:
        assert [*(tmp_path / SECOND / ".tmp").iterdir()] != []
        with monkeypatch.context() as patch:
            patch.setattr(Slowness, "ask", ask_too_late)
            upload.write(b"12")
        assert [*(tmp_path / SECOND / ".tmp").iterdir()] == []


def test_an_upload_that_is_slow_is_copied_from_another(
    made: txnlog.Store, tmp_path: Path, gate: Gate
) -> None:
    gate.close(tmp_path / SECOND, "upload")
    with made.storage.upload("topics/t/data/0/x-0.log") as upload:
        upload.write(b"12")
    assert Replicas(made).describe().in_sync == ("r0-0",)
    assert made.storage.get("topics/t/data/0/x-0.log") == b"12"


# -- uploads -------------------------------------------------------------------------------------


class Stalled(Upload):
    """An upload whose writes, or whose end, wait until they are let go on."""

    def __init__(self, inner: Upload, stall: Stall, folder: str) -> None:
        self._inner = inner
        self._stall = stall
        self._folder = folder

    def write(self, data: bytes) -> int:
        with self._stall.waiting(self._folder, "write"):
            return self._inner.write(data)

    def close(self) -> None:
        with self._stall.waiting(self._folder, "close"):
            if self._stall.fails_with is not None:
                raise self._stall.fails_with
            self._inner.close()

    def discard(self) -> None:
        self._inner.discard()


class Stall:
    """Calls of one kind to uploads at some folders wait until it is over."""

    def __init__(self, patch: pytest.MonkeyPatch, kind: str, *folders: Path) -> None:
        self._kind = kind
        self._folders = {str(folder) for folder in folders}
        self.fails_with: Exception | None = None
        """What the end of an upload raises once it goes on."""
        self._over = threading.Event()
        self._begun: list[str] = []
        self._through = threading.Semaphore(0)
        upload = LocalStorage.upload

        def stalled(storage: LocalStorage, name: str) -> Upload:
            return Stalled(upload(storage, name), self, storage.url)

        patch.setattr(LocalStorage, "upload", stalled)

    @contextmanager
    def waiting(self, folder: str, kind: str) -> Iterator[None]:
        """Around a call, which waits if it is one of those."""
        if kind != self._kind or folder not in self._folders:
            yield
            return
        self._begun.append(folder)
        self._over.wait()
        try:
            yield
        finally:
            self._through.release()

    def let_go(self) -> None:
        self._over.set()

    def end(self) -> None:
        """Wait for all calls: the next test may have a folder of the same name."""
        self.let_go()
        while self._begun:
            self._begun.pop()
            assert self._through.acquire(timeout=10)


MakeStall = Callable[..., Stall]


@pytest.fixture
def make_stall(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeStall]:
    """Make a :class:`Stall` that is over before the next test begins."""
    made: list[Stall] = []

    def make_one(kind: str, *folders: Path) -> Stall:
        made.append(Stall(monkeypatch, kind, *folders))
        return made[-1]

    yield make_one
    for stall in made:
        stall.end()


def end_at_a_pause(store: txnlog.Store, patch: pytest.MonkeyPatch, stall: Stall | Gate) -> None:
    """The stall is over when the store's clock has been waited with three times."""
    clock = store.storage.agreement.clock  # type: ignore[attr-defined]
    sleep, slept = clock.sleep, []

    def sleep_then_end(seconds: float) -> None:
        sleep(seconds)
        slept.append(seconds)
        if len(slept) == 3:
            stall.let_go()

    patch.setattr(clock, "sleep", sleep_then_end)


NAME = "topics/t/data/0/x-0.log"


@pytest.mark.parametrize("kind", ["write", "close"])
def test_an_upload_waits_while_all_roots_stall(
    made: txnlog.Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_stall: MakeStall,
    kind: str,
) -> None:
    """Nobody has a copy of what it was given: dropped at all roots it would be lost."""
    stall = make_stall(kind, tmp_path / FIRST, tmp_path / SECOND)
    end_at_a_pause(made, monkeypatch, stall)
    with made.storage.wait_up_to(1e9), made.storage.upload(NAME) as upload:
        upload.write(b"1")
        upload.write(b"2")
    assert made.storage.get(NAME) == b"12"
    in_sync = {"r0-0": FIRST, "r1-0": SECOND}
    assert {
        objects(tmp_path / in_sync[one])[NAME] for one in Replicas(made).describe().in_sync
    } == {b"12"}


@pytest.mark.parametrize("error", [StorageError("a fault"), RuntimeError("a fault")])
def test_an_upload_that_fails_when_it_goes_on_has_failed(
    made: txnlog.Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_stall: MakeStall,
    error: Exception,
) -> None:
    """Whatever it raises: nobody has the object."""
    stall = make_stall("close", tmp_path / FIRST, tmp_path / SECOND)
    stall.fails_with = error
    end_at_a_pause(made, monkeypatch, stall)
    upload = made.storage.upload(NAME)
    upload.write(b"1")
    with made.storage.wait_up_to(1e9), pytest.raises(type(error), match="a fault"):
        upload.close()
    assert NAME not in {*objects(tmp_path / FIRST), *objects(tmp_path / SECOND)}


@pytest.mark.parametrize("kind", ["write", "close"])
@pytest.mark.parametrize(("slow", "left"), [(FIRST, SECOND), (SECOND, FIRST)])
def test_an_upload_waits_for_no_root_while_another_has_it(
    made: txnlog.Store,
    tmp_path: Path,
    make_stall: MakeStall,
    kind: str,
    slow: str,
    left: str,
) -> None:
    make_stall(kind, tmp_path / slow)
    clock = made.storage.agreement.clock  # type: ignore[attr-defined]
    began_s = clock.monotonic_s()
    with made.storage.wait_up_to(1e9), made.storage.upload(NAME) as upload:
        upload.write(b"1")
        upload.write(b"2")
    assert clock.monotonic_s() - began_s < 10
    assert objects(tmp_path / left)[NAME] == made.storage.get(NAME) == b"12"


@pytest.mark.parametrize("kind", ["write", "close"])
def test_an_upload_ends_if_all_roots_stall_for_too_long(
    made: txnlog.Store, tmp_path: Path, make_stall: MakeStall, kind: str
) -> None:
    """After the time that its caller gives it, and not before."""
    stall = make_stall(kind, tmp_path / FIRST, tmp_path / SECOND)
    clock = made.storage.agreement.clock  # type: ignore[attr-defined]
    began_s = clock.monotonic_s()
    upload = made.storage.upload(NAME)
    with made.storage.wait_up_to(60), pytest.raises(TookTooLong):  # noqa: PT012 - one of the two
        upload.write(b"1")
        upload.close()
    assert 60 <= clock.monotonic_s() - began_s < 70
    stall.end()
    if kind == "write":  # an end that was left behind may land, under a name that nothing knows
        assert NAME not in made.storage.list_names("topics/t/data/0")


@pytest.mark.parametrize("kind", ["write", "close"])
def test_a_producer_has_its_delivery_timeout_when_all_roots_stall(
    made: txnlog.Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_stall: MakeStall,
    kind: str,
) -> None:
    made.topics.create("t", partitions=1)
    with made.producer(delivery_timeout_ms=10**9) as producer:
        stall = make_stall(kind, tmp_path / FIRST, tmp_path / SECOND)
        end_at_a_pause(made, monkeypatch, stall)
        producer.send("t", value=b"1")
        producer.flush()
    assert values(reopened(tmp_path)) == ["1"]


@pytest.mark.parametrize("kind", ["put_if_absent", "upload"])
def test_a_producer_goes_on_once_all_roots_do(
    made: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate, kind: str
) -> None:
    """Whichever of its requests they have left unanswered for longer than the lag."""
    made.topics.create("t", partitions=1)
    with made.producer(delivery_timeout_ms=10**9) as producer:
        producer.send("t", value=b"1")
        for folder in (FIRST, SECOND):
            gate.close(tmp_path / folder, kind)
        end_at_a_pause(made, monkeypatch, gate)
        producer.flush()
    assert gate.asked
    assert values(reopened(tmp_path)) == ["1"]


# -- how many are left behind --------------------------------------------------------------------


def test_who_does_not_answer_is_asked_no_more_for_a_while() -> None:
    """And not at all when many requests are unanswered: each has a thread."""
    clock, asked = VirtualClock(), []

    def leave_behind(call: Callable[[], object], for_s: float, go_on: object = None) -> Any:
        assert go_on is None
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


def test_what_is_large_has_more_time() -> None:
    epoch = first_epoch({"r0": "/a"}, {}, Proposer("test", 0, "made"))
    assert time_for(epoch) == 10
    assert time_for(epoch, size_bytes=8 << 20) == 18
    assert time_for(epoch, count=1000) == 20
