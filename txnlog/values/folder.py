"""Schemas in files of a folder, each named by its id."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from pathlib import Path
from typing import Final

from txnlog.errors import InvalidOption, InvalidSchema, StorageError, UnknownSchema
from txnlog.values.schemas import MOST_SCHEMA_BYTES, RegisteredSchema, SchemaType, check_text

ENDINGS: Final[dict[str, SchemaType]] = {
    ".avsc": "AVRO",
    ".json": "JSON",
    ".proto": "PROTOBUF",
    ".desc": "PROTOBUF",
}
"""How files of each kind of schema are called. A .desc is protoc's descriptor set."""
_FILE: Final = re.compile(r"(?:(.+)-)?(0|[1-9][0-9]{0,18})(\.avsc|\.json|\.proto|\.desc)")


def read_schema_file(path: str | os.PathLike[str]) -> tuple[SchemaType, str]:
    """The kind of a schema in a file, by the file's ending, and its text.

    Raises InvalidSchema: it is none. StorageError: it cannot be read. InvalidOption: the ending is
    of no kind.
    """
    where = Path(path)
    kind = _kind_of(where)
    return kind, _text_of(where, _read(where))


def _kind_of(where: Path) -> SchemaType:
    kind = ENDINGS.get(where.suffix.lower())
    if kind is None:
        raise InvalidOption(
            f"{where} does not say what it is: .avsc is Avro, .json JSON Schema, .proto Protobuf, "
            "and .desc what `protoc --include_imports --descriptor_set_out` writes of a .proto"
        )
    return kind


def _read(where: Path) -> bytes:
    """Read a file, at most one byte more than a schema may have. Raises StorageError."""
    try:
        with where.open("rb") as file:
            return file.read(MOST_SCHEMA_BYTES + 1)
    except OSError as error:
        raise StorageError(f"{where} cannot be read: {error.strerror or error}") from error


def _text_of(where: Path, data: bytes) -> str:
    try:
        is_descriptor = where.suffix.lower() == ".desc"
        text = base64.b64encode(data).decode() if is_descriptor else data.decode()
        return check_text(text)
    except (UnicodeDecodeError, InvalidSchema) as error:
        raise InvalidSchema(f"{where} is no schema: {error}") from error


class SchemaFolder:
    """Schemas in files called ``ID.avsc``, or ``SUBJECT-ID.avsc`` (.json, .proto, .desc).

    The newest version of a subject is the one with the greatest id; a version's number is its id.

    Args:
        folder: where the files are.

    Raises:
        InvalidOption: there is no such folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        if not self._folder.is_dir():
            raise InvalidOption(f"{self._folder} is not a folder of schemas")

    def __repr__(self) -> str:
        return f"SchemaFolder({str(self._folder)!r})"

    def pinned(self) -> SchemaFolder:
        """The files as they are now: one that comes later is no schema, one that changes an error.

        Raises StorageError: the folder cannot be listed.
        """
        return _PinnedFolder(self._folder, self._files())

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """The schema with an id. Raises UnknownSchema, InvalidSchema, StorageError."""
        for subject, number, path in self._files():
            if number == schema_id:
                return self._read(subject, number, path)
        raise UnknownSchema(f"no file in {self._folder} is called by the id {schema_id}")

    def version(self, subject: str, version: int | None = None) -> RegisteredSchema:
        """A version of a subject; None: the newest. Raises what :meth:`by_id` does."""
        mine = [found for found in self._files() if found[0] in (subject, None)]
        if version is not None:
            mine = [found for found in mine if found[1] == version]
        if not mine:
            raise UnknownSchema(f"{self._folder} has no schema of subject {subject!r:.200}")
        return self._read(*max(mine, key=lambda found: (found[0] is not None, found[1])))

    def _files(self) -> list[tuple[str | None, int, Path]]:
        try:
            found = [(_FILE.fullmatch(path.name), path) for path in sorted(self._folder.iterdir())]
        except OSError as error:
            raise StorageError(
                f"the schemas in {self._folder} cannot be listed: {error.strerror or error}. Tasks "
                "of Spark need the folder too, under the same path"
            ) from error
        return [(m[1], int(m[2]), path) for m, path in found if m is not None]

    def _read(self, subject: str | None, number: int, path: Path) -> RegisteredSchema:
        text = _text_of(path, self._data(path))
        return RegisteredSchema(number, _kind_of(path), text, subject=subject, version=number)

    def _data(self, path: Path) -> bytes:
        return _read(path)


class _PinnedFolder(SchemaFolder):
    """The files that a folder had at one time, with their hashes.

    They are read from the folder itself, so one that has changed since is refused.
    """

    def __init__(self, folder: Path, files: list[tuple[str | None, int, Path]]) -> None:
        super().__init__(folder)
        self._found = files
        self._digests = {path: _digest(path) for _, _, path in files}

    def pinned(self) -> SchemaFolder:
        """Itself."""
        return self

    def _data(self, path: Path) -> bytes:
        data = super()._data(path)
        if hashlib.sha256(data).digest() != self._digests[path]:
            raise StorageError(f"{path} has changed since the folder's schemas were pinned")
        return data

    def _files(self) -> list[tuple[str | None, int, Path]]:
        return self._found


def _digest(path: Path) -> bytes | None:
    """The SHA-256 of a file; None if it cannot be read. That is an error only once it is needed."""
    try:
        return hashlib.sha256(_read(path)).digest()
    except StorageError:
        return None
