"""Readers one after another, whose results are made ahead of their consumer.

While the last results of one reader are made, the next one is opened and its first are begun: no
processor waits between two files. Knows nothing of what is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import Generic, NamedTuple, NoReturn, TypeVar

from txnlog.storage.ahead import SizedCall, work_ahead

R = TypeVar("R")
T = TypeVar("T")


class _Outcome(NamedTuple, Generic[T]):
    """A result of the reader with this number; ``take`` returns it, or raises its error."""

    number: int
    take: Callable[[], T]


class InTurn(Generic[R, T]):
    """Iterating returns the readers; ``results`` are those of the last one returned.

    ``readers``: taken when it is their turn, or a little before. ``calls_of``: a reader's calls
    that make its results, each with its approximate size in bytes. The reader is opened when the
    first one is asked for, in the iterating thread. ``runs_ahead``: whether it may be opened
    before.
    """

    def __init__(
        self,
        readers: Iterable[R],
        calls_of: Callable[[R], Iterator[SizedCall[T]]],
        runs_ahead: Callable[[R], bool],
    ) -> None:
        self._coming = enumerate(readers)
        self._calls_of = calls_of
        self._runs_ahead = runs_ahead
        self._seen: deque[tuple[int, R]] = deque()
        """The readers that were taken before their turn."""
        self._current: tuple[int, R] | None = None
        self._last_begun = -1
        self._outcomes: Generator[_Outcome[T]] | None = None
        self._held: _Outcome[T] | None = None

    def __iter__(self) -> Iterator[R]:
        while True:
            self._current = self._seen.popleft() if self._seen else next(self._coming, None)
            if self._current is None:
                return
            yield self._current[1]

    def results(self) -> Iterator[T]:
        """The results of the reader's calls, in order; errors are raised in turn."""
        assert self._current is not None
        number, reader = self._current
        if self._last_begun < number:
            self._outcomes = work_ahead(self._begin(number, reader))
        while (outcome := self._next_outcome()) is not None and outcome.number <= number:
            self._held = None
            if outcome.number == number:  # others are of readers that were not read to their end
                yield outcome.take()

    def close(self) -> None:
        """Begin no more calls."""
        if self._outcomes is not None:
            self._outcomes.close()

    def _next_outcome(self) -> _Outcome[T] | None:
        if self._held is None and self._outcomes is not None:
            self._held = next(self._outcomes, None)
        return self._held

    def _begin(self, number: int, reader: R) -> Iterator[SizedCall[_Outcome[T]]]:
        """The calls of a reader, and of later ones, as long as they may be opened."""
        while True:
            self._last_begun = number
            try:
                for size_bytes, call in self._calls_of(reader):
                    yield size_bytes, partial(_attempt, number, call)
            except Exception as error:  # noqa: BLE001 - raised in its turn
                failing: Callable[[], T] = partial(_raise, error)
                yield 0, partial(_attempt, number, failing)
            coming = next(self._coming, None)
            if coming is None:
                return
            self._seen.append(coming)
            number, reader = coming
            if not self._runs_ahead(reader):
                return


def _attempt(number: int, call: Callable[[], T]) -> _Outcome[T]:
    try:
        result = call()
    except Exception as error:  # noqa: BLE001 - raised in its turn
        return _Outcome(number, partial(_raise, error))
    return _Outcome(number, lambda: result)


def _raise(error: Exception) -> NoReturn:
    raise error
