"""A storage that fails on purpose: at one request of many, or wherever a subclass decides.

``FaultyStorage`` numbers the requests that go through it, so that a test can let each of them in
turn go wrong. Knows nothing of processes and time; a :class:`~txnlog.testing.Simulation` does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from txnlog.errors import ObjectNotFound, StorageError
from txnlog.storage.base import Storage, UnfinishedUpload, Upload
from txnlog.storage.buffered_uploads import BufferedUpload
from txnlog.storage.forwarding import ForwardingStorage, innermost
from txnlog.testing.faults import Fault
from txnlog.testing.heap_storage import HeapStorage, InOrder

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class ProcessStopped(BaseException):
    """Raised by every request of a process that was stopped."""


class FaultyStorage(InOrder, ForwardingStorage):
    """Forwards requests to a real storage, unless a fault is due.

    Requests run one by one, so their order is the program's; an upload is one request, made when it
    is closed. After a stop every request raises :class:`ProcessStopped`.

    With ``amid`` listings and deletions are not atomic. A listing looks twice, with ``amid`` in
    between: names found both times are listed; others are listed or not, as :attr:`shows` decides
    for each. A deletion calls it between its objects.

    Args:
        inner: the real storage.
        faults: what happens at which request, counted from 0. May be set later too.
        before_request: called with the request's text before each.
        on_wait: called for the faults DELAY and PAUSE; may move a clock, or run other code.
        amid: called with the request's text in the middle of each listing and deletion.
        seed: decides what a torn listing shows, and what a PARTIAL deletion deletes.
    """

    def __init__(
        self,
        inner: Storage,
        faults: Mapping[int, Fault] | None = None,
        before_request: Callable[[str], None] | None = None,
        on_wait: Callable[[Fault], None] | None = None,
        amid: Callable[[str], None] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(inner)
        self.faults = dict(faults or {})
        self.requests: list[str] = []
        """The text of every request so far: the kind, then the name."""
        self.in_flight: list[Callable[[], object]] = []
        """Puts that failed for their callers and take effect later, by :meth:`land`."""
        self.stopped = False
        self.chance = random.Random(seed)
        self.shows: Callable[[str], bool] = lambda _: self.chance.random() < 0.5
        """Whether a listing shows a name that appeared or disappeared while it was made."""
        self.deletes: Callable[[Sequence[str]], Sequence[str]] = self._choose_some
        """Which objects a PARTIAL deletion deletes."""
        self._before_request = before_request
        self._on_wait = on_wait
        self._in_between = amid

    def land(self) -> None:
        """Let everything that is in flight take effect."""
        while self.in_flight:
            with suppress(StorageError):
                self.in_flight.pop(0)()

    # -- what a subclass may override ------------------------------------------------------------

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

    def _amid(self, text: str) -> None:
        if self._in_between is not None:
            self._in_between(text)

    def _listing_looks(self) -> int:
        """How many times a listing looks."""
        return 1 if self._in_between is None else 2

    def _split_deletion(self, names: Sequence[str]) -> list[Sequence[str]]:
        """Split the objects of a deletion into groups that are deleted at once."""
        return [names] if self._in_between is None else [[name] for name in names]

    # -- requests --------------------------------------------------------------------------------

    def _request(
        self,
        text: str,
        call: Callable[[], T],
        *,
        puts: str = "",
        part: Callable[[], object] | None = None,
    ) -> T:
        """Make one request: ``text`` describes it, ``call`` is its effect.

        If it can be partial, ``part`` is the effect of a part of it. ``puts`` is the name of the
        object if it is a put, which can land late or stay unsynced.
        """
        self._check_running(text)
        self._before(text)
        self._check_running(text)
        fault = self._fault(text)
        self.requests.append(text)
        match fault:
            case Fault.STOP_BEFORE:
                self.stopped = True
            case Fault.STOP_AFTER:
                with suppress(StorageError):
                    self._make_unsynced(puts, call)
                self.stopped = True
            case Fault.FAIL:
                raise StorageError(f"injected failure of {text}")
            case Fault.PARTIAL:
                if part is not None:
                    part()
                raise StorageError(f"injected failure in the middle of {text}")
            case Fault.SYNC_FAILS:
                if puts and (result := self._make_unsynced(puts, call)) is False:
                    return result  # the name is taken: there is nothing to sync
                raise StorageError(f"injected failure of the sync of {text}")
            case Fault.LAND_LATE:
                if puts:
                    self._land_later(call)
                raise StorageError(f"injected failure of {text}")
            case Fault.PAUSE:
                self._wait(fault)
            case _:
                pass
        self._check_running(text)
        if fault is Fault.DELAY:
            result = self._make_unsynced(puts, call)
            self._wait(fault)
            self._check_running(text)
            if puts and result is not False:
                with suppress(ObjectNotFound):
                    self.inner.confirm(puts)
            return result
        result = call()
        if fault is Fault.LOSE_RESPONSE:
            raise StorageError(f"injected loss of the response to {text}")
        return result

    def _check_running(self, text: str) -> None:
        if self.stopped:
            raise ProcessStopped(text)

    def _make_unsynced(self, puts: str, call: Callable[[], T]) -> T:
        """Make a request; a put shows before it is durable, as on a disk."""
        if puts and isinstance(self.inner, HeapStorage):
            with self.inner.failing_sync():
                return call()
        return call()

    def _choose_some(self, among: Sequence[T]) -> Sequence[T]:
        """Any of them, but neither none nor all if there are several."""
        fewest, most = (1, len(among) - 1) if len(among) > 1 else (0, 1)
        return self.chance.sample(among, self.chance.randint(fewest, most))

    def _tear_listing(
        self, text: str, look: Callable[[], Iterable[K]], name_of: Callable[[K], str]
    ) -> list[K]:
        """List in several looks; names that change between them are listed or not, one by one."""
        looks = [list(look())]
        for _ in range(1, self._listing_looks()):
            self._amid(text)
            self._check_running(text)
            looks.append(list(look()))
        if all(found == looks[0] for found in looks):
            return looks[0]
        always = set(looks[0]).intersection(*looks)
        ever = {item for found in looks for item in found}
        return [
            item
            for item in sorted(ever, key=name_of)
            if item in always or self.shows(name_of(item))
        ]

    def _delete(self, text: str, names: Sequence[str]) -> None:
        for number, portion in enumerate(self._split_deletion(names)):
            if number:
                self._amid(text)
                self._check_running(text)
            self.inner.delete(portion)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self._request(
            f"put_if_absent {name}", lambda: self.inner.put_if_absent(name, data), puts=name
        )

    def put(self, name: str, data: bytes) -> None:
        self._request(f"put {name}", lambda: self.inner.put(name, data), puts=name)

    def replace(self, name: str, data: bytes) -> None:
        self._request(f"replace {name}", lambda: self.inner.replace(name, data), puts=name)

    def take_over(self, name: str, source: Storage) -> bool:
        inner, source = self.inner, innermost(source)
        return self._request(f"take_over {name}", lambda: inner.take_over(name, source), puts=name)

    def upload(self, name: str) -> Upload:
        return BufferedUpload(
            lambda data: self._request(
                f"upload {name}", lambda: self.inner.put(name, data), puts=name
            )
        )

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

    def confirm(self, name: str) -> None:
        self._request(f"confirm {name}", lambda: self.inner.confirm(name))

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        text = f"list {folder}"
        return self._request(
            text,
            lambda: self._tear_listing(
                text, lambda: self.inner.list_names(folder, start_after), str
            ),
        )

    def list_folders(self, folder: str) -> list[str]:
        text = f"list_folders {folder}"
        return self._request(
            text, lambda: self._tear_listing(text, lambda: self.inner.list_folders(folder), str)
        )

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        text = f"list_all {folder}"
        found = self._request(
            text,
            lambda: self._tear_listing(
                text, lambda: self.inner.list_all(folder), lambda item: item[0]
            ),
        )
        return iter(found)

    def delete(self, names: Iterable[str]) -> None:
        doomed = list(names)
        if doomed:
            text = f"delete {len(doomed)} objects"
            self._request(
                text,
                lambda: self._delete(text, doomed),
                part=lambda: self.inner.delete(self.deletes(doomed)),
            )

    def list_unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        found = self._request("list_uploads", lambda: list(self.inner.list_unfinished_uploads()))
        return iter(found)

    def abort_uploads(self, uploads: Iterable[UnfinishedUpload]) -> None:
        doomed = list(uploads)
        if doomed:
            self._request(
                f"abort {len(doomed)} uploads",
                lambda: self.inner.abort_uploads(doomed),
                part=lambda: self.inner.abort_uploads(self._choose_some(doomed)),
            )
