"""Locks of the whole process, and what a fork leaves of them."""

from __future__ import annotations

import os
import threading

from txnlog.storage.fork_safe_lock import ForkSafeLock


def test_one_thread_at_a_time() -> None:
    """Who holds it may take it again; others wait until it lets go of all of it."""
    lock = ForkSafeLock()
    order: list[str] = []
    began = threading.Event()

    def other() -> None:
        began.set()
        with lock:
            order.append("other")

    thread = threading.Thread(target=other)
    with lock:
        with lock:
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
        with lock:
            held.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        taken = threading.Event()

        def take() -> None:
            with lock:
                taken.set()

        threading.Thread(target=take, daemon=True).start()
        os._exit(0 if taken.wait(30) else 1)
    _, status = os.waitpid(child, 0)
    over.set()
    thread.join()
    assert status == 0
