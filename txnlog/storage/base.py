"""The storage primitive: whole objects, put-if-absent, ranged reads, fresh listings.

Everything that txnlog promises rests on :meth:`Storage.put_if_absent`. There is no overwrite and no
rename. Knows names and bytes, and nothing of what they mean.
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain, islice
from threading import Barrier, BrokenBarrierError
from types import TracebackType
from typing import Literal, Self, TypeAlias, TypeVar

from txnlog.errors import InvalidOption, StorageError, TxnlogError
from txnlog.storage.failure_messages import failure
from txnlog.storage.threads import MAX_AHEAD_BYTES, SizedCall, Waits, run_ahead, run_together

T = TypeVar("T")
_logger = logging.getLogger(__name__)

Kind: TypeAlias = Literal["store", "replicated", "standby"]

PARALLEL_REQUESTS = 16
_PART = r"(?!\.\.?(?:/|\Z))[^/\\\0\ud800-\udfff]+"
_NAME = re.compile(f"{_PART}(?:/{_PART})*")
"""What a name may be, in one look: each request asks."""


def check_name(name: str) -> str:
    """Return ``name`` if it names an object below the root, and the same one everywhere.

    Raises InvalidOption if it could leave the root, or if filesystems could interpret it
    differently.
    """
    if is_name(name):
        return name
    if not name or "\\" in name or "\0" in name:
        raise InvalidOption(f"{name!r} cannot be the name of an object")
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise InvalidOption(f"{name!r} cannot be the name of an object: it could leave its folder")
    raise InvalidOption(f"{name!r} cannot be the name of an object: it is not valid Unicode")


def is_name(name: str) -> bool:
    """Whether something can be called so, by :func:`check_name`."""
    return _NAME.fullmatch(name) is not None


def may_be_listed(url: str, name: str) -> bool:
    """Whether a name found in storage is valid for an object or folder; else warns of it.

    Others may put any file or folder there. It must not stop a listing, nor a caller that reads all
    that is listed.
    """
    if is_name(name):
        return True
    warn_of_stray(f"{url}/{name}")
    return False


@lru_cache(maxsize=1024)
def warn_of_stray(what: str) -> None:
    """Tell once that something is passed over: who follows a store lists it every second."""
    _logger.warning(
        "%r is passed over: nothing in a store can be called so. Move it out of the store", what
    )


@dataclass(frozen=True, slots=True)
class Address:
    """The arguments for ``open_storage`` to open a storage again, in another process.

    All fields but the last may hold secrets: they are for passing on, never for messages.
    """

    url: str = field(repr=False)
    options: Mapping[str, object] = field(repr=False)
    unsafe_single_writer: bool = False


@dataclass(frozen=True, slots=True)
class AsOf:
    """Which state of another store a copy shows: the ``number``-th one, of ``reached_ms``.

    ``lost`` are data files that the other store should have had, but lacked, or had damaged.
    """

    source: str
    number: int
    reached_ms: int
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """Uploaded parts of an unfinished object: its upload is in progress, or was killed.

    They show in no listing, but take space. ``upload_id`` is the storage's own.
    """

    name: str
    upload_id: str
    begun_ms: int
    """When it was begun, by the storage's clock."""
    size_bytes: int


class Upload(ABC):
    """An upload of a large object. Nothing is visible before :meth:`close`; memory is bounded."""

    @abstractmethod
    def write(self, data: bytes) -> int:
        """Add bytes; returns how many."""

    @abstractmethod
    def close(self) -> None:
        """Publish the whole object; a second call does nothing.

        Raises StorageError; then either nothing or the whole object exists, and the upload has
        ended.
        """

    @abstractmethod
    def discard(self) -> None:
        """Abort it and leave nothing behind. Harmless after :meth:`close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


class CannotReplace(StorageError):
    """A storage has no step that puts an object in another one's place."""


class Storage(ABC):
    """Objects below one root. Names are relative, with '/' between their parts.

    Implementations are picklable by their constructor's arguments, connect when first used, and
    survive a fork. Every method raises StorageError if the filesystem fails; whether a put took
    effect is unknown then.
    """

    url: str
    """The root's URL without credentials, for messages."""

    def __repr__(self) -> str:
        # Never the options: they hold credentials.
        return f"{type(self).__name__}({self.url!r})"

    def folds_case(self) -> bool:
        """Whether names that differ only in upper and lower case name the same object.

        True of the usual disks of macOS and Windows, also behind a server, and of no object store.
        """
        return False

    def lists_whole_folders(self) -> bool:
        """Whether a listing's cost grows with the whole folder, wherever it begins.

        True of local disks; then it is cheaper to ask for a few names one by one.
        """
        return False

    def address(self) -> Address:
        """The arguments to open the same storage elsewhere."""
        return Address(self.url, {})

    def urls(self) -> Sequence[str]:
        """The URLs of the folders that the objects lie in: of all roots, if there are several.

        Other files there could be taken for objects, or be deleted with them.
        """
        return [self.url]

    def local_path(self, name: str) -> str | None:  # noqa: ARG002 - for those that have one
        """An object's path for programs of this machine ("": the root); None if it has none."""
        return None

    def open_file(self, name: str) -> int | None:  # noqa: ARG002 - for those that have one
        """A descriptor of an object's file, for libraries that read it themselves; to be closed.

        None exactly where there is no :meth:`local_path`. Raises ObjectNotFound.
        """
        return None

    def without_fsync(self) -> Storage:
        """A view of this storage for writes that need not be durable at once, if that saves time.

        They are visible as soon as they are written; a power cut may lose them. If there is no such
        difference, as on an object store, it is the storage itself.
        """
        return self

    def trust(self, *, probed: bool = False) -> None:  # noqa: B027 - most need no check
        """Skip the check before the first write: another process of the same job has made it.

        With ``probed`` the whole probe has passed, in this process.
        """

    def was_probed(self) -> bool:
        """Whether the whole probe has passed in this process: another store needs none."""
        return False

    def will_write(self) -> None:  # noqa: B027 - most decide nothing for others
        """Say that this handle is about to write, before it reads what it writes by.

        One on several roots decides from then on that a root which fails it takes no part; who only
        reads may see fewer of them than those who write.
        """

    def check_writable(self) -> None:  # noqa: B027 - most can tell by a write alone
        """Raise if it is known that nothing can be put now: StorageError, NotEnoughReplicas."""

    def history(self) -> int:
        """The history of the logs that this process has begun with; data of another one is lost.

        Another one begins only when a lost storage is replaced by an older copy.
        """
        return -1

    @abstractmethod
    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create the whole object: True if this call did, False if the name is taken."""

    def put_decided(self, name: str, data: bytes) -> bool:
        """:meth:`put_if_absent`, of an object that everybody who creates it gives the same bytes.

        So no race is decided, and where an object is put at several places all can be asked at
        once. Other bytes under the name are not replaced either.
        """
        return self.put_if_absent(name, data)

    def confirm(self, name: str) -> None:  # noqa: B027 - where a write that shows is durable
        """Make sure that an object that was found is durable, whichever process put it.

        Called before a put is reported as done: it may have failed after the object became visible,
        or may still be in progress. Does nothing if objects are visible only once durable.

        Raises:
            StorageError: it may not be durable.
            ObjectNotFound: it is gone; only if it had to be looked up.
        """

    def shows_early(self) -> bool:
        """Whether an object may show before it is durable, so that ``confirm`` does something."""
        return type(self).confirm is not Storage.confirm

    def put(self, name: str, data: bytes) -> None:
        """Create a whole object under a name that nobody else uses.

        If the name is taken after all, which only a bug can cause, an adapter either replaces the
        object or raises StorageError.
        """
        if not self.put_if_absent(name, data):
            taken = FileExistsError("the name is taken, though it should be unique")
            raise failure("creating", self.url, name, taken) from taken

    def replace(self, name: str, data: bytes) -> None:  # noqa: ARG002 - for those that can
        """Put a whole object in place of one that is damaged, in one step: the name is never free.

        Only for roots of a replicated store, whose others have the object as it was written.

        Raises:
            CannotReplace: this storage has no such step; nothing was changed.
        """
        raise CannotReplace(f"{self.url} has no step that replaces {name}, which is damaged")

    def take_over(self, name: str, source: Storage) -> bool:  # noqa: ARG002 - for those that can
        """Have an object of another storage here too, under its name, without reading it.

        On a disk it is a second name of the same file, so it takes no room; a server may copy it.
        What is done to the source's later changes nothing here. For names that nobody else uses: an
        object that is here already is left as it is, or is the same afterwards. It is durable when
        this returns True.

        Returns:
            False if this storage cannot do so, or the name is taken: then it must be copied.

        Raises:
            ObjectNotFound: the source does not have it.
        """
        return False

    @abstractmethod
    def upload(self, name: str) -> Upload:
        """Begin a large object under a name that nobody else uses."""

    @abstractmethod
    def get(self, name: str) -> bytes:
        """The whole object. Raises ObjectNotFound."""

    def get_many(self, names: Sequence[str]) -> list[bytes]:
        """Whole objects, in the order of their names. Raises ObjectNotFound."""
        return self.gather(partial(self.get, name) for name in names)

    @abstractmethod
    def get_range(self, name: str, start: int, stop: int) -> bytes:
        """Bytes [start, stop), fewer only at the object's end. Raises ObjectNotFound."""

    def get_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """The result of :meth:`get_range` for each name, start and stop, in order.

        Raises ObjectNotFound.
        """
        return self.gather(partial(self.get_range, *wanted) for wanted in ranges)

    def small_reads_at_once(self) -> int:
        """The best number of small reads for one of several parallel :meth:`get_ranges`.

        1 unless a call in its own thread costs more than a request.
        """
        return 1

    def copies_of(self, name: str) -> Sequence[Storage]:  # noqa: ARG002 - for those that have some
        """Storages that hold copies of an object, each to be read if this one's bytes are damaged.

        () if there is only one.
        """
        return ()

    @abstractmethod
    def size(self, name: str) -> int:
        """The object's length in bytes. Raises ObjectNotFound."""

    def modified_ms(self, name: str) -> int | None:  # noqa: ARG002 - for those who can tell
        """When the object was created, by the storage's clock; None if it reports no time.

        Only used as additional evidence, such as for how long a transaction has been open; nothing
        is concluded from its absence. Raises ObjectNotFound.
        """
        return None

    @abstractmethod
    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        """Names of the objects directly in a folder, relative to it, ascending.

        Args:
            folder: "" is the root; a missing folder is an empty one.
            start_after: only names greater than this, as plain strings.

        Every object that was there when the call began is listed; nothing is cached.
        """

    def check_listing(self, name: str) -> None:  # noqa: B027 - adapters are known to list well
        """Make sure that listings show an object that is there, if nothing is known of them.

        Raises UnsupportedFilesystem: they do not.
        """

    @abstractmethod
    def list_folders(self, folder: str) -> list[str]:
        """Names of the folders directly in a folder, ascending."""

    @abstractmethod
    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        """Every object below a folder, at any depth: (name relative to the root, size in bytes).

        Lazy, so it is not a snapshot. A folder ``.tmp`` in the root is included: leftovers of
        killed processes, and files being written.
        """

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; a missing one is not an error.

        If one is refused for good, all others are deleted before the error is raised: the first.
        """

    def list_unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        """Unfinished uploads below the root, neither closed nor discarded. Lazy.

        Empty if uploads leave only objects that :meth:`list_all` shows.
        """
        return iter(())

    def abort_uploads(self, uploads: Iterable[UnfinishedUpload]) -> None:
        """Drop the parts; a writer still at it gets an error. Ended uploads are skipped."""
        for upload in uploads:
            raise InvalidOption(f"{self.url} has no uploads to abort, such as {upload.name}")

    def gather(self, calls: Iterable[Callable[[], T]]) -> list[T]:
        """Run calls in parallel and return their results in order.

        ``calls`` is consumed in this thread while earlier calls run, so a generator can work
        meanwhile; after that, calls run in this thread, too. If any raises, the others are waited
        for, and the first error in order is raised. After an interrupt, or if the iterable raises,
        running calls are waited for; no other begins.
        """
        calls = iter(calls)
        first = list(islice(calls, 2))
        if len(first) < 2:
            return [call() for call in first]
        return run_together(chain(first, calls), PARALLEL_REQUESTS)

    def put_round(self, calls: Iterable[Callable[[], object]]) -> None:
        """Run calls in parallel, each of which puts an object or closes an upload.

        Like :meth:`gather`; the objects are durable only when it returns: no call may rely on
        another. So a disk need sync a folder only once for all of them.

        Raises:
            StorageError: any of the objects may exist, and not be durable.
        """
        self.gather(calls)

    def count_later(self) -> AbstractContextManager[Callable[[], None]]:
        """Within the block, rounds of puts of this thread count when what it gives is called.

        For data that something is to name: between the rounds and that call there may be other
        requests, which spare it one of its own. What is put must be named by nothing before it.

        The call raises what :meth:`put_round` does.
        """
        return nullcontext(lambda: None)

    def wait_up_to(
        self,
        for_s: float,  # noqa: ARG002 - for those that wait
    ) -> AbstractContextManager[None]:
        """Within the block, requests of this thread, and what it gathers, have so long in all.

        It is for roots of a replicated store to come back, or be replaced: what needs more of them
        than there are is tried again until then. When the time is over, what fails is not. Other
        storages wait for nothing.
        """
        return nullcontext()

    def kind(self) -> Kind:
        """Whether it holds a store, a store on several roots, or a standby."""
        return "store"

    def as_of(self) -> AsOf | None:
        """Of a copy that follows another store: what it shows now. Raises StorageError."""
        return None

    def may_be_unlisted(self, name: str) -> bool:  # noqa: ARG002 - for those on several roots
        """Whether an object may be there that no listing shows: listings know some roots only."""
        return False

    def set_replication_factor(
        self,
        topic: str,  # noqa: ARG002 - for those on several roots
        factor: int | None,
        *,
        dry_run: bool = False,  # noqa: ARG002
    ) -> None:
        """At how many roots the data of a topic will be, which is about to be created.

        None forgets it, of one that is about to be deleted: the next one of that name has its own.

        Raises InvalidOption: the storage is one root. InvalidConfig: there are not as many.
        NotEnoughReplicas: the set of roots has changed meanwhile. StorageError.
        """
        if factor is not None:
            raise InvalidOption(f"{self.url} has no replicas: it is a store on one root")

    def run_ahead(
        self, calls: Iterable[SizedCall[T]], most_bytes: int = MAX_AHEAD_BYTES
    ) -> Generator[T]:
        """Run calls ahead of the iteration, and yield their results in order.

        Each call comes with the approximate size of its result: up to ``most_bytes`` are in flight
        or wait, and up to 16 calls. If requests do not wait, there are no threads, and a call runs
        when its result is asked for. ``calls`` is consumed in the iterating thread.

        An error is raised in turn, and ends the iteration. However it ends, no other call begins,
        and running ones are waited for, unless it is closed early. A forked child may go on with an
        iterator: it runs the calls one by one.
        """
        waits: Waits = self.__dict__.setdefault("_waits", Waits())
        return run_ahead(calls, waits, PARALLEL_REQUESTS, most_bytes)

    def race(self, call: Callable[[int, int], T], rounds: int) -> list[list[T]]:
        """Call ``call(round, racer)`` in 16 threads, which begin each round at the same moment.

        If requests are made one by one there is nothing to race, and one round represents all.

        Returns:
            By round, the result for each racer. An error ends the rounds, and is raised.
        """
        barrier = Barrier(PARALLEL_REQUESTS)

        def run(racer: int) -> list[T]:
            results = []
            try:
                for number in range(rounds):
                    barrier.wait()
                    results.append(call(number, racer))
            except BaseException:
                barrier.abort()
                raise
            return results

        with ThreadPoolExecutor(PARALLEL_REQUESTS) as pool:
            try:
                futures = [pool.submit(run, racer) for racer in range(PARALLEL_REQUESTS)]
                wait(futures)
            except RuntimeError as refused:
                barrier.abort()
                raise StorageError(
                    f"{self.url}: racing needs threads, and none can be started once the main "
                    "thread has ended: let it wait for the others"
                ) from refused
            except BaseException:
                barrier.abort()
                raise
        for future in futures:
            error = future.exception()
            if error is not None and not isinstance(error, BrokenBarrierError):
                raise error
        return [list(raced) for raced in zip(*(f.result() for f in futures), strict=True)]


def lasts(error: StorageError) -> bool:
    """Whether the storage refuses an object for good: it may be archived, or forbidden."""
    return type(error) is StorageError and not error.retriable


def for_each(storage: Storage, work: Callable[[str], T], names: Iterable[str]) -> Generator[T]:
    """The results of ``work`` for each name, in order; see :meth:`Storage.run_ahead`."""
    return storage.run_ahead((0, partial(work, name)) for name in names)


def read_one_copy(
    storage: Storage,
    name: str,
    read: Callable[[Storage], T],
    damaged: tuple[type[TxnlogError], ...],
) -> T:
    """Read a file; if that raises one of ``damaged``, read other copies of it.

    Raises what ``read`` does of the first copy if no other can be read.
    """
    try:
        return read(storage)
    except damaged as damage:
        for source in storage.copies_of(name):
            with suppress(StorageError, *damaged):
                found = read(source)
                warn_of_damage(name, source, damage)
                return found
        raise


def warn_of_damage(name: str, source: Storage, damage: TxnlogError) -> None:
    """Say that a file is damaged in one root of a store, and read from another."""
    _logger.warning(
        "%s is read from %s, because it is damaged elsewhere (`txnlog replicas verify --deep "
        "--repair` mends it): %s",
        name,
        source.url,
        damage,
    )
