"""``txnlog topics purge``: every record of some keys goes for good."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.options import DryRunOption, YesOption
from txnlog.cli.input.places import Target
from txnlog.cli.input.record_input import (
    InputFormat,
    InputOption,
    RecordInput,
    find_format,
    find_limits,
    make_line_format,
)
from txnlog.cli.output.confirmation import confirm, note_dry_run
from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.fields import Field, number, size, text
from txnlog.cli.output.streams import warn
from txnlog.cli.session import Session

if TYPE_CHECKING:
    import pyarrow as pa

    from txnlog.results import Purge, PurgeReport
    from txnlog.scan import Scan
    from txnlog.schema import TopicSchema
    from txnlog.store import Store

FIELDS: list[Field[Purge]] = [
    text("topic", "TOPIC", lambda done: done.topic),
    number("partition", "PART", lambda done: done.partition),
    number("record_count", "RECORDS", lambda done: done.record_count),
    number("segment_count", "SEGMENTS", lambda done: done.segment_count),
    size("size_bytes", "BYTES", lambda done: done.size_bytes),
    size("purged_bytes", "BYTES AFTER", lambda done: done.purged_bytes),
]


def purge_keys(
    session: Session,
    topic: Annotated[str, typer.Argument(help="Whose records.")],
    keys: Annotated[
        Path | None,
        typer.Option("--keys", metavar="FILE", help="The keys; - is stdin."),
    ] = None,
    keys_of: Annotated[
        str | None,
        typer.Option("--keys-of", metavar="TOPIC", help="All keys of it."),
    ] = None,
    input_format: InputOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete every record of some keys for good, tombstones too.

    It does so whatever the settings of the topic are; other records keep their offsets. FILE has a
    key a line, empty ones are skipped; or records with these keys, in the forms that `records
    write` takes.

    The old files stay for readers that are at work, for file.delete.delay.ms; then `maintain`
    deletes them. Run it again to see whether any is left. Asks first on a terminal; elsewhere it
    needs --yes.

    \b
    Example:
      echo alice | txnlog topics purge orders --keys - --yes
      txnlog topics purge flights --keys flights.jsonl --dry-run
      txnlog topics purge orders --keys-of gone --yes
    """
    if (keys is None) == (keys_of is None):
        raise typer.BadParameter("give either --keys FILE or --keys-of TOPIC")
    store = session.open_store(dry_run=dry_run)
    given: pa.Table | Scan
    if keys is not None:
        given = _read_keys(store, topic, keys, input_format)
        counted = "1 key" if given.num_rows == 1 else f"{given.num_rows} keys"
    else:
        assert keys_of is not None
        if input_format is not None:
            raise typer.BadParameter("--input is of --keys FILE: leave it out with --keys-of")
        given, counted = _scan_keys(store, topic, keys_of), f"all keys of topic {keys_of}"
    if not dry_run:
        confirm(f"delete all records of {counted} from topic {topic}", yes=yes)
    report = store.maintenance.purge(topic, given, dry_run=dry_run)
    session.output.rows(FIELDS, report.partitions)
    with DamageReporter() as reporter:
        for damaged in report.damaged:
            reporter.report(f"{damaged}; it may hold such records: purge again when it is restored")
        if not dry_run:
            _say_what_is_left(report)
        note_dry_run(dry_run)


def _say_what_is_left(report: PurgeReport) -> None:
    if report.undecided_count:
        warn(
            f"offsets not decided yet, which were not looked at: {report.undecided_count}; purge "
            "again when their transactions have ended"
        )
    if report.waiting_files:
        warn(
            f"files to be deleted, which may hold such records: {report.waiting_files}; `txnlog "
            "maintain` deletes them when file.delete.delay.ms has passed, and copies of a catalog "
            "after the orphan age"
        )
    if report.old_copies:
        warn(
            f"what roots had when they were put out may hold such records: "
            f"{', '.join(report.old_copies)}; `txnlog replicas forget` deletes it when the root "
            "is back in sync"
        )
    if report.published:
        warn(
            f"the topic is published as {report.published}, which shows such records until that "
            "is done again (`txnlog maintain --publish`), and in its older versions; where that "
            "fails, `maintain` deletes no file of the topic"
        )
    is_left = report.undecided_count or report.waiting_files or report.old_copies
    if not (report.partitions or is_left or report.damaged):
        warn(
            "no file of the topic holds a record of these keys; standbys, and tables published by "
            "hand, may until they follow"
        )


def _read_keys(store: Store, topic: str, path: Path, input_format: InputFormat | None) -> pa.Table:
    """The columns of the keys. Raises BadParameter, InvalidRecord."""
    import pyarrow as pa

    from txnlog.admin.purge_topic import MOST_KEY_BYTES

    is_stdin = str(path) == "-"
    chosen = find_format(input_format, None if is_stdin else path)
    limits = find_limits(store, Target(topic, None))
    names = _key_names(limits.schema)
    lines = make_line_format(None, None, None, None, ())
    records = RecordInput(chosen, topic, limits, False, lines, keys_alone=True)
    batches: list[pa.RecordBatch] = []
    size_bytes = 0
    try:
        with open(sys.stdin.fileno() if is_stdin else path, "rb", closefd=not is_stdin) as stream:
            for batch in records.read(stream):
                if chosen is InputFormat.LINES:
                    batch = _keys_in_lines(batch.column("value"), path)
                missing = [name for name in names if name not in batch.schema.names]
                if missing:
                    raise typer.BadParameter(f"--keys {path} has no column {missing[0]!r}")
                batches.append(batch.select([*names]))
                size_bytes += batches[-1].nbytes
                if size_bytes > MOST_KEY_BYTES:
                    raise typer.BadParameter(
                        f"--keys {path} has more than {MOST_KEY_BYTES >> 20} MiB of keys: give "
                        "fewer at once"
                    )
    except OSError as error:
        raise typer.BadParameter(f"--keys {path}: {error.strerror or error}") from error
    if not any(batch.num_rows for batch in batches):
        raise typer.BadParameter(f"--keys {path} has no keys: nothing was looked for")
    return pa.Table.from_batches(batches)


def _scan_keys(store: Store, topic: str, other: str) -> Scan:
    """Raises BadParameter: the keys have other columns; UnknownTopicOrPartition."""
    mine, theirs = (
        _key_names(find_limits(store, Target(name, None)).schema) for name in (topic, other)
    )
    if {*mine} != {*theirs} or not mine:
        keys = [", ".join(names) or "none" for names in (theirs, mine)]
        raise typer.BadParameter(
            f"--keys-of {other}: its key is {keys[0]}, and that of {topic} is {keys[1]}: name a "
            "topic with the same columns, or give the keys as --keys FILE"
        )
    return store.scan(other, columns=mine)


def _key_names(schema: TopicSchema | None) -> tuple[str, ...]:
    return ("key",) if schema is None else schema.key


def _keys_in_lines(lines: pa.Array, path: Path) -> pa.RecordBatch:
    """The keys of a file with one in each line; empty lines are skipped.

    Raises BadParameter: lines end as on Windows, or begin with a byte order mark.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for found, what in (
        (pc.ends_with(lines, b"\r"), "a carriage return ends a line, as on Windows"),
        (pc.starts_with(lines, b"\xef\xbb\xbf"), "a line begins with a byte order mark"),
    ):
        if pc.any(found).as_py():
            raise typer.BadParameter(
                f"--keys {path}: {what}: save the file without, or give keys that are so as "
                "--input jsonl"
            )
    return pa.RecordBatch.from_arrays(
        [lines.filter(pc.greater(pc.binary_length(lines), 0))], names=["key"]
    )
