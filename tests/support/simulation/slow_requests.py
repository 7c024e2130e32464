"""Processes of a simulation whose requests take time, and go on beside each other's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from txnlog.storage.base import PARALLEL_REQUESTS
from txnlog.testing import Process

REQUEST_MS = (20, 40)


class SlowRequests:
    """Each request of a process takes so long; those that it makes in parallel as long as one.

    Attributes:
        counts: how many of each kind it has made since they were last cleared.
    """

    def __init__(self, process: Process, request_ms: tuple[int, int] = REQUEST_MS) -> None:
        self.counts: Counter[str] = Counter()
        self._storage: Any = process.storage
        self._chance = process.chance
        self._request_ms = request_ms
        self._together = False
        for name, own in (
            ("_before", self._before),
            ("gather", self._gather),
            ("get_many", self._get_many),
        ):
            setattr(self._storage, name, own)

    def _before(self, text: str) -> None:
        self.counts[text.split(maxsplit=1)[0]] += 1
        if not self._together:
            self._wait()

    def _wait(self) -> None:
        self._storage._actor.wait(self._chance.randint(*self._request_ms))

    def _gather(self, calls: Iterable[Callable[[], Any]]) -> list[Any]:
        left, found = [*calls], list[Any]()
        if self._together:
            return [call() for call in left]
        while left:
            self._together = True
            try:
                found += [call() for call in left[:PARALLEL_REQUESTS]]
            finally:
                self._together = False
            del left[:PARALLEL_REQUESTS]
            self._wait()
        return found

    def _get_many(self, names: Sequence[str]) -> list[Any]:
        return self._gather(partial(self._storage.get, name) for name in names)
