"""A storage in this process's memory: quick to make, quick to list, gone when unused.

Unlike ``memory://`` each is separate: listings of fsspec's memory filesystem get slower with all
objects that any test has put there. For one process.
"""

from __future__ import annotations

import itertools
import random
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from txnlog.errors import ObjectNotFound
from txnlog.storage.base import PARALLEL_REQUESTS, Storage, Upload, check_name
from txnlog.storage.buffered_uploads import BufferedUpload
from txnlog.storage.threads import MAX_AHEAD_BYTES, SizedCall, run_in_order

T = TypeVar("T")

_COUNTER = itertools.count()
_LIVE: WeakValueDictionary[str, HeapStorage] = WeakValueDictionary()


class InOrder(Storage):
    """Runs calls one by one, in the program's order, instead of in parallel."""

    put_round = Storage.put_round

    def gather(self, calls: Iterable[Callable[[], T]]) -> list[T]:
        # As with real parallel requests, one that fails does not keep the others from running.
        results: list[T] = []
        errors: list[Exception] = []
        for call in calls:
            try:
                results.append(call())
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
        if errors:
            raise errors[0]
        return results

    def run_ahead(
        self,
        calls: Iterable[SizedCall[T]],
        most_bytes: int = MAX_AHEAD_BYTES,  # noqa: ARG002
    ) -> Generator[T]:
        return run_in_order(calls)

    def race(self, call: Callable[[int, int], T], rounds: int) -> list[list[T]]:  # noqa: ARG002
        return [self.gather(partial(call, 0, racer) for racer in range(PARALLEL_REQUESTS))]


class HeapStorage(InOrder):
    """Objects in a dictionary. Put-if-absent and everything else is done under one lock.

    It can behave like a disk whose syncs fail (:meth:`failing_sync`): such objects are visible, and
    a :meth:`power_cut` may remove them, unless they were confirmed before, or another object was
    put into the same folder, which syncs its names.

    Args:
        like_disk: ask for names one by one, as on a disk; see ``lists_whole_folders``.
    """

    def __init__(self, *, like_disk: bool = False) -> None:
        self.url = f"heap://{next(_COUNTER)}"
        self._like_disk = like_disk
        self.time_ms: Callable[[], int] | None = None
        """The storage's own clock, for :meth:`modified_ms`; None if it has none."""
        self._lock = threading.Lock()
        self._folders: dict[str, dict[str, bytes]] = {}
        self._sorted: dict[str, list[str]] = {}
        """By folder: a listing's cost grows with its results, as on an object store."""
        self._places: list[str] = []
        """The folders, sorted."""
        self._created_ms: dict[str, int] = {}
        self._unsynced: dict[str, dict[str, None]] = {}
        """By folder, the names that are not durable, in the order of the puts."""
        self._syncs = True
        _LIVE[self.url] = self

    def __reduce__(self) -> tuple[Callable[[str], HeapStorage], tuple[str]]:
        # Within one process: unpickled, it is the same storage.
        return _find_living, (self.url,)

    def lists_whole_folders(self) -> bool:
        return self._like_disk

    def copy(self) -> HeapStorage:
        """Another storage with the same objects: a state to begin from again and again."""
        other = HeapStorage(like_disk=self._like_disk)
        with self._lock:
            other._folders = {folder: dict(found) for folder, found in self._folders.items()}
            other._places = [*self._places]
            other._sorted = {folder: list(found) for folder, found in self._sorted.items()}
            other._created_ms = dict(self._created_ms)
            other._unsynced = {folder: dict(found) for folder, found in self._unsynced.items()}
        return other

    # -- power cuts ------------------------------------------------------------------------------

    @contextmanager
    def failing_sync(self) -> Iterator[None]:
        """Objects put within the block are visible but not durable. For one thread."""
        self._syncs = False
        try:
            yield
        finally:
            self._syncs = True

    def confirm(self, name: str) -> None:
        """Make an existing object durable, and what was put into its folder before it.

        Raises ObjectNotFound.
        """
        folder, _, last = check_name(name).rpartition("/")
        with self._lock:
            if last not in self._folders.get(folder, {}):
                raise ObjectNotFound(f"there is no {self.url}/{name}")
            unsynced = self._unsynced.get(folder, {})
            while last in unsynced:
                unsynced.pop(next(iter(unsynced)))

    @property
    def unsynced(self) -> list[str]:
        """The objects that a power cut may remove."""
        with self._lock:
            return sorted(
                f"{folder}/{last}" if folder else last
                for folder, names in self._unsynced.items()
                for last in names
            )

    def power_cut(self, survives: Callable[[str], bool] | random.Random | None = None) -> list[str]:
        """Lose objects that are not durable; those that survive it are durable from then on.

        Args:
            survives: by name, or by chance; none does if left out. By chance each folder loses
                some of what was put last: filesystems keep the order.

        Returns:
            The lost names.
        """
        if isinstance(survives, random.Random):
            gone = []
            for folder, names in sorted(self._unsynced.items()):
                kept = survives.randint(0, len(names))
                gone += [f"{folder}/{last}" if folder else last for last in [*names][kept:]]
            gone.sort()
        else:
            gone = [name for name in self.unsynced if survives is None or not survives(name)]
        self.delete(gone)
        with self._lock:
            self._unsynced.clear()
        return gone

    # -- requests --------------------------------------------------------------------------------

    def put_if_absent(self, name: str, data: bytes) -> bool:
        folder, _, last = check_name(name).rpartition("/")
        with self._lock:
            if folder not in self._folders:
                self._folders[folder] = {}
                insort(self._places, folder)
            objects = self._folders[folder]
            if last in objects:
                return False
            objects[last] = bytes(data)
            insort(self._sorted.setdefault(folder, []), last)
            if self.time_ms is not None:
                self._created_ms[name] = self.time_ms()
            if self._syncs:
                # What makes this name durable makes those beside it durable too.
                self._unsynced.pop(folder, None)
            else:
                self._unsynced.setdefault(folder, {})[last] = None
            return True

    def replace(self, name: str, data: bytes) -> None:
        folder, _, last = check_name(name).rpartition("/")
        with self._lock:
            if last not in self._folders.get(folder, ()):
                raise ObjectNotFound(f"there is no {self.url}/{name}")
            self._folders[folder][last] = bytes(data)

    def take_over(self, name: str, source: Storage) -> bool:
        return isinstance(source, HeapStorage) and self.put_if_absent(name, source.get(name))

    def upload(self, name: str) -> Upload:
        return BufferedUpload(partial(self.put, check_name(name)))

    def get(self, name: str) -> bytes:
        folder, _, last = check_name(name).rpartition("/")
        with self._lock:
            try:
                return self._folders[folder][last]
            except KeyError as error:
                raise ObjectNotFound(f"there is no {self.url}/{name}") from error

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        return self.get(name)[start : max(stop, start)]

    def size(self, name: str) -> int:
        return len(self.get(name))

    def modified_ms(self, name: str) -> int | None:
        self.get(name)
        return None if self.time_ms is None else self._created_ms.get(name)

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        with self._lock:
            names = self._sorted.get(folder, [])
            return names[bisect_right(names, start_after) :]

    def list_folders(self, folder: str) -> list[str]:
        prefix = f"{folder}/" if folder else ""
        with self._lock:
            below = {
                name.removeprefix(prefix).partition("/")[0]
                for name in self._places_below(folder)
                if name != folder and self._folders[name]
            }
        return sorted(below - {""})

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        with self._lock:
            found = [
                (f"{place}/{name}" if place else name, len(data))
                for place in self._places_below(folder)
                for name, data in self._folders[place].items()
            ]
        yield from sorted(found)

    def _places_below(self, folder: str) -> Iterator[str]:
        """A folder and the folders in it. Takes time for what it yields, not for all there are."""
        if not folder:
            yield from self._places
            return
        if folder in self._folders:
            yield folder
        low, high = (bisect_left(self._places, f"{folder}{end}") for end in ("/", "0"))
        yield from self._places[low:high]

    def delete(self, names: Iterable[str]) -> None:
        parted = [check_name(name).rpartition("/") for name in names]
        with self._lock:
            for folder, _, last in parted:
                if self._folders.get(folder, {}).pop(last, None) is not None:
                    names = self._sorted[folder]
                    del names[bisect_left(names, last)]
                self._unsynced.get(folder, {}).pop(last, None)
                self._created_ms.pop(f"{folder}/{last}" if folder else last, None)


def _find_living(url: str) -> HeapStorage:
    return _LIVE[url]
