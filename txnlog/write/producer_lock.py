"""The lock of a producer: threads may share it, one at a time in any of its methods.

Processes may not: in a forked child a producer is still the parent's, and refuses.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from txnlog.errors import ForkedProducer


class ProducerLock:
    """The one lock of a producer, and the process that the producer belongs to.

    ``noun``: its name in messages, if users do not see it as a producer.
    """

    def __init__(self, noun: str = "producer") -> None:
        self._noun = noun
        self.mutex = threading.RLock()
        self._process_id = os.getpid()
        self.inherited = False
        """Whether this process is a fork of the one that made the producer."""
        _LOCKS.add(self)

    def check(self) -> None:
        """Raise ForkedProducer in a child, where the mutex may be locked for ever."""
        if self.inherited:
            raise ForkedProducer(
                f"this {self._noun} belongs to process {self._process_id}, and this is its child "
                f"{os.getpid()}: both would write as one producer. Nothing was done here, and "
                f"nothing of the parent's is lost; make a new {self._noun} in the child"
            )


_LOCKS: weakref.WeakSet[ProducerLock] = weakref.WeakSet()


def _after_fork() -> None:
    # Stored once, so that not every send looks up the process's id.
    for lock in list(_LOCKS):
        lock.inherited = True


os.register_at_fork(after_in_child=_after_fork)


class Locked(Protocol):
    """Has one lock for all of its methods."""

    _lock: ProducerLock


LockedT = TypeVar("LockedT", bound=Locked)
P = ParamSpec("P")
T = TypeVar("T")


def exclusive(
    method: Callable[Concatenate[LockedT, P], T],
) -> Callable[Concatenate[LockedT, P], T]:
    """A method that waits until no other thread is in a method that is marked with this.

    It raises ForkedProducer in a child of the process that the producer belongs to.
    """

    @wraps(method)
    def waiting(self: LockedT, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._lock.check()
        with self._lock.mutex:
            return method(self, *args, **kwargs)

    return waiting
