"""Failures of HTTP requests, in the adapters' common terms, and retries.

A client of some library says which of few kinds an error is, so that the storage around it need
not know the library. Knows no server and no stores.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from enum import Enum, auto
from time import sleep
from typing import TypeVar

T = TypeVar("T")

BUSY_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
"""With these the same request may succeed later, on any server."""
BUSY_HINTS = {
    429: "the server asks for fewer requests: try again later",
    500: "the server has a problem: try again later",
    502: "the server has a problem: try again later",
    503: "the server is overloaded or down: try again later",
}

_PAUSES_S = (0.3, 1.0, 2.5)
"""About how long to wait before each retry. A request refused after all of them is reported;
commits are retried for longer, see ``storage/create_once``.
"""
_LONGEST_PAUSE_S = 20.0
"""A server may ask for a longer pause: that is reported instead."""


class Answer(Enum):
    """The kinds of errors that make a difference to a storage."""

    TAKEN = auto()
    """A create was refused: the name has an object."""
    MISSING = auto()
    """There is no such object; its bucket or container is there."""
    PAST_END = auto()
    """A range begins at the end of the object, or behind it."""
    BUSY = auto()
    """A repetition may succeed, or the request may have succeeded: its answer was lost."""
    REFUSED = auto()
    """It needs a fix first."""


class RequestFailed(Exception):
    """A request had no answer, or one that is not a success.

    ``text`` may hold secrets. ``pause_s`` is how long the server asks to wait.
    """

    def __init__(self, answer: Answer, text: str, hint: str = "", pause_s: float = 0.0) -> None:
        super().__init__(text)
        self.answer = answer
        self.hint = hint
        self.pause_s = pause_s


def patiently(request: Callable[[], T]) -> T:
    """Make a request again, after a pause, while the server is busy or does not answer.

    A create whose answer was lost is refused the second time.

    Raises RequestFailed: the last one.
    """
    for pause_s in _PAUSES_S:
        try:
            return request()
        except RequestFailed as error:
            if error.answer is not Answer.BUSY or error.pause_s > _LONGEST_PAUSE_S:
                raise
            # Spread out, so that requests refused together are not retried together.
            sleep(max(error.pause_s, pause_s) * random.uniform(0.7, 1.3))
    return request()


def pause_asked(header: str | None) -> float:
    """The seconds of a Retry-After header; 0 if there is none, or a date."""
    return float(header) if header is not None and header.strip().isdecimal() else 0.0
