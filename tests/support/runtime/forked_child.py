"""Children of a fork, in which a function runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

CHILD_S = 60
"""A child that hangs is killed by a signal of its own."""


class Child:
    """A forked process that runs a function, and what came of it."""

    def __init__(self, work: Callable[[], object]) -> None:
        reading, writing = os.pipe()
        self.process_id = os.fork()
        if self.process_id == 0:
            signal.alarm(CHILD_S)
            try:
                told = repr(work())
            except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - told to the parent
                told = f"{type(error).__name__}: {error}"
            os.write(writing, told.encode()[:4000])
            os._exit(0)
        os.close(writing)
        self._reading = reading

    def result(self) -> str:
        with os.fdopen(self._reading, "rb") as pipe:
            told = pipe.read().decode()
        _, status = os.waitpid(self.process_id, 0)
        assert status == 0, f"the child ended with {status}"
        return told


def in_child(work: Callable[[], object]) -> str:
    return Child(work).result()
