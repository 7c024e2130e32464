"""txnlog stores in a SQLite file, as ``sqlite:///data/store.db``: an example of an adapter.

Put-if-absent is an INSERT, which the primary key refuses if the name is taken. Use it as a pattern
for a filesystem of yours, see docs/STORAGE.md; with `pip install` of this folder, txnlog opens such
URLs everywhere, in Spark and on the command line too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

from txnlog.errors import InvalidOption, ObjectNotFound
from txnlog.storage import BufferedUpload, Storage, Upload, check_name, failure

T = TypeVar("T")

_TABLE = "CREATE TABLE IF NOT EXISTS objects (name TEXT PRIMARY KEY, data BLOB NOT NULL)"
_PATIENCE_S = 60.0


def open_url(url: str, options: Mapping[str, object]) -> Storage:
    """The storage in the file of a URL. Nothing is read or written yet."""
    if options:
        raise InvalidOption(f"sqlite:// takes no storage options, but got {', '.join(options)}")
    path = url.removeprefix("sqlite://")
    if not path.startswith("/"):
        raise InvalidOption("a SQLite URL needs an absolute path, as in sqlite:///data/store.db")
    return SqliteStorage(url)


class SqliteStorage(Storage):
    """Objects as rows; what the URL has behind ``.db`` begins their names."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        path, suffix, prefix = self.url.removeprefix("sqlite://").partition(".db")
        self._file = Path(path + suffix)
        self._prefix = prefix.removeprefix("/") + "/" if prefix else ""

    def __reduce__(self) -> tuple[type[SqliteStorage], tuple[str]]:
        return SqliteStorage, (self.url,)

    def _run(
        self, operation: str, name: str, work: Callable[[sqlite3.Connection], T], *, durable: bool
    ) -> T:
        """Do some work in a connection of its own: none is shared by threads, or after a fork."""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._file, timeout=_PATIENCE_S)) as connection:
                connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
                connection.execute(_TABLE)
                with connection:
                    return work(connection)
        except (sqlite3.Error, OSError) as error:
            raise failure(operation, self.url, name, error) from error

    def put_if_absent(self, name: str, data: bytes) -> bool:
        row = (self._prefix + check_name(name), bytes(data))
        insert = "INSERT INTO objects VALUES (?, ?) ON CONFLICT DO NOTHING"
        created = self._run(
            "creating", name, lambda db: db.execute(insert, row).rowcount, durable=True
        )
        return created == 1

    def put(self, name: str, data: bytes) -> None:
        if not self.put_if_absent(name, data):
            taken = FileExistsError("the name is taken, though it should be unique")
            raise failure("creating", self.url, name, taken)

    def upload(self, name: str) -> Upload:
        return BufferedUpload(partial(self.put, check_name(name)))

    def get(self, name: str) -> bytes:
        return self._look(name, "data", bytes)

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        length = max(stop - start, 0)
        return self._look(name, f"coalesce(substr(data, {start + 1:d}, {length:d}), x'')", bytes)

    def size(self, name: str) -> int:
        return self._look(name, "length(data)", int)

    def _look(self, name: str, what: str, kind: Callable[[T], T]) -> T:
        select = f"SELECT {what} FROM objects WHERE name = ?"
        key = (self._prefix + check_name(name),)
        rows = self._run(
            "reading", name, lambda db: db.execute(select, key).fetchall(), durable=False
        )
        if not rows:
            raise ObjectNotFound(f"there is no {self.url}/{name}")
        found: T = kind(rows[0][0])
        return found

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        names = [name for name, _ in self._below(folder)]
        return sorted(name for name in names if "/" not in name and name > start_after)

    def list_folders(self, folder: str) -> list[str]:
        deeper = [name for name, _ in self._below(folder) if "/" in name]
        return sorted({name.partition("/")[0] for name in deeper})

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        prefix = f"{folder}/" if folder else ""
        for name, size_bytes in sorted(self._below(folder)):
            yield prefix + name, size_bytes

    def _below(self, folder: str) -> list[tuple[str, int]]:
        """Names below a folder, relative to it, with sizes in bytes."""
        prefix = self._prefix + (f"{check_name(folder)}/" if folder else "")
        select = "SELECT name, length(data) FROM objects WHERE substr(name, 1, ?) = ?"
        given = (len(prefix), prefix)
        rows: list[tuple[str, int]] = self._run(
            "listing", folder, lambda db: db.execute(select, given).fetchall(), durable=False
        )
        return [(name[len(prefix) :], size_bytes) for name, size_bytes in rows]

    def delete(self, names: Iterable[str]) -> None:
        keys = [(self._prefix + check_name(name),) for name in names]
        remove = "DELETE FROM objects WHERE name = ?"
        self._run("deleting", "", lambda db: db.executemany(remove, keys), durable=True)
