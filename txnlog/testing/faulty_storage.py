"""A storage that fails on purpose: at one request of many, or wherever a subclass decides.

``FaultyStorage`` numbers the requests that go through it, so that a test can let each of them in
turn go wrong. Knows nothing of processes and time; a :class:`~txnlog.testing.Simulation` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TypeVar

from txnlog.errors import StorageError
from txnlog.storage.base import Storage, Upload
from txnlog.testing.faults import Fault
from txnlog.testing.heap_storage import one_by_one, one_race

T = TypeVar("T")


class ProcessStopped(BaseException):
    """What a process that is no more raises at whatever it tries."""


class FaultyStorage(Storage):
    """Passes requests on to a real storage, unless a fault is due.

    Requests run one by one, so that their order is the program's; an upload is one request, made
    when it is closed. After a stop every request raises :class:`ProcessStopped`.

    Args:
        inner: the real storage.
        faults: what happens at which request, counted from 0. May be set later too.
        before_request: called with the request's text before each.
        on_wait: called for the faults DELAY and PAUSE; may move a clock, or run other code.
    """

    def __init__(
        self,
        inner: Storage,
        faults: Mapping[int, Fault] | None = None,
        before_request: Callable[[str], None] | None = None,
        on_wait: Callable[[Fault], None] | None = None,
    ) -> None:
        self.inner = inner
        self.url = inner.url
        self.faults = dict(faults or {})
        self.requests: list[str] = []
        """The text of every request so far: the kind, then the name."""
        self.in_flight: list[Callable[[], object]] = []
        """Puts that failed for their callers and take effect later, by :meth:`land`."""
        self.stopped = False
        self._before_request = before_request
        self._on_wait = on_wait

    def land(self) -> None:
        """Let everything that is in flight take effect."""
        while self.in_flight:
            with suppress(StorageError):
                self.in_flight.pop(0)()

    # -- what a subclass may decide otherwise ----------------------------------------------------

    def _before(self, text: str) -> None:
        if self._before_request is not None:
            self._before_request(text)

    def _fault(self, text: str) -> Fault | None:  # noqa: ARG002 - for subclasses
        return self.faults.get(len(self.requests))

    def _wait(self, fault: Fault) -> None:
        if self._on_wait is not None:
            self._on_wait(fault)

    def _land_later(self, call: Callable[[], object]) -> None:
        self.in_flight.append(call)

    # -- requests --------------------------------------------------------------------------------

    def _request(self, text: str, call: Callable[[], T], *, lands: bool = False) -> T:
        self._check_running(text)
        self._before(text)
        self._check_running(text)
        fault = self._fault(text)
        self.requests.append(text)
        match fault:
            case Fault.STOP_BEFORE:
                self.stopped = True
            case Fault.STOP_AFTER:
                self.stopped = True
                with suppress(StorageError):
                    call()
            case Fault.FAIL:
                raise StorageError(f"injected failure of {text}")
            case Fault.LAND_LATE:
                if lands:
                    self._land_later(call)
                raise StorageError(f"injected failure of {text}")
            case Fault.PAUSE:
                self._wait(fault)
            case _:
                pass
        self._check_running(text)
        result = call()
        if fault is Fault.LOSE_RESPONSE:
            raise StorageError(f"injected loss of the response to {text}")
        if fault is Fault.DELAY:
            self._wait(fault)
            self._check_running(text)
        return result

    def _check_running(self, text: str) -> None:
        if self.stopped:
            raise ProcessStopped(text)

    def folds_case(self) -> bool:
        return self.inner.folds_case()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self._request(
            f"put_if_absent {name}", lambda: self.inner.put_if_absent(name, data), lands=True
        )

    def confirm(self, name: str) -> None:
        self._request(f"confirm {name}", lambda: self.inner.confirm(name))

    def put(self, name: str, data: bytes) -> None:
        self._request(f"put {name}", lambda: self.inner.put(name, data), lands=True)

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

    def modified_ms(self, name: str) -> int | None:
        return self._request(f"modified {name}", lambda: self.inner.modified_ms(name))

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

    def gather(self, calls: Iterable[Callable[[], T]]) -> list[T]:
        return one_by_one(calls)

    def race(self, call: Callable[[int, int], T], rounds: int) -> list[list[T]]:  # noqa: ARG002
        return one_race(call)


class _FaultyUpload(Upload):
    """An upload is one request, made when it is closed."""

    def __init__(self, storage: FaultyStorage, name: str) -> None:
        self._storage = storage
        self._name = name
        self._data: bytearray | None = bytearray()

    def write(self, data: bytes) -> int:
        if self._data is None:
            raise ValueError("the upload is closed")
        self._data += data
        return len(data)

    def close(self) -> None:
        taken, self._data = self._data, None
        if taken is not None:
            data, inner = bytes(taken), self._storage.inner
            self._storage._request(  # noqa: SLF001 - two halves of one thing
                f"upload {self._name}", lambda: inner.put(self._name, data), lands=True
            )

    def discard(self) -> None:
        self._data = None
