"""Objects that several threads may share: one thread at a time is in any of their methods.

Not so processes: in a child of a fork such an object is the parent's still, and refuses.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from txnlog.errors import ForkedProducer


class Turn:
    """The one lock of an object, and the process that the object belongs to."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._process_id = os.getpid()

    @property
    def inherited(self) -> bool:
        """Whether this process is a child of the one that made the object."""
        return os.getpid() != self._process_id

    def check(self) -> None:
        """Raise ForkedProducer in a child. The lock may be held there by nobody, for ever."""
        if self.inherited:
            raise ForkedProducer(
                f"this producer belongs to process {self._process_id}, and this is its child "
                f"{os.getpid()}: both would write as one producer. Nothing was done here, and "
                "nothing of the parent's is lost; make a new producer in the child"
            )


class TakesTurns(Protocol):
    """Has one lock for all of its methods."""

    _turn: Turn


ObjectT = TypeVar("ObjectT", bound=TakesTurns)
P = ParamSpec("P")
T = TypeVar("T")


def in_turn(
    method: Callable[Concatenate[ObjectT, P], T],
) -> Callable[Concatenate[ObjectT, P], T]:
    """A method that waits until no other thread is in a method that is marked with this.

    It raises ForkedProducer in a child of the process that the object belongs to.
    """

    @wraps(method)
    def waiting(self: ObjectT, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._turn.check()
        with self._turn.lock:
            return method(self, *args, **kwargs)

    return waiting
