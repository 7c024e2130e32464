"""``txnlog topics alter``: other columns of a typed topic, and more partitions."""

from __future__ import annotations

from typing import Annotated

import typer

from txnlog.cli.input.assignments import parse_pair
from txnlog.cli.input.columns import (
    DefaultOption,
    parse_columns_of,
    parse_defaults,
    parse_schema,
    split_names,
)
from txnlog.cli.input.options import DryRunOption, TopicArgument
from txnlog.cli.output.confirmation import note_dry_run
from txnlog.cli.output.topic_fields import print_topic
from txnlog.cli.session import Session

_Add = Annotated[
    list[str] | None,
    typer.Option(
        "--add",
        metavar="COLUMNS",
        help="New columns, as 'gate string default \"?\"'; may be repeated.",
    ),
]
_Drop = Annotated[
    list[str] | None,
    typer.Option("--drop", metavar="COLUMN,...", help="Columns that go; may be repeated."),
]
_Rename = Annotated[
    list[str] | None,
    typer.Option("--rename", metavar="OLD=NEW", help="Another name; may be repeated."),
]
_Widen = Annotated[
    list[str] | None,
    typer.Option(
        "--widen",
        metavar="'COLUMN TYPE'",
        help="A wider type, as 'flight bigint'; may be repeated.",
    ),
]
_Nullable = Annotated[
    list[str] | None,
    typer.Option(
        "--nullable",
        metavar="COLUMN,...",
        help="Columns that may be null from now on; may be repeated.",
    ),
]
_Schema = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="COLUMNS|FILE",
        help="All columns, as for `topics create`, instead of single changes.",
    ),
]
_Partitions = Annotated[
    int | None,
    typer.Option("--partitions", "-p", min=1, help="How many there are to be in all."),
]


def alter_topic(
    session: Session,
    topic: TopicArgument,
    add: _Add = None,
    drop: _Drop = None,
    rename: _Rename = None,
    widen: _Widen = None,
    nullable: _Nullable = None,
    schema: _Schema = None,
    default: DefaultOption = None,
    partitions: _Partitions = None,
    dry_run: DryRunOption = False,
) -> None:
    """Change a topic's columns and show it. All changes in one step, or none if one is refused.

    Older records are read under the new columns; nothing is rewritten. A renamed column is named as
    it will be. What others change in the meantime stays; settings are for `topics config set`.

    \b
    Example:
      txnlog topics alter flights --add 'wing string default "A"' --dry-run
      txnlog topics alter flights --widen 'flight bigint' --rename gate=stand
    """
    import pyarrow as pa

    from txnlog.columns.edits import ColumnEdits

    added = parse_columns_of("--add", add or ())
    wider = parse_columns_of("--widen", widen or ())
    if wider.defaults or not all(field.nullable for field in wider.columns):
        raise typer.BadParameter("--widen takes names and types alone: 'flight bigint'")
    edits = ColumnEdits(
        added.columns, split_names(drop or ()), wider.columns, split_names(nullable or ())
    )
    renamed = dict(parse_pair("--rename", text, "OLD=NEW") for text in rename or ())
    if schema is not None and edits:
        raise typer.BadParameter(
            "--schema says all columns: leave --add, --drop, --widen and --nullable out"
        )
    if not (edits or renamed or schema is not None or partitions is not None):
        raise typer.BadParameter(
            "nothing is to change: give --add, --drop, --rename, --widen, --nullable, --schema or "
            "--partitions"
        )
    whole = None if schema is None else parse_schema(schema)
    known = added if whole is None else whole
    defaults = {**known.defaults, **parse_defaults(default or (), known.columns)}
    columns: pa.Schema | ColumnEdits | None = edits or None
    changed = session.open_store(dry_run=dry_run).topics.alter(
        topic,
        partitions=partitions,
        schema=columns if whole is None else whole.columns,
        rename=renamed or None,
        defaults=defaults or None,
        dry_run=dry_run,
    )
    print_topic(session.output, changed)
    note_dry_run(dry_run)
