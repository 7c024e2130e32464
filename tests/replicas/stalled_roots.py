"""Requests to roots that wait before them, or within uploads, until a test lets them go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import txnlog
from txnlog.storage.adapters.local import LocalStorage
from txnlog.storage.base import Upload

LAG_MS = 200
REQUESTS = (
    "put_if_absent",
    "put",
    "replace",
    "upload",
    "get",
    "get_range",
    "size",
    "list_names",
    "list_folders",
    "list_all",
    "confirm",
    "delete",
)
"""All kinds."""


class Gate:
    """Requests of some kinds to one folder wait before it until it is opened."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._opened = threading.Event()
        self._waiting = threading.Semaphore(0)
        self._through = 0
        self._let = 0
        self._lock = threading.Lock()
        self.asked: list[str] = []

    def close(self, folder: Path, *kinds: str, after: int = 0, only: str = "") -> None:
        """``after`` so many requests that go through; or of one object alone."""
        self._let = after
        for kind in kinds:
            self._patch.setattr(LocalStorage, kind, self._gated(folder, kind, only))

    def _gated(self, folder: Path, kind: str, only: str) -> Callable[..., Any]:
        method = getattr(LocalStorage, kind)

        def gated(storage: LocalStorage, *given: Any) -> Any:
            if storage.url != str(folder) or (only and given[0] != only):
                return method(storage, *given)
            if self._opened.is_set() or self._lets_through():
                return method(storage, *given)
            self.asked.append(kind)
            self._opened.wait()
            try:
                return method(storage, *given)
            finally:
                self._waiting.release()

        return gated

    def close_at(self, folder: Path, first: str) -> None:
        """All requests wait from the first one of a kind on."""
        method = getattr(LocalStorage, first)

        def begin(storage: LocalStorage, *given: Any) -> Any:
            if storage.url != str(folder) or self.asked or self._opened.is_set():
                return method(storage, *given)
            self.close(folder, *REQUESTS)
            return getattr(storage, first)(*given)

        self._patch.setattr(LocalStorage, first, begin)

    def _lets_through(self) -> bool:
        with self._lock:
            self._let -= 1
            return self._let >= 0

    def let_go(self) -> None:
        """Let them through."""
        self._opened.set()

    def open(self) -> None:
        """Let them through, and wait until one has come through."""
        self.let_go()
        assert self._waiting.acquire(timeout=10)
        self._through += 1

    def end(self) -> None:
        """Wait for all others: the next test may have a folder of the same name."""
        self._opened.set()
        for _ in range(len(self.asked) - self._through):
            assert self._waiting.acquire(timeout=10)
            self._through += 1


class Stalled(Upload):
    """An upload whose writes, or whose end, wait until they are let go on."""

    def __init__(self, inner: Upload, stall: Stall, folder: str) -> None:
        self._inner = inner
        self._stall = stall
        self._folder = folder

    def write(self, data: bytes) -> int:
        with self._stall.waiting(self._folder, "write"):
            return self._inner.write(data)

    def close(self) -> None:
        with self._stall.waiting(self._folder, "close"):
            if self._stall.fails_with is not None:
                raise self._stall.fails_with
            self._inner.close()

    def discard(self) -> None:
        self._inner.discard()


class Stall:
    """Calls of one kind to uploads at some folders wait until it is over."""

    def __init__(self, patch: pytest.MonkeyPatch, kind: str, *folders: Path) -> None:
        self._kind = kind
        self._folders = {str(folder) for folder in folders}
        self.fails_with: Exception | None = None
        """What the end of an upload raises once it goes on."""
        self._over = threading.Event()
        self._begun: list[str] = []
        self._through = threading.Semaphore(0)
        upload = LocalStorage.upload

        def stalled(storage: LocalStorage, name: str) -> Upload:
            return Stalled(upload(storage, name), self, storage.url)

        patch.setattr(LocalStorage, "upload", stalled)

    @contextmanager
    def waiting(self, folder: str, kind: str) -> Iterator[None]:
        """Around a call, which waits if it is one of those."""
        if kind != self._kind or folder not in self._folders:
            yield
            return
        self._begun.append(folder)
        self._over.wait()
        try:
            yield
        finally:
            self._through.release()

    def let_go(self) -> None:
        self._over.set()

    def end(self) -> None:
        """Wait for all calls: the next test may have a folder of the same name."""
        self.let_go()
        while self._begun:
            self._begun.pop()
            assert self._through.acquire(timeout=10)


MakeStall = Callable[..., Stall]


def end_at_a_pause(store: txnlog.Store, patch: pytest.MonkeyPatch, stall: Stall | Gate) -> None:
    """The stall is over when the store's clock has been waited with three times."""
    clock = store.storage.agreement.clock  # type: ignore[attr-defined]
    sleep, slept = clock.sleep, []

    def sleep_then_end(seconds: float) -> None:
        sleep(seconds)
        slept.append(seconds)
        if len(slept) == 3:
            stall.let_go()

    patch.setattr(clock, "sleep", sleep_then_end)
