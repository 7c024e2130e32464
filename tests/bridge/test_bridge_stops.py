"""How ``txnlog bridge`` is stopped, whatever it waits for."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

import txnlog
from txnlog.bridge import BridgeCommit, KafkaSink
from txnlog.cli.commands.bridge import run_bridge
from txnlog.errors import BridgeFailed
from txnlog.store import Store


def run_command(
    monkeypatch: pytest.MonkeyPatch,
    store: Store,
    run: Callable[..., None],
    rows: Callable[[], object],
) -> None:
    monkeypatch.setattr(KafkaSink, "run", lambda _, **given: run(**given))
    output = SimpleNamespace(rows=lambda *_, **__: rows())
    session: Any = SimpleNamespace(open_store=lambda: store, output=output)
    run_bridge(session, ["t"], target="kafka://h:1")


def interrupt(times: int) -> None:
    for _ in range(times):
        signal.raise_signal(signal.SIGINT)


def leave() -> None:
    raise BrokenPipeError


@pytest.fixture(autouse=True)
def _takes_interrupts() -> Iterator[None]:
    """Though the tests run in the background, where a shell lets SIGINT be ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def store() -> Store:
    return txnlog.open("memory://bridge-stops", create=True)


@pytest.mark.parametrize(
    ("rows", "error"),
    [(lambda: interrupt(1), None), (leave, BrokenPipeError)],
    ids=["one Ctrl-C", "nobody reads"],
)
def test_it_ends_after_a_commit(
    monkeypatch: pytest.MonkeyPatch,
    store: Store,
    rows: Callable[[], None],
    error: type[Exception] | None,
) -> None:
    """The bridge is asked to, and waited for."""
    committed: list[bool] = []

    def run(*, is_stopped: Callable[[], bool], **_: object) -> None:
        while not is_stopped():
            pass
        committed.append(True)

    if error is None:
        run_command(monkeypatch, store, run, rows)
    else:
        with pytest.raises(error):
            run_command(monkeypatch, store, run, rows)
    assert committed


def test_a_second_interrupt_does_not_wait(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    """Kafka may be silent for as long as its client waits."""
    answered, ended = Event(), Event()

    def run(**_: object) -> None:
        answered.wait(5)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        run_command(monkeypatch, store, run, lambda: interrupt(2))
    assert not ended.is_set()
    answered.set()
    assert ended.wait(5)


def test_its_failure_is_the_command_s(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    told: list[object] = []

    def run(*, report: Callable[[BridgeCommit], None], **_: object) -> None:
        report(BridgeCommit(1, 2, {}, 3))
        raise BridgeFailed("it is over")

    monkeypatch.setattr(KafkaSink, "run", lambda _, **given: run(**given))
    output = SimpleNamespace(rows=lambda _, commits, **__: told.extend(commits))
    session: Any = SimpleNamespace(open_store=lambda: store, output=output)
    with pytest.raises(BridgeFailed, match="it is over"):
        run_bridge(session, ["t"], target="kafka://h:1")
    assert told == [BridgeCommit(1, 2, {}, 3)]
