"""Compares listings of several members in bounded memory: finds names that not all have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from types import TracebackType
from typing import Any, Final, Self

from txnlog.errors import ObjectNotFound, StorageError
from txnlog.replication import root_names
from txnlog.replication.roots.agreement import Agreement, MemberFailed
from txnlog.replication.roots.epochs import Epoch, Member

_AT_ONCE: Final = 1000
BEHIND_SLASH: Final = chr(ord("/") + 1)
"""Put behind a folder's name, it makes a name that sorts right after all names in the folder."""


@dataclass(frozen=True, slots=True)
class Lacked:
    """The objects that a member lacks: the first names, the number of all, and their bytes."""

    names: tuple[str, ...]
    count: int
    size_bytes: int


class Listings:
    """Names and sizes of several members' objects, in a temporary file that goes with this object.

    A listing is not a snapshot, and listings are made one after the other: check differences again
    before concluding anything. Methods raise StorageError if the temporary file fails.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        import sqlite3  # not needed for opening stores

        self._members = tuple(members)
        self._failures = sqlite3.Error
        with self._telling_failures():
            self._database = sqlite3.connect("", check_same_thread=False)
            self._database.execute(
                "create table listed (name blob, member integer, size integer, "
                "primary key (name, member)) without rowid"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._database.close()

    @contextmanager
    def _telling_failures(self) -> Iterator[None]:
        try:
            yield
        except self._failures as error:
            raise StorageError(
                f"a temporary file for listings that are compared cannot be used: {error}. Make "
                "room where temporary files are, or set SQLITE_TMPDIR to another folder"
            ) from error

    def _rows(self, query: str, arguments: Sequence[object] = ()) -> Iterator[Any]:
        """Yield the rows of a query. Raises StorageError: the temporary file fails."""
        with self._telling_failures():
            found = self._database.execute(query, arguments)
        while True:
            with self._telling_failures():
                rows = found.fetchmany(_AT_ONCE)
            if not rows:
                return
            yield from rows

    def add(self, member: Member, listed: Iterable[tuple[str, int]]) -> None:
        """Add a member's listing. Raises StorageError: the temporary file fails."""
        number = self._members.index(member)
        of_store = (item for item in listed if root_names.is_of_store(item[0]))
        rows = ((_encode(name), number, size) for name, size in of_store)
        with self._telling_failures():
            self._database.executemany("insert or replace into listed values (?, ?, ?)", rows)

    def differing(self) -> Iterator[str]:
        """Names that some member lacks, or has in another size; ascending."""
        return self._names("having count(*) < ? or min(size) < max(size)")

    def uneven(self) -> Iterator[str]:
        """Names that members have in different sizes; ascending."""
        return self._names("having count(*) <= ? and min(size) < max(size)")

    def names(self) -> Iterator[str]:
        """All names; ascending."""
        return self._names("having count(*) <= ?")

    def holders(self) -> Iterator[tuple[str, dict[Member, int]]]:
        """Each name with the members that have it, and their sizes in bytes; ascending."""
        rows = self._rows("select name, member, size from listed order by name")
        for name, some in groupby(rows, key=itemgetter(0)):
            yield _decode(name), {self._members[number]: size for _, number, size in some}

    def sizes_of(self, name: str) -> dict[Member, int]:
        """The members that have a name, and their sizes in bytes."""
        found = self._rows(
            "select member, size from listed where name = ? order by member", [_encode(name)]
        )
        return {self._members[number]: size for number, size in found}

    def folders(self, above: str) -> Iterator[str]:
        """The direct subfolders of a folder that have anything listed in them; ascending."""
        after = f"{above}/"
        first_behind = "select name from listed where name > ? order by name limit 1"
        while row := next(self._rows(first_behind, [_encode(after)]), None):
            within, _, rest = _decode(row[0]).partition("/")
            if within != above:
                return
            folder, is_folder, _ = rest.partition("/")
            after = f"{above}/{folder}"
            if is_folder:
                yield folder
                after += BEHIND_SLASH

    def behind(self, name: str) -> Iterator[tuple[str, int]]:
        """All names behind a given one, with the bytes that all members' copies have; ascending."""
        found = self._rows(
            "select name, sum(size) from listed where name > ? group by name order by name",
            [_encode(name)],
        )
        for encoded, size in found:
            yield _decode(encoded), size

    def alike(self) -> Iterator[str]:
        """Names that all members have in the same size; ascending."""
        return self._names("having count(*) = ? and min(size) = max(size)")

    def _names(self, which: str) -> Iterator[str]:
        found = self._rows(
            f"select name from listed group by name {which} order by name",  # noqa: S608 - ours
            [len(self._members)],
        )
        for (name,) in found:
            yield _decode(name)

    def sum_lacked_by(
        self, member: Member, counts: Callable[[str], bool], most_names: int = 0
    ) -> Lacked:
        """The names that others have and a member lacks, of those for which ``counts`` is true.

        The result has at most ``most_names`` names, but the number and the bytes of all.
        """
        first, count, size_bytes = [], 0, 0
        for name, size in self.lacked_by(member):
            if not counts(name):
                continue
            if count < most_names:
                first.append(name)
            count, size_bytes = count + 1, size_bytes + size
        return Lacked(tuple(first), count, size_bytes)

    def lacked_by(self, member: Member) -> Iterator[tuple[str, int]]:
        """Names and sizes of objects that others have and a member lacks; ascending."""
        found = self._rows(
            "select name, max(size) from listed group by name "
            "having sum(member = ?) = 0 order by name",
            [self._members.index(member)],
        )
        for name, size in found:
            yield _decode(name), size


def _encode(name: str) -> bytes:
    return name.encode(errors="surrogateescape")


def _decode(name: bytes) -> str:
    return name.decode(errors="surrogateescape")


def add_listing(
    listings: Listings,
    agreement: Agreement,
    epoch: Epoch,
    member: Member,
    folder: str = "",
    *,
    counts: Callable[[tuple[str, int]], bool] | None = None,
    within_s: float | None = None,
) -> None:
    """Add a member's listing of a folder; with ``counts`` only the items for which that is true.

    Raises MemberFailed: the member fails, or is not the same folder any more.
    """
    agreement.check_mark(epoch, member)
    try:
        for some in portions(agreement, epoch, member, folder, within_s):
            listings.add(member, filter(counts, some))
    except ObjectNotFound as error:
        raise MemberFailed(member, error) from error
    agreement.check_mark(epoch, member)


def portions(
    agreement: Agreement, epoch: Epoch, member: Member, folder: str, within_s: float | None = None
) -> Iterator[list[tuple[str, int]]]:
    """Yield what a member has below a folder, in portions of names and sizes.

    Each portion may take ``within_s`` seconds; if that is None, as long as the member shows its
    mark.

    Raises MemberFailed, ObjectNotFound.
    """
    ask = partial(agreement.ask, epoch, member, within_s=within_s)
    listed = ask(lambda storage: storage.list_all(folder))
    while some := ask(lambda _: list(islice(listed, _AT_ONCE))):
        yield some
