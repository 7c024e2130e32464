"""Calls that are waited for so long and no longer."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from tests.support.runtime.forked_child import in_child
from txnlog.storage.time_limits import NoAnswer, run_within


def test_a_call_returns_and_raises_what_it_does() -> None:
    """Also an error that is of the kind of ours."""
    assert run_within(60, lambda: 7) == 7

    def time_out() -> None:
        raise TimeoutError("the call's own")

    for _ in range(2):
        with pytest.raises(TimeoutError, match="the call's own") as caught:
            run_within(60, time_out)
        assert not isinstance(caught.value, NoAnswer)


def test_a_call_that_does_not_end_is_left_behind() -> None:
    """Others are made meanwhile, and by its thread too when it has ended after all."""
    going, ended = threading.Event(), threading.Event()
    threads: list[int] = []

    def hang() -> None:
        threads.append(threading.get_ident())
        going.wait(60)
        ended.set()

    with pytest.raises(NoAnswer, match=r"no answer for 0\.01 s"):
        run_within(0.01, hang)
    assert not ended.is_set()
    assert run_within(60, threading.get_ident) != threads[0]
    going.set()
    assert ended.wait(60)


def test_threads_are_kept() -> None:
    """From one call to the next."""
    assert run_within(60, threading.get_ident) == run_within(60, threading.get_ident)


def test_a_child_of_a_fork_begins_its_own() -> None:
    """Its parent's threads are missing there."""
    run_within(60, threading.get_ident)
    assert in_child(lambda: run_within(60, lambda: 7)) == "7"


def test_a_process_ends_while_a_call_hangs() -> None:
    """Nobody waits for what was given up."""
    program = """
import threading
from txnlog.storage.time_limits import NoAnswer, run_within
try:
    run_within(0.01, threading.Event().wait)
except NoAnswer:
    print("given up")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "given up\n"
