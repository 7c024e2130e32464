"""What is read as Arrow when it is asked for, and all that can be made of it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from txnlog.arguments import names_wrong_arguments
from txnlog.display import shorten
from txnlog.errors import InvalidOption, require_package

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
        from txnlog.read.record_files import write_file

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
