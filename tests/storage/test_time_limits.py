"""Calls that are waited for so long and no longer, and then left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from txnlog.errors import ObjectNotFound
from txnlog.time_limits import NoAnswer, _Job, run_within

SOON_S = 0.01


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    opened = threading.Event()
    yield opened
    opened.set()


def waiting() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "txnlog-wait"]


def test_what_a_call_returns_or_raises() -> None:
    def fail() -> None:
        raise ObjectNotFound("x")

    assert run_within(lambda: 5, 10) == 5
    with pytest.raises(ObjectNotFound, match="x"):
        run_within(fail, 10)


def test_an_error_of_the_kind_of_ours_is_the_calls_own() -> None:
    def time_out() -> None:
        raise TimeoutError("the call's own")

    for _ in range(2):
        with pytest.raises(TimeoutError, match="the call's own") as caught:
            run_within(time_out, 10)
        assert not isinstance(caught.value, NoAnswer)


def test_calls_one_after_the_other_use_one_thread() -> None:
    first = run_within(threading.get_ident, 10)
    assert {run_within(threading.get_ident, 10) for _ in range(50)} == {first}


def test_a_call_that_takes_too_long_goes_on(gate: threading.Event) -> None:
    ended = threading.Event()

    def slow() -> None:
        gate.wait()
        ended.set()

    with pytest.raises(NoAnswer, match=r"no answer for 0\.01 s"):
        run_within(slow, SOON_S)
    assert not ended.is_set()
    assert run_within(lambda: 5, 10) == 5
    gate.set()
    assert ended.wait(10)


def test_it_is_over_when_that_is_said_however_late(gate: threading.Event) -> None:
    """It is asked for once, though the call is given more time meanwhile."""
    hopes, asked = iter([True, True]), []

    def go_on() -> bool:
        if (hope := next(hopes, None)) is None:
            gate.set()
        return hope is not False

    def is_over() -> bool:
        asked.append(True)
        return gate.wait(10)

    with pytest.raises(NoAnswer, match="others go on without it"):
        run_within(threading.Event().wait, SOON_S, go_on, is_over)
    assert asked == [True]


def test_it_is_waited_for_as_long_as_there_is_hope(gate: threading.Event) -> None:
    hopes = [True, True, False]

    def go_on() -> bool:
        if len(hopes) == 2:
            gate.set()
        return hopes.pop(0)

    assert run_within(gate.wait, SOON_S, go_on)
    with pytest.raises(NoAnswer):
        run_within(threading.Event().wait, SOON_S, lambda: False)


def test_what_is_over_is_not_waited_for(gate: threading.Event) -> None:
    """Whatever hope there is."""
    hopes: list[bool] = []

    def go_on() -> bool:
        hopes.append(True)
        if len(hopes) == 3:
            gate.set()
        return True

    with pytest.raises(NoAnswer, match="without it"):
        run_within(gate.wait, SOON_S, go_on, lambda: True)
    assert run_within(gate.wait, SOON_S, go_on, lambda: False)


@pytest.mark.parametrize("hope", [True, False])
def test_whether_there_is_hope_is_asked_within_the_time(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch, hope: bool
) -> None:
    """Who is asked may hang as well: then it is over when the time is."""
    waits: list[float] = []
    asked, said = threading.Event(), threading.Event()

    def wait(job: _Job, for_s: float, _: _Job | None = None) -> bool:
        waits.append(for_s)
        if len(waits) == 2:
            assert (said if hope else asked).wait(10)
        if len(waits) > 2:
            gate.set()
            return wait_whole(job, 10)
        return False

    def go_on() -> bool:
        asked.set()
        return hope or gate.wait()

    def end(job: _Job) -> None:
        if job._call is go_on:  # and none that an earlier test has left behind
            said.set()
        end_whole(job)

    wait_whole, end_whole = _Job.wait, _Job.end
    monkeypatch.setattr(_Job, "wait", wait)
    monkeypatch.setattr(_Job, "end", end)
    if hope:
        assert run_within(gate.wait, 8, go_on)
    else:
        with pytest.raises(NoAnswer):
            run_within(gate.wait, 8, go_on)
    assert waits == [2, 6, 2][: 3 if hope else 2]


def test_a_fork_copies_no_idle_thread() -> None:
    run_within(lambda: 5, 10)
    assert waiting()
    child = os.fork()
    if child == 0:
        os._exit(0 if run_within(lambda: 5, 10) == 5 and len(waiting()) == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert run_within(lambda: 5, 10) == 5


def test_what_hangs_keeps_no_process_from_ending() -> None:
    program = (
        "import threading\n"
        "from txnlog.time_limits import NoAnswer, _Job, run_within\n"
        "try: run_within(threading.Event().wait, 0.001)\n"
        "except NoAnswer: print('left')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "left\n"
