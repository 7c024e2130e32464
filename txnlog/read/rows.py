"""What is read as Arrow when it is asked for, and all that can be made of it: tables, files."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from txnlog.arguments import names_wrong_arguments
from txnlog.display import shorten
from txnlog.errors import InvalidOption, StorageError, require_package
from txnlog.segments.records import HEADERS_TYPE, joined_batches

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl


@names_wrong_arguments()
class Rows(ABC):
    """Rows that are read as Arrow when they are asked for: a scan, or a feed of changes."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns, in the order they were asked for."""

    @property
    @abstractmethod
    def record_count(self) -> int:
        """How many records are looked at, known without reading any: an upper bound."""

    @abstractmethod
    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Read record batches."""

    def to_arrow(self) -> pa.Table:
        """Read everything into one table."""
        return pa.Table.from_batches(self.to_batches(), schema=self.schema)

    def to_file(
        self,
        path: str | os.PathLike[str],
        file_format: str | None = None,
        *,
        encoding: str = "text",
        escape_formulas: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Write the records to a new local file, in bounded memory; returns how many there were.

        Args:
            path: a file that must not exist yet. It appears when it is complete.
            file_format: 'parquet', 'arrow' (an IPC file) or 'csv'; None: by the path's ending.
            encoding: for CSV, how bytes are written: 'text', 'hex' or 'base64'.
            escape_formulas: for CSV, put an apostrophe before each text, and name of a column, that
                a spreadsheet would take for a formula: for records of others.
            progress: called with the number of records done and, at most, in all.

        Raises:
            InvalidOption: the format or encoding is unknown, or a value is not valid UTF-8.
            StorageError: the file exists or cannot be written.
        """

        def report(done: int) -> None:
            if progress is not None:
                progress(done, self.record_count)

        return write_file(
            self.to_batches(),
            self.schema,
            path,
            file_format,
            encoding=encoding,
            escape_formulas=escape_formulas,
            progress=report,
        )

    def to_pandas(self) -> pd.DataFrame:
        """Read everything into a pandas DataFrame. Raises InvalidOption without pandas."""
        require_package("pandas", "pandas", "to_pandas()")
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_polars(self) -> pl.DataFrame:
        """Read everything into a Polars DataFrame. Raises InvalidOption without Polars."""
        require_package("polars", "polars", "to_polars()")
        import polars as pl

        frame = pl.from_arrow(self.to_arrow())
        assert isinstance(frame, pl.DataFrame)
        return frame

    def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None
    ) -> duckdb.DuckDBPyRelation:
        """Read everything, as a relation of DuckDB: ``scan.to_duckdb().filter("offset > 5")``.

        Args:
            connection: the DuckDB connection to use; None: DuckDB's default one.

        Raises:
            InvalidOption: DuckDB is not installed, or the connection is something else.
        """
        require_package("duckdb", "duckdb", "to_duckdb()")
        import duckdb

        connection = duckdb.default_connection() if connection is None else connection
        if not isinstance(connection, duckdb.DuckDBPyConnection):
            raise InvalidOption(f"to_duckdb() needs a DuckDB connection, not {shorten(connection)}")
        return connection.from_arrow(self.to_arrow())

    def to_reader(self) -> pa.RecordBatchReader:
        """The batches as an Arrow reader, for anything that streams."""
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's PyCapsule interface: Polars, DuckDB and others read a scan as it is."""
        return self.to_reader().__arrow_c_stream__(requested_schema)


_ENDINGS: Final = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".csv": "csv",
}
ENCODINGS: Final = ("text", "hex", "base64")
_FORMULA: Final = r"^[=+\-@\t\r\n\x{FF1D}\x{FF0B}\x{FF0D}\x{FF20}]"
"""How a cell begins that spreadsheets may take for a formula; with the wide forms of =, +, - and @.
"""
_GROUP_BYTES: Final = 16 << 20
"""About how many bytes of records are buffered for one row group or batch."""


class _Writer(Protocol):
    def write_table(self, table: pa.Table) -> None: ...
    def close(self) -> None: ...


def write_file(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    path: str | os.PathLike[str],
    file_format: str | None,
    *,
    encoding: str,
    escape_formulas: bool,
    progress: Callable[[int], None],
) -> int:
    """See :meth:`txnlog.Scan.to_file`."""
    target = Path(path)
    chosen = check_file_format(target, file_format)
    try:
        os.lstat(target)
    except OSError:
        pass  # if it is not that nothing is there, it is said when the file is made
    except ValueError as error:
        raise InvalidOption(f"{shorten(str(path))} is no name for a file: {error}") from error
    else:
        raise StorageError(f"{target} exists already; nothing is overwritten: choose another name")
    with _publish(target) as file:
        return write_stream(
            batches,
            schema,
            file,
            chosen,
            encoding=encoding,
            escape_formulas=escape_formulas,
            progress=progress,
        )


def write_stream(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    file: IO[bytes],
    chosen: str,
    *,
    encoding: str,
    escape_formulas: bool,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Write records in one of the formats, front to back; Arrow's as a stream if it is a pipe.

    Raises InvalidOption: an argument is not valid, or a value is not UTF-8.
    """
    if encoding not in ENCODINGS:
        raise InvalidOption(f"encoding {encoding!r} is not one of {', '.join(ENCODINGS)}")
    if escape_formulas and chosen != "csv":
        raise InvalidOption(f"escape_formulas is for csv, not for {chosen}: only text has formulas")
    done = 0
    # The writer is closed in any case: otherwise it would close itself later.
    with closing(_WRITERS[chosen](file, _without_formulas(schema, escape_formulas))) as writer:
        # A file of tiny groups would be slow to read.
        for table in joined_batches(batches, _GROUP_BYTES):
            if chosen == "csv":
                table = _as_text(table, encoding)
                if escape_formulas:
                    table = _escape_formulas(table)
            writer.write_table(table)
            done += table.num_rows
            progress(done)
    return done


def check_file_format(path: Path, file_format: str | None) -> str:
    """The named format, or that of the path's extension. Raises InvalidOption."""
    chosen = file_format or _ENDINGS.get(path.suffix.lower())
    known = ", ".join(_WRITERS)
    if chosen is None:
        raise InvalidOption(
            f"the ending of {path} does not tell the file format; name one of {known}"
        )
    if chosen not in _WRITERS:
        raise InvalidOption(f"file format {chosen!r} is not one of {known}")
    return chosen


@contextmanager
def _publish(target: Path) -> Iterator[IO[bytes]]:
    """A new file that gets its name when the block succeeds, and is deleted otherwise."""
    unfinished = target.with_name(f".{target.name}.{uuid4().hex}.tmp")
    try:
        with unfinished.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.link(unfinished, target)  # unlike a rename it replaces nothing
    except FileExistsError as error:
        raise StorageError(f"{target} exists already; nothing is overwritten") from error
    except OSError as error:
        raise StorageError(f"{target} cannot be written: {error}") from error
    finally:
        with suppress(OSError):
            unfinished.unlink()


# -- the formats ---------------------------------------------------------------------------------


def _parquet(file: IO[bytes], schema: pa.Schema) -> _Writer:
    from pyarrow import parquet

    try:
        return parquet.ParquetWriter(file, schema, compression="zstd")  # type: ignore[no-any-return]
    except pa.ArrowNotImplementedError as error:  # of a struct without fields
        raise InvalidOption(
            f"Parquet cannot hold a column: {error}; choose arrow, or other columns"
        ) from error


def _arrow(file: IO[bytes], schema: pa.Schema) -> _Writer:
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    new = pa.ipc.new_file if file.seekable() else pa.ipc.new_stream
    return new(file, schema, options=options)  # type: ignore[no-any-return]


def _csv(file: IO[bytes], schema: pa.Schema) -> _Writer:
    from pyarrow import csv

    for field in schema:
        if pa.types.is_nested(field.type) and field.type != HEADERS_TYPE:
            raise InvalidOption(
                f"column {field.name!r} is {field.type}, which CSV cannot hold; choose parquet or "
                "arrow, or other columns"
            )
    fields = [
        pa.field(field.name, pa.string())
        if _is_bytes(field.type) or field.type == HEADERS_TYPE
        else field
        for field in schema
    ]
    return csv.CSVWriter(file, pa.schema(fields))  # type: ignore[no-any-return]


_WRITERS: Final[dict[str, Callable[[IO[bytes], pa.Schema], _Writer]]] = {
    "parquet": _parquet,
    "arrow": _arrow,
    "csv": _csv,
}


def _as_text(table: pa.Table, encoding: str) -> pa.Table:
    """CSV has no bytes and no lists: bytes become text, headers JSON."""
    for at, field in enumerate(table.schema):
        if _is_bytes(field.type):
            column = _text_column(table.column(at), field.name, encoding)
            table = table.set_column(at, field.name, column)
        elif field.type == HEADERS_TYPE:
            lines = [_headers_json(headers) for headers in table.column(at).to_pylist()]
            table = table.set_column(at, field.name, pa.array(lines, pa.string()))
    return table


def _is_bytes(kind: Any) -> bool:  # noqa: ANN401 - pyarrow has no types
    of_bytes = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(is_one(kind) for is_one in of_bytes)


def _without_formulas(schema: pa.Schema, escape: bool) -> pa.Schema:
    """The columns, with names that no spreadsheet takes for formulas if that is asked for."""
    if not escape:
        return schema
    names = _escaped(pa.chunked_array([pa.array(schema.names, pa.string())])).to_pylist()
    fields = [field.with_name(name) for field, name in zip(schema, names, strict=True)]
    return pa.schema(
        field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field
        for field in fields
    )


def _escape_formulas(table: pa.Table) -> pa.Table:
    """The rows with an apostrophe before each text that a spreadsheet may take for a formula."""
    columns = [_escaped(column) for column in table.columns]
    schema = _without_formulas(table.schema, True)
    return pa.Table.from_arrays(columns, schema=schema)


def _escaped(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        column = column.cast(pa.string())
    kind = column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return column
    marks = pc.match_substring_regex(column, _FORMULA)
    escaped = pc.binary_join_element_wise(pa.scalar("'", kind), column, pa.scalar("", kind))
    return pc.if_else(marks, escaped, column)


def _text_column(column: pa.ChunkedArray, name: str, encoding: str) -> pa.ChunkedArray:
    if encoding == "text":
        try:
            return column.cast(pa.binary()).cast(pa.string())
        except pa.ArrowInvalid as error:
            raise InvalidOption(
                f"a value of column {name!r} is not UTF-8 text, which is all that CSV can hold; "
                "choose the encoding hex or base64, or another file format"
            ) from error
    encode = bytes.hex if encoding == "hex" else _base64
    found = [None if data is None else encode(data) for data in column.to_pylist()]
    return pa.chunked_array([pa.array(found, pa.string())])


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def _headers_json(headers: list[dict[str, bytes | None]] | None) -> str:
    """The headers as in ``records read -o json``."""
    shown = [
        {"key": header["key"], "value": _json_bytes(header["value"])} for header in headers or ()
    ]
    return json.dumps(shown, ensure_ascii=False)


def _json_bytes(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": _base64(data)}
