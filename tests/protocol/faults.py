"""A storage that fails on purpose, and a clock that tests own: the same seed, the same run.

``FaultyStorage`` numbers the requests that go through it. A fault says what happens at one of
them: the process stops before or after it, the response is lost, or the request fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from typing import TypeVar

from txnlog.errors import StorageError
from txnlog.storage.base import Storage, Upload

T = TypeVar("T")


class Fault(Enum):
    """What happens at a request."""

    STOP_BEFORE = "the process stops before the request is sent"
    STOP_AFTER = "the request takes effect, then the process stops"
    LOSE_RESPONSE = "the request takes effect, and the caller is told that it failed"
    FAIL = "the request has no effect, and the caller is told that it failed"


class ProcessStopped(BaseException):
    """What a process that is no more raises at whatever it tries."""


class VirtualClock:
    """Time stands still unless it is moved; waiting moves it. Tokens come from a seed."""

    def __init__(self, now_ms: int = 1_700_000_000_000, seed: int = 0) -> None:
        self.time_ms = now_ms
        self._random = random.Random(seed)

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_s(self) -> float:
        return self.time_ms / 1000

    def sleep(self, seconds: float) -> None:
        self.time_ms += int(seconds * 1000)

    def token(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def jitter(self) -> float:
        return self._random.random()


class FaultyStorage(Storage):
    """Passes requests on to a real storage, unless a fault is due.

    ``before_request`` is called with the request's text before each; ``requests`` records them.
    Requests run one by one, so that their order is the program's.
    """

    def __init__(
        self,
        inner: Storage,
        faults: dict[int, Fault] | None = None,
        before_request: Callable[[str], None] | None = None,
    ) -> None:
        self.inner = inner
        self.url = inner.url
        self.faults = dict(faults or {})
        self.requests: list[str] = []
        self.stopped = False
        self._before_request = before_request

    def _request(self, text: str, call: Callable[[], T]) -> T:
        if self.stopped:
            raise ProcessStopped(text)
        if self._before_request is not None:
            self._before_request(text)
        fault = self.faults.get(len(self.requests))
        self.requests.append(text)
        if fault is Fault.STOP_BEFORE:
            self.stopped = True
            raise ProcessStopped(text)
        if fault is Fault.FAIL:
            raise StorageError(f"injected failure of {text}")
        if fault is Fault.STOP_AFTER:
            self.stopped = True
            with suppress(StorageError):
                call()
            raise ProcessStopped(text)
        result = call()
        if fault is Fault.LOSE_RESPONSE:
            raise StorageError(f"injected loss of the response to {text}")
        return result

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self._request(f"put_if_absent {name}", lambda: self.inner.put_if_absent(name, data))

    def put(self, name: str, data: bytes) -> None:
        self._request(f"put {name}", lambda: self.inner.put(name, data))

    def upload(self, name: str) -> Upload:
        return _FaultyUpload(self, name)

    def get(self, name: str) -> bytes:
        return self._request(f"get {name}", lambda: self.inner.get(name))

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        return self._request(
            f"get_range {name} {start} {stop}", lambda: self.inner.get_range(name, start, stop)
        )

    def size(self, name: str) -> int:
        return self._request(f"size {name}", lambda: self.inner.size(name))

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        return self._request(f"list {folder}", lambda: self.inner.list_names(folder, start_after))

    def list_folders(self, folder: str) -> list[str]:
        return self._request(f"list_folders {folder}", lambda: self.inner.list_folders(folder))

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        return self._request(f"list_all {folder}", lambda: self.inner.list_all(folder))

    def delete(self, names: Iterable[str]) -> None:
        doomed = list(names)
        if doomed:
            self._request(f"delete {len(doomed)} objects", lambda: self.inner.delete(doomed))

    def gather(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        return [call() for call in calls]


class _FaultyUpload(Upload):
    """An upload is one request, made when it is closed."""

    def __init__(self, storage: FaultyStorage, name: str) -> None:
        self._storage = storage
        self._name = name
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        self._data += data
        return len(data)

    def close(self) -> None:
        self._storage._request(
            f"upload {self._name}", lambda: self._storage.inner.put(self._name, bytes(self._data))
        )

    def discard(self) -> None:
        self._data.clear()
