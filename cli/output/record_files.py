"""Records as Parquet, Arrow or CSV: into a new file, or to stdout for a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from txnlog.cli.input.record_filter import RecordFilter
from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.decoded_text import DecodedText
from txnlog.cli.output.progress import progress_bar
from txnlog.cli.output.streams import OutputClosed, flush, warn
from txnlog.errors import InvalidOption

if TYPE_CHECKING:
    import pyarrow as pa

    from txnlog.read.rows import Rows
    from txnlog.scan import Scan
    from txnlog.schema import TopicSchema


class FileFormat(str, Enum):
    """The format of the file that is written."""

    PARQUET = "parquet"
    ARROW = "arrow"
    CSV = "csv"


@dataclass(frozen=True, slots=True)
class RecordFile:
    """Where records go, and in which form. ``path`` None: to stdout."""

    path: Path | None
    file_format: str
    encoding: str
    escape_formulas: bool
    columns: Sequence[str] | None
    """None: all, those of the topic first."""

    @classmethod
    def of(
        cls,
        path: Path | None,
        file_format: FileFormat | None,
        encoding: str,
        columns: str | None,
        *,
        escape_formulas: bool,
    ) -> RecordFile:
        """Raises BadParameter."""
        named = None if file_format is None else file_format.value
        names = None if columns is None else [name.strip() for name in columns.split(",")]
        if path is None:
            assert named is not None
            if sys.stdout.isatty() and file_format is not FileFormat.CSV:
                raise typer.BadParameter(
                    f"{named} is not for a terminal: redirect it, or name a file with --to-file"
                )
            return cls(None, named, encoding, escape_formulas, names)
        from txnlog.read.rows import check_file_format

        try:
            chosen = check_file_format(path, named)
        except InvalidOption as error:
            raise typer.BadParameter(f"--to-file: {error}") from error
        return cls(path, chosen, encoding, escape_formulas, names)

    def to_read(self, schema: TopicSchema | None, wanted: RecordFilter) -> list[str] | None:
        """The columns of the scan: those to write, and all if a filter looks into records."""
        if self.columns is None:
            return all_columns(schema)
        needed = (all_columns(schema) or ["key", "value"]) if wanted else []
        return [*self.columns, *(name for name in needed if name not in self.columns)]

    def write(
        self,
        scan: Scan,
        schema: TopicSchema | None,
        wanted: RecordFilter,
        max_records: int | None,
        *,
        skip_damaged: bool,
        decoded: DecodedText | None = None,
    ) -> None:
        """Write the records of a scan that are wanted. Raises what the scan and the file raise.

        With ``decoded`` they have the columns of their values.
        """
        import pyarrow as pa

        found = scan.schema if decoded is None else decoded.reader.batch_schema(scan.schema)
        names = found.names if self.columns is None else self.columns
        if unknown := [name for name in names if name not in found.names]:
            raise typer.BadParameter(f"--columns: there is no {unknown[0]!r} in {found.names}")
        columns = pa.schema([found.field(name) for name in names])

        def chosen(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            if decoded is not None:
                kept = decoded.columns(batches, wanted)
            else:
                kept = wanted.keep(batches, schema)
            return _first((batch.select(columns.names) for batch in kept), max_records)

        if not skip_damaged:
            self._write(chosen(scan.to_batches()), columns, scan.record_count)
            return
        with DamageReporter() as reporter:
            sound = scan.sound_batches(reporter.report_records(True), skip_damaged=True)
            self._write(chosen(sound), columns, scan.record_count)

    def write_rows(self, rows: Rows, max_rows: int | None) -> None:
        """Write all rows, or the first. Raises what they and the file raise."""
        self._write(_first(rows.to_batches(), max_rows), rows.schema, rows.record_count)

    def _write(self, batches: Iterator[pa.RecordBatch], columns: pa.Schema, most: int) -> None:
        from txnlog.read.rows import write_file, write_stream

        if self.path is None:
            try:
                write_stream(
                    batches,
                    columns,
                    sys.stdout.buffer,
                    self.file_format,
                    encoding=self.encoding,
                    escape_formulas=self.escape_formulas,
                )
            except BrokenPipeError:
                raise OutputClosed from None
            flush()
            return
        with progress_bar(f"writing {self.path.name}", unit="records") as shown:
            count = write_file(
                batches,
                columns,
                self.path,
                self.file_format,
                encoding=self.encoding,
                escape_formulas=self.escape_formulas,
                progress=lambda done: shown and shown(done, most),
            )
        warn(f"wrote {count} records to {self.path}")


def all_columns(schema: TopicSchema | None) -> list[str] | None:
    """A typed topic's own columns, and the others needed to write its records again; else None."""
    if schema is None:
        return None
    from txnlog.read.plan import TYPED_METADATA
    from txnlog.schema import DELETED, TOPIC

    more = [name for name in TYPED_METADATA.names if name != TOPIC]
    return [*schema.columns.names, *(name for name in more if name != DELETED or schema.key)]


def _first(batches: Iterator[pa.RecordBatch], max_records: int | None) -> Iterator[pa.RecordBatch]:
    left = max_records
    for batch in batches:
        if left is None:
            yield batch
            continue
        yield batch[:left]
        left -= min(left, batch.num_rows)
        if not left:
            return
