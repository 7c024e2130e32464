"""Roots that answer too late: they are put out, and what they do later matters to nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from replica_folders import FIRST, SECOND, make, objects, reopened, skip_probes

import txnlog
from txnlog.errors import NotEnoughReplicas
from txnlog.replicas.epochs import Proposer, first_epoch
from txnlog.replicas.slowness import Slowness, time_for
from txnlog.storage.adapters.local import LocalStorage
from txnlog.storage.left_behind import TookTooLong
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

    def open(self) -> None:
        """Let them through, and wait until one has come through."""
        self._opened.set()
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
    described = made.replicas()
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
    made.add_replica(str(tmp_path / "a"))
    assert objects(tmp_path / "a/incarnation-00001")["x"] == b"2"


@pytest.mark.parametrize("unclean", [True, False])
def test_the_last_one_in_sync_stays(tmp_path: Path, gate: Gate, unclean: bool) -> None:
    """Also where an unclean election is allowed: it is there, and has everything."""
    settings = {"replica.lag.time.max.ms": LAG_MS, "unclean.leader.election.enable": unclean}
    store = make(tmp_path, **settings)
    store.remove_replica("r1")
    gate.close(tmp_path / FIRST, "put_if_absent", "get")
    with pytest.raises(NotEnoughReplicas, match=r"not answered yet|no answer"):
        store.storage.put_if_absent("x", b"1")
    assert store.replicas().in_sync == ("r0-0",)
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
    assert made.replicas().epoch == 0


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
    assert made.replicas().in_sync == ("r0-0",)
    assert made.storage.get("topics/t/data/0/x-0.log") == b"12"


# -- how many are left behind --------------------------------------------------------------------


def test_who_does_not_answer_is_asked_no_more_for_a_while() -> None:
    """And not at all when many requests are unanswered: each has a thread."""
    clock, asked = VirtualClock(), []

    def leave_behind(call: Callable[[], object], for_s: float, go_on: object = None) -> Any:
        assert go_on is None
        asked.append(call)
        raise TookTooLong(f"no answer for {for_s} s")

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
