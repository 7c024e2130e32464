"""``txnlog log``: the log of a topic, as it lies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, TypeAlias, cast

import typer

from txnlog.cli.input.options import TopicArgument
from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.escape import Json
from txnlog.cli.output.fields import Field, flag, number, size, text, time
from txnlog.cli.output.streams import first
from txnlog.cli.output.transaction_fields import transaction_ref
from txnlog.cli.session import Session
from txnlog.cli.verbs import verb_group

if TYPE_CHECKING:
    from txnlog.inspect.log_dump import DumpedEntry
    from txnlog.schema import TopicSchema
    from txnlog.state.segment import SegmentEntry
    from txnlog.state.topic_entries import TopicEntry

    Entry: TypeAlias = DumpedEntry[TopicEntry]

_SHOWN_PLACES = 6
"""An append to a thousand partitions is one line all the same."""
_SHOWN_COLUMNS = 6


def _find_kind(found: Entry) -> str | None:
    if found.missing_count:
        return "missing"
    kind = (found.content or {}).get("kind")
    return kind if isinstance(kind, str) else None


def _join_markers(found: Entry) -> str | None:
    return " and ".join(outcome.value for outcome in found.outcomes) or None


def _show_places(segments: Iterable[SegmentEntry]) -> str:
    shown = [f"{at.partition}:[{at.base_offset},{at.end_offset})" for at in segments]
    more = len(shown) - _SHOWN_PLACES
    return " ".join(shown[:_SHOWN_PLACES] + ([f"and {more} more"] if more > 0 else []))


def _describe(found: Entry) -> str | None:
    """What an entry says, in short. A damaged one says nothing."""
    from txnlog.state.segment import Rewritten
    from txnlog.state.topic_entries import Altered, Append, Appends, Created, Imported, Trimmed

    match found.entry:
        case Created(partitions=count, config=config, schema=schema):
            return " ".join([f"partitions={count}", *_show_schema(schema), *_show_settings(config)])
        case Append(segments=segments):
            return _show_places(segments)
        case Appends(appends=appends):
            return _show_places(place for append in appends for place in append.segments)
        case Imported(segments=segments):
            return _show_places(segments)
        case Altered(partitions=count, config=config, schema=schema):
            grown = [] if count is None else [f"partitions={count}"]
            return " ".join([*grown, *_show_schema(schema), *_show_settings(config)])
        case Trimmed(log_start_offsets=starts):
            return " ".join(f"{partition}:{start}" for partition, start in sorted(starts.items()))
        case Rewritten(segments=segments):
            return _show_places(segments)
        case _:
            last = found.number + found.missing_count - 1
            return f"to {last}" if found.missing_count > 1 else None


def _show_schema(schema: TopicSchema | None) -> list[str]:
    """The columns of a schema that an entry sets, with the former names of renamed ones."""
    if schema is None:
        return []
    from txnlog.errors import CorruptEntry
    from txnlog.schema import without_ids
    from txnlog.segments.schema_columns import id_of

    try:
        columns = [*schema.columns]
    except CorruptEntry as error:
        return [str(error)]
    before = {old.id: old.name for old in schema.former if old.until == schema.version - 1}
    shown = []
    for field in columns[:_SHOWN_COLUMNS]:
        number = id_of(field)
        was = f" (was {before[number]})" if number in before else ""
        shown.append(f"{field.name} {without_ids(field).type}{was}")
    more = len(columns) - _SHOWN_COLUMNS
    return [f"columns: {', '.join(shown)}" + (f" and {more} more" if more > 0 else "")]


def _show_settings(config: dict[str, str] | dict[str, str | None]) -> list[str]:
    return [f"{key}={'default' if value is None else value}" for key, value in config.items()]


FIELDS: list[Field[Entry]] = [
    number("entry", "ENTRY", lambda found: found.number),
    text("kind", "KIND", _find_kind),
    time("at_ms", "AT", lambda found: None if found.entry is None else found.entry.at_ms),
    text("marker", "MARKER", _join_markers),
    flag("checkpoint", "CHECKPOINT", lambda found: found.has_checkpoint, "yes", "-", wide=True),
    transaction_ref("TRANSACTION", lambda found: found.transaction, elastic=1),
    number("missing_count", None, lambda found: found.missing_count),
    size("size_bytes", "BYTES", lambda found: found.size_bytes, wide=True),
    text("path", None, lambda found: found.path),
    text("damage", None, lambda found: found.damage),
    Field(
        *("content", "WHAT"),
        lambda found: cast("Json", found.content),
        lambda found: _describe(found) or "-",
        elastic=2,
    ),
]


def dump_log(
    session: Session,
    topic: TopicArgument,
    from_: Annotated[
        int, typer.Option("--from", metavar="ENTRY", min=0, help="Which entry to begin with.")
    ] = 0,
    max_entries: Annotated[
        int | None,
        typer.Option("-n", "--max-entries", min=0, help="At most this many."),
    ] = None,
) -> None:
    """Show a topic's log: each entry, decoded, with its marker.

    WHAT are the offsets that an append gives, by partition; in JSON it is all that the entry holds.
    Decides nothing and ends nothing. Numbers that are missing are shown as well: old ones that a
    checkpoint covers are cleaned up, any other is damage, and the exit code is 3.

    \b
    Example:
      txnlog log dump orders --from 40 -n 5
      txnlog log dump orders -o jsonl
    """
    opened = session.open_to_read()
    with DamageReporter() as reporter:
        dumped = cast("Iterable[Entry]", opened.topics.log(topic, first=from_))
        found = first(dumped, max_entries)
        entries = reporter.watch(found, lambda entry: [entry.damage])
        session.output.rows(FIELDS, entries, streamed=True)


app = verb_group({"dump": dump_log})
