"""A storage in use when its process forks: the child goes on with its own connection.

It is checked in a new process, since the caller may have threads that do not survive a fork.
"""

from __future__ import annotations

import os
import warnings
from multiprocessing import get_context

from txnlog.storage.base import Storage
from txnlog.testing.conformance.expectations import expect, expect_equal

_PATIENCE_S = 120.0


def a_connection_survives_a_fork(storage: Storage) -> None:
    """Parent and child put and read, through the same handle, before and after each other."""
    process = get_context("spawn").Process(target=_fork, args=(storage,))
    process.start()
    process.join(_PATIENCE_S)
    if process.exitcode is None:
        process.kill()
        process.join()
    expect(process.exitcode == 0, f"the process that forked ended with {process.exitcode}")
    names = ["after", "before", "child"]
    expect_equal(storage.list_names("forked"), names, "what parent and child have put")


def _fork(storage: Storage) -> None:
    # Forking with the threads of a client is what is checked here.
    warnings.simplefilter("ignore", DeprecationWarning)
    storage.trust()
    expect(storage.put_if_absent("forked/before", b"x"), "creating a new name was refused")
    child = os.fork()
    if child == 0:
        fine = False
        try:
            fine = storage.get("forked/before") == b"x"
            fine = fine and storage.put_if_absent("forked/child", b"y")
            fine = fine and not storage.put_if_absent("forked/before", b"z")
        finally:
            os._exit(0 if fine else 1)
    expect(storage.put_if_absent("forked/after", b"x"), "the parent's handle does not go on")
    status = os.waitpid(child, 0)[1]
    expect(status == 0, "the child's handle does not work")
    expect_equal(storage.get("forked/child"), b"y", "what the child has put")
