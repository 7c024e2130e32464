"""Objects that several threads may share: one thread at a time is in any of their methods."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class TakesTurns(Protocol):
    """Has one lock for all of its methods."""

    _turn: threading.RLock


ObjectT = TypeVar("ObjectT", bound=TakesTurns)
P = ParamSpec("P")
T = TypeVar("T")


def in_turn(
    method: Callable[Concatenate[ObjectT, P], T],
) -> Callable[Concatenate[ObjectT, P], T]:
    """A method that waits until no other thread is in a method that is marked with this."""

    @wraps(method)
    def waiting(self: ObjectT, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._turn:
            return method(self, *args, **kwargs)

    return waiting
