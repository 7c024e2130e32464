"""A process that stands still at one of its requests, for as long as somebody else likes.

It runs in a thread of its own, which is the only one that runs: whoever suspends it goes on when it
stands still, or has ended, and it goes on when it is told to. So a case costs two changes of
threads, however many requests there are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from txnlog.storage.base import Storage
from txnlog.testing import FaultyStorage, ProcessStopped

_REAL_TIMEOUT_S = 60.0


class StepStorage(FaultyStorage):
    """Counts the requests of one process, and can stop before one of them, or within it.

    Within: between the two looks of a listing, or before the last object of a deletion.
    """

    def __init__(self, inner: Storage, on_request: Callable[[], None]) -> None:
        super().__init__(inner)
        self.stops_at = -1
        """Which request it stops at, counted from when it was set; -1: none."""
        self.within = False
        self.footprint: list[set[tuple[str, bool]]] = []
        """By request, the names or the folder that it is about, and whether it changes them."""
        self._on_request = on_request
        self._stop: Callable[[], None] = lambda: None
        self._number = -1

    def watch(self, stops_at: int, stop: Callable[[], None], *, within: bool = False) -> None:
        """Begin to count anew."""
        self.stops_at, self._stop, self.within = stops_at, stop, within
        self.requests.clear()
        self.footprint.clear()
        self._number = -1

    def _before(self, text: str) -> None:
        self._number += 1
        if self._number == self.stops_at and not self.within:
            self._stop()
        self._on_request()
        kind, _, about = text.partition(" ")
        self.footprint.append({(about.partition(" ")[0], kind in _CHANGES)})

    @property
    def _is_torn(self) -> bool:
        return self.within and self._number == self.stops_at

    def _listing_looks(self) -> int:
        return 2 if self._is_torn else 1

    def _split_deletion(self, names: Sequence[str]) -> list[Sequence[str]]:
        self.footprint[-1] |= {(name, True) for name in names}
        if not self._is_torn or len(names) < 2:
            return [names]
        return [names[:-1], names[-1:]]

    def _amid(self, text: str) -> None:  # noqa: ARG002 - there is only one place
        self._stop()


_CHANGES = {"put_if_absent", "put", "upload", "delete"}


class Suspended:
    """One call of a process, which stands still at a request until it is resumed."""

    def __init__(self, storage: StepStorage, call: Callable[[], None]) -> None:
        self._storage = storage
        self._call = call
        self._turn = threading.Lock()
        self._parked = threading.Lock()
        self._error: BaseException | None = None
        self.ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def run_to(self, number: int, *, within: bool = False) -> None:
        """Run to this request, or to the end if it has fewer."""
        self._storage.watch(number, self._stand_still, within=within)
        self._turn.acquire()
        self._parked.acquire()
        self._thread.start()
        self._wait()

    def resume(self) -> None:
        """Go on to the end."""
        if not self.ended:
            self._turn.release()
            self._wait()

    def die(self) -> None:
        """It makes no further request."""
        self._storage.stopped = True
        with suppress(ProcessStopped):
            self.resume()

    def _stand_still(self) -> None:
        self._parked.release()
        self._turn.acquire()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001 - whoever waits raises it
            self._error = error
        finally:
            self.ended = True
            self._storage.stops_at = -1
            self._parked.release()

    def _wait(self) -> None:
        if not self._parked.acquire(timeout=_REAL_TIMEOUT_S):
            raise AssertionError("a suspended process waits for something other than a request")
        if self.ended:
            self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
