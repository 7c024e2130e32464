"""Locks of the whole process, and what a fork leaves of them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from txnlog.storage import fork_safe_lock
from txnlog.storage.fork_safe_lock import ForkSafeLock


def test_one_thread_at_a_time() -> None:
    """Its holder may take it again; others wait until it is fully released."""
    lock = ForkSafeLock()
    order: list[str] = []
    began = threading.Event()

    def other() -> None:
        began.set()
        with lock.mutex:
            order.append("other")

    thread = threading.Thread(target=other)
    with lock.mutex:
        with lock.mutex:
            thread.start()
            began.wait()
        order.append("first")
    thread.join()
    assert order == ["first", "other"]


def test_a_child_of_a_fork_finds_it_free() -> None:
    """Another thread of the parent holds it, and does not exist in the child."""
    lock = ForkSafeLock()
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock.mutex:
            held.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        # Not in a new thread, which may be given the number of the one that is gone.
        os._exit(0 if lock.mutex.acquire(timeout=10) else 1)
    _, status = os.waitpid(child, 0)
    over.set()
    thread.join()
    assert status == 0


def test_whoever_forks_holding_it_lets_go_of_it_in_the_child_too() -> None:
    """The lock is another one by then."""
    lock = ForkSafeLock()
    child = -1
    try:
        with lock.mutex:
            child = os.fork()
    except RuntimeError:
        os._exit(1)
    if child == 0:
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0


@pytest.mark.skipif(
    sys.version_info >= (3, 14),
    reason="CPython's issue 148874: an interrupt just after `with lock` has taken it leaves it so",
)
def test_ctrl_c_at_any_time_leaves_it_free() -> None:
    """Real signals, because tracing sees steps between which the interpreter takes none."""
    lock = ForkSafeLock()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def take_for_ever(round_: int) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0003 + round_ * 1e-6)
        while True:
            with lock.mutex:
                pass

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for round_ in range(200):
            with pytest.raises(KeyboardInterrupt):
                take_for_ever(round_)
            with ThreadPoolExecutor(1) as others:
                free = others.submit(lock.mutex.acquire, timeout=5).result()
                assert free, f"after the interrupt of round {round_} no other thread gets it"
                others.submit(lock.mutex.release).result()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_one_that_nobody_has_is_gone() -> None:
    """What is registered for forks stays for the life of the process; each storage has a lock."""
    before = len(fork_safe_lock._LOCKS)
    made: list[object] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("os.register_at_fork", lambda **calls: made.append(calls))
        locks = [ForkSafeLock() for _ in range(10)]
        assert len(fork_safe_lock._LOCKS) == before + 10
    assert made == []
    del locks
    assert len(fork_safe_lock._LOCKS) == before
