"""``txnlog offsets``: where partitions begin and end, and where a time begins in them."""

# ruff: noqa: D301 - the help keeps lines as they are after a real backspace
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from txnlog.cli.input.places import HELP_NAMES, Time, parse_place, parse_target
from txnlog.cli.output.damage import Reporter
from txnlog.cli.output.fields import Field, number, text, time
from txnlog.cli.session import OutputOption, StorageOptions, StoreOption, open_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from txnlog.admin.offsets import ListedOffset, OffsetSpec
    from txnlog.errors import TxnlogError
    from txnlog.names import TopicPartition
    from txnlog.store import Store

app = typer.Typer(
    help="Offsets: where partitions begin and end.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=HELP_NAMES,
)

_ENDS: Final[dict[str, OffsetSpec]] = {
    "earliest": "earliest",
    "stable": "stable",
    "latest": "latest",
    "-2": "earliest",  # as kafka-get-offsets calls them
    "-1": "latest",
}


@dataclass(frozen=True, slots=True)
class Found:
    """An offset, and what was asked for."""

    at: str
    listed: ListedOffset


FIELDS: list[Field[Found]] = [
    text("topic", "TOPIC", lambda found: found.listed.topic),
    number("partition", "PART", lambda found: found.listed.partition),
    text("at", "AT", lambda found: found.at),
    number("offset", "OFFSET", lambda found: found.listed.offset),
    time("timestamp_ms", "TIMESTAMP", lambda found: found.listed.timestamp_ms),
]


@app.callback()
def offsets() -> None:
    """Offsets: where partitions begin and end."""


@app.command("ls")
def list_offsets(
    ctx: typer.Context,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC[:PARTITION]", help="Which; all topics if none.", show_default=False
        ),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            "--at",
            metavar="PLACE",
            help="earliest, stable, latest (the default) or @time; may be repeated.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """List offsets of partitions. No segment is read but for a time, and then a piece of one.

    earliest is the first offset, stable where read_committed stops, latest the next offset to
    be given. @time is the first committed record at or after it, none if there is none: @ and
    milliseconds, or @ and ISO 8601 (UTC if it has no zone).

    \b
    Example:
      txnlog offsets ls orders --at earliest --at stable --at latest
      txnlog offsets ls orders:0 paid --at @2024-05-01T12:00
    """
    places = at or ["latest"]
    wanted = {place: _parse(place) for place in places}
    where = [parse_target(target) for target in targets or ()]
    session = open_session(ctx, store, storage_option, output)
    opened = session.open_store()
    from txnlog.names import TopicPartition

    chosen = [
        target.topic if target.partition is None else TopicPartition(target.topic, target.partition)
        for target in where
    ]
    with Reporter() as reporter:
        session.output.rows(
            FIELDS,
            (
                Found(place, found)
                for place, spec in wanted.items()
                for found in reporter.healthy(_listed(opened, chosen or None, spec))
            ),
            streamed=True,
        )


def _parse(place: str) -> OffsetSpec | Time:
    if place in _ENDS:
        return _ENDS[place]
    if place.startswith("@"):
        parsed = parse_place(place)
        assert isinstance(parsed, Time)
        return parsed
    raise typer.BadParameter(
        f"--at {place!r} is not earliest, stable, latest or a time such as @2024-05-01T12:00:00Z"
    )


def _listed(
    store: Store, chosen: list[str | TopicPartition] | None, spec: OffsetSpec | Time
) -> Iterator[ListedOffset | TxnlogError]:
    if isinstance(spec, Time):
        return store.list_offsets(chosen, timestamp_ms=spec.timestamp_ms)
    return store.list_offsets(chosen, at=spec)
