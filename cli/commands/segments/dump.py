"""``txnlog segments dump``: the batches of segments, as they lie."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Annotated

import typer

from txnlog.cli.input.segment_choice import (
    FileOption,
    OptionalTargetArgument,
    SegmentChoice,
    SegmentOption,
    choose_segments,
)
from txnlog.cli.output.batch_fields import (
    Batch,
    batch_fields,
    read_file_batches,
    read_placed_batches,
    show_records,
)
from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.session import Session


def dump_segments(
    session: Session,
    target: OptionalTargetArgument = None,
    segment: SegmentOption = None,
    file: FileOption = None,
    records: Annotated[bool, typer.Option("--records", help="Show the records too.")] = False,
    no_metadata: Annotated[
        bool, typer.Option("--no-metadata", help="Show records as keys and values alone.")
    ] = False,
    max_batches: Annotated[
        int | None,
        typer.Option("--max-batches", min=0, help="At most this many.", show_default=False),
    ] = None,
    max_bytes: Annotated[
        int | None,
        typer.Option(
            "--max-bytes", min=0, help="No batch after this many bytes.", show_default=False
        ),
    ] = None,
) -> None:
    """Show the batches of segments as they lie in their files. Changes nothing.

    Offsets and sequences are those of the topic; with --file they are those in the file,
    where txnlog's own begin at 0. A file may be one of Kafka's. Damage is reported with its
    position, all that can be decoded is shown, and the exit code is 3.

    \b
    Example:
      txnlog segments dump orders:0 --max-batches 5
      txnlog segments dump --file orders-0/00000000000000000000.log --records
    """
    choice = choose_segments(target, segment, file)
    with_records = records or no_metadata
    batches = _stop_after(max_bytes, islice(_read_batches(session, choice), max_batches))
    with DamageReporter() as reporter:
        session.output.rows(
            batch_fields(with_records=with_records, metadata=not no_metadata),
            reporter.watch(batches, lambda batch: [batch.dumped.damage]),
            streamed=True,
            live=with_records,  # no table is measured ahead: a batch holds its records
            heading=lambda batch: f"# {batch.source}",
            below=partial(show_records, metadata=not no_metadata) if with_records else None,
            cut=True,
        )


def _stop_after(max_bytes: int | None, batches: Iterator[Batch]) -> Iterator[Batch]:
    left = max_bytes
    for batch in batches:
        if left is not None and left <= 0:
            return
        yield batch
        if left is not None:
            left -= batch.dumped.size_bytes


def _read_batches(session: Session, choice: SegmentChoice) -> Iterator[Batch]:
    for path in choice.files:
        yield from read_file_batches(path, session.storage_options)
    if not choice.files:
        store = session.open_to_read()
        for segment in choice.find(store):
            yield from read_placed_batches(store.storage, segment)
