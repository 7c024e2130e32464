"""``txnlog maintain``: what has to be done from time to time, such as by cron."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.options import DryRunOption
from txnlog.cli.input.places import parse_duration
from txnlog.cli.output.confirmation import note_dry_run
from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.escape import escape_text
from txnlog.cli.output.fields import Field, names, number, size, text
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.results import (
        Compaction,
        Expiry,
        FileDeletion,
        FileRetirement,
        FutureRecords,
        MaintenanceFailure,
        Merge,
        RetentionDeletion,
        StorageStep,
        TablePublication,
        TransactionEnd,
    )

    Done = (
        RetentionDeletion
        | FutureRecords
        | Compaction
        | Merge
        | FileDeletion
        | FileRetirement
        | TransactionEnd
        | Expiry
        | StorageStep
        | TablePublication
    )


def _text(done: Done, name: str) -> str | None:
    value = getattr(done, name, None)
    return None if value is None else str(value)


def _number(done: Done, name: str) -> int | None:
    value = getattr(done, name, None)
    return None if value is None else int(value)


_DONE = {
    "RetentionDeletion": "records deleted",
    "FutureRecords": "records passed by",
    "Compaction": "records compacted",
    "Merge": "segments merged",
    "TablePublication": "table published",
    "FileDeletion": "files deleted",
    "FileRetirement": "files found",
    "TransactionEnd": "transaction ended",
    "Expiry": "expired",
}


def _done(done: Done) -> str | None:
    return _DONE.get(type(done).__name__) or _text(done, "done")


def _reason(done: Done) -> str | None:
    match type(done).__name__:
        case "RetentionDeletion":
            return "retention"
        case "FutureRecords":
            return "their time lies in the future"
        case "Compaction":
            return "newer ones of their keys"
        case "Merge":
            return "small"
        case "TablePublication":
            return "table.publish"
        case "FileRetirement":
            return "nothing refers to them"
        case "Expiry":
            return "idle"
    return _text(done, "reason") or _text(done, "why")


def _paths(done: Done) -> tuple[str, ...]:
    return getattr(done, "paths", ())


def _show_subject(done: Done) -> str:
    """The partition, topic, transactional id or group that it is about."""
    topic, partition = _text(done, "topic"), _number(done, "partition")
    if topic is not None:
        return escape_text(topic if partition is None else f"{topic}:{partition}")
    transactional_id = _text(done, "transactional_id")
    if transactional_id is not None:
        return escape_text(f"transactional id {transactional_id}")
    parts = _text(done, "kind"), _text(done, "name"), _text(done, "root")
    named = [part for part in parts if part is not None]
    return escape_text(" ".join(named)) or "-"


FIELDS: list[Field[Done]] = [
    text("done", "DONE", _done),
    text("reason", "WHY", _reason),
    Field("topic", "SUBJECT", lambda done: _text(done, "topic"), _show_subject),
    number("partition", None, lambda done: _number(done, "partition")),
    text("kind", None, lambda done: _text(done, "kind")),
    text("name", None, lambda done: _text(done, "name")),
    text("transactional_id", None, lambda done: _text(done, "transactional_id")),
    number("number", None, lambda done: _number(done, "number")),
    text("outcome", None, lambda done: _text(done, "outcome")),
    text("root", None, lambda done: _text(done, "root")),
    text("member", None, lambda done: _text(done, "member")),
    number("log_start_offset", None, lambda done: _number(done, "log_start_offset")),
    number(
        "new_log_start_offset",
        "NEW START",
        lambda done: _number(done, "new_log_start_offset"),
        wide=True,
    ),
    number("base_offset", None, lambda done: _number(done, "base_offset")),
    number("end_offset", None, lambda done: _number(done, "end_offset")),
    number("timestamp_ms", None, lambda done: _number(done, "timestamp_ms")),
    number("segment_count", "SEGMENTS", lambda done: _number(done, "segment_count")),
    number("file_count", "FILES", lambda done: len(_paths(done)) or _number(done, "file_count")),
    size("size_bytes", "BYTES", lambda done: _number(done, "size_bytes")),
    number("merged_count", "MERGED", lambda done: _number(done, "merged_count"), wide=True),
    number("merged_bytes", None, lambda done: _number(done, "merged_bytes")),
    number("compacted_count", None, lambda done: _number(done, "compacted_count")),
    number("compacted_bytes", None, lambda done: _number(done, "compacted_bytes")),
    number("record_count", None, lambda done: _number(done, "record_count")),
    number("compacted_record_count", None, lambda done: _number(done, "compacted_record_count")),
    text("url", None, lambda done: _text(done, "url")),
    number("version", None, lambda done: _number(done, "version")),
    number("added_files", None, lambda done: _number(done, "added_files")),
    number("removed_files", None, lambda done: _number(done, "removed_files")),
    number("copied_files", None, lambda done: _number(done, "copied_files")),
    number("delete_after_ms", None, lambda done: _number(done, "delete_after_ms")),
    Field("paths", None, lambda done: [*_paths(done)], names("", None, _paths).show),
]


def maintain_store(
    session: Session,
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC", help="Only these, and no ids or groups."),
    ] = None,
    orphan_age: Annotated[
        str | None,
        typer.Option(
            "--orphan-age",
            metavar="AGE",
            help="When an upload that nothing refers to was left behind. [default: 7d]",
        ),
    ] = None,
    publish: Annotated[
        list[str] | None,
        typer.Option(
            "--publish",
            metavar="PLACE",
            help="Publish topics with table.publish that begins so; may be repeated.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Do the regular work of a store. Nothing runs by itself: call it from cron.

    Deletes records as the topics' retention.ms and retention.bytes say; compacts topics by key
    whose cleanup.policy says so, where enough is new; merges small segments; publishes topics that
    have table.publish, at the places of --publish; deletes files of
    deleted records, of merged and compacted segments (file.delete.delay.ms later) and of deleted
    topics, and what killed jobs have left; ends transactions that their producers do not end; lets
    idle transactional ids and groups expire; brings back roots of a replicated store that answer
    again, if replica.auto.return is set. Does not ask: settings decide.

    No job may take longer than --orphan-age (at least 1d) from its first upload to its commit. May
    run on several machines at once. A failure is reported, and stops nothing else: exit code 1, or
    3 if something is damaged.

    \b
    Example:
      txnlog maintain --dry-run
      txnlog maintain orders -o json
      txnlog maintain --publish delta:s3://lake/tables --publish iceberg:prod
    """
    age_ms = None if orphan_age is None else parse_duration(orphan_age)
    with DamageReporter() as reporter:
        steps = session.open_store(dry_run=dry_run).maintain(
            topics or None, dry_run=dry_run, orphan_age_ms=age_ms, publish=publish or ()
        )
        session.output.rows(FIELDS, _report_failures(reporter, steps))
        note_dry_run(dry_run)


def _report_failures(
    reporter: DamageReporter, steps: Iterable[Done | MaintenanceFailure]
) -> Iterator[Done]:
    from txnlog.results import MaintenanceFailure

    for step in steps:
        if isinstance(step, MaintenanceFailure):
            of = f" of topic {step.topic!r}" if step.topic else ""
            reporter.report_error(step.error, f"{step.part}{of} failed: ")
        else:
            yield step
