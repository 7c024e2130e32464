"""``txnlog topics trim``: records below an offset or older than a time are no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from txnlog.cli.input.options import DryRunOption, YesOption
from txnlog.cli.input.places import (
    Offset,
    Place,
    Target,
    Time,
    parse_place,
    parse_target,
    to_partitions,
)
from txnlog.cli.output.confirmation import confirm, note_dry_run
from txnlog.cli.output.fields import Field, number, text
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.inspect.descriptions import RecordDeletion
    from txnlog.store import Store


_Kind = TypeVar("_Kind", str, int)

FIELDS: list[Field[RecordDeletion]] = [
    text("topic", "TOPIC", lambda plan: plan.topic),
    number("partition", "PART", lambda plan: plan.partition),
    number("log_start_offset", "START", lambda plan: plan.log_start_offset),
    number("new_log_start_offset", "NEW START", lambda plan: plan.new_log_start_offset),
    number("record_count", "RECORDS", lambda plan: plan.offset_count),
]


def trim_records(
    session: Session,
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC[:PARTITION]", help="What is to be trimmed."),
    ] = None,
    before: Annotated[
        str | None,
        typer.Option(
            "--before",
            metavar="PLACE",
            help="The new start: an offset (with TOPIC:PARTITION), @TIME, or latest for all.",
        ),
    ] = None,
    offset_json_file: Annotated[
        Path | None,
        typer.Option(
            "--offset-json-file",
            metavar="PATH",
            help="Instead: a file as kafka-delete-records takes it.",
        ),
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete the records before a place in each partition.

    No further than the last stable offset. RECORDS counts offsets, aborted ones too. The
    files stay where they are, for readers that are at work; `maintain` deletes them later.
    Asks first on a terminal; elsewhere it needs --yes.

    \b
    Example:
      txnlog topics trim orders:0 --before 1000 --dry-run
      txnlog topics trim orders --before @2024-05-01 --yes
    """
    if (before is None) == (offset_json_file is None) or bool(targets) == bool(offset_json_file):
        raise typer.BadParameter(
            "name TOPIC[:PARTITION] and --before PLACE, or give --offset-json-file PATH alone"
        )
    wanted = [parse_target(target) for target in targets or ()]
    place = None if before is None else parse_place(before)
    if isinstance(place, Offset) and any(target.partition is None for target in wanted):
        raise typer.BadParameter("--before OFFSET is for one partition: name TOPIC:PARTITION")
    if place == "earliest":
        raise typer.BadParameter("--before earliest would change nothing")
    from_file = None if offset_json_file is None else _read_file(offset_json_file)
    opened = session.open_store(dry_run=dry_run)
    groups = [(wanted, place)] if from_file is None else [([at], to) for at, to in from_file]
    plans = [plan for group, to in groups for plan in _plan(opened, group, to)]
    doomed = [plan for plan in plans if plan.offset_count]
    if doomed and not dry_run:
        count = sum(plan.offset_count for plan in doomed)
        confirm(f"delete the records before the new start: {count} offsets", yes=yes)
        _delete(opened, doomed)
    session.output.rows(FIELDS, plans)
    note_dry_run(dry_run)


def _plan(store: Store, targets: list[Target], place: Place | None) -> list[RecordDeletion]:
    return store.topics.plan_delete_records(
        to_partitions(targets),
        before=place.offset if isinstance(place, Offset) else None,
        timestamp_ms=place.timestamp_ms if isinstance(place, Time) else None,
    )


def _delete(store: Store, plans: list[RecordDeletion]) -> None:
    from txnlog.names import TopicPartition

    store.topics.delete_records(
        {TopicPartition(plan.topic, plan.partition): plan.new_log_start_offset for plan in plans},
        topic_ids={plan.topic: plan.topic_id for plan in plans},
    )


def _of(kind: type[_Kind], value: object) -> _Kind:
    """A value from JSON. Raises TypeError: ``true`` is no number either."""
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _read_file(path: Path) -> list[tuple[Target, Place | None]]:
    """``{"partitions": [{"topic": "t", "partition": 0, "offset": 9}]}``; -1 is latest."""
    try:
        found = json.loads(path.read_bytes())
        wanted = [
            (Target(_of(str, item["topic"]), _of(int, item["partition"])), _of(int, item["offset"]))
            for item in found["partitions"]
        ]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise typer.BadParameter(
            f"--offset-json-file {path} is not as kafka-delete-records takes it, "
            f'{{"partitions": [{{"topic": "t", "partition": 0, "offset": 9}}]}}: {error!r}'
        ) from error
    if len({where for where, _ in wanted}) < len(wanted):
        raise typer.BadParameter(f"--offset-json-file {path} names a partition twice")
    if any(offset < -1 for _, offset in wanted):
        raise typer.BadParameter(f"--offset-json-file {path} has an offset below -1")
    return [(where, None if at == -1 else Offset(at)) for where, at in wanted]
