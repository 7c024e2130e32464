"""``txnlog offsets``: where partitions begin and end, and where a time begins in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from txnlog.cli.input.places import Time, parse_target, parse_time, to_partitions
from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.fields import Field, number, text, time
from txnlog.cli.session import Session
from txnlog.cli.verbs import verb_group

if TYPE_CHECKING:
    from txnlog.admin.offsets import ListedOffset, OffsetSpec
    from txnlog.names import TopicPartition
    from txnlog.results import Found
    from txnlog.store import Store


_ENDS: Final[dict[str, OffsetSpec]] = {
    "earliest": "earliest",
    "stable": "stable",
    "latest": "latest",
    "max-timestamp": "max-timestamp",
    "-3": "max-timestamp",  # as kafka-get-offsets calls them
    "-2": "earliest",
    "-1": "latest",
}


@dataclass(frozen=True, slots=True)
class FoundOffset:
    """An offset, and what was asked for."""

    at: str
    listed: ListedOffset


FIELDS: list[Field[FoundOffset]] = [
    text("topic", "TOPIC", lambda found: found.listed.topic),
    number("partition", "PART", lambda found: found.listed.partition),
    text("at", "AT", lambda found: found.at),
    number("offset", "OFFSET", lambda found: found.listed.offset),
    time("timestamp_ms", "TIMESTAMP", lambda found: found.listed.timestamp_ms),
]


def list_offsets(
    session: Session,
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC[:PARTITION]", help="Which; all topics if none."),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            "--at",
            metavar="PLACE",
            help="earliest, stable, latest (the default), max-timestamp or @TIME; repeatable.",
        ),
    ] = None,
) -> None:
    """List offsets of partitions. No segment is read but for a time, and then a piece of one.

    earliest is the first offset, stable where read_committed stops, latest the next offset to
    be given. @TIME is the first committed record at or after it, none if there is none: ISO 8601
    (UTC if it has no zone), milliseconds, or how long ago, as -1h30m. max-timestamp is the
    committed record with the greatest time.

    \b
    Example:
      txnlog offsets ls orders --at earliest --at stable --at latest
      txnlog offsets ls orders:0 paid --at @2024-05-01T12:00 --at @-1h
    """
    places = at or ["latest"]
    wanted = {place: _parse_place(place) for place in places}
    where = [parse_target(target) for target in targets or ()]
    opened = session.open_to_read()
    chosen = to_partitions(where)
    with DamageReporter() as reporter:
        listed = {place: _list_offsets(opened, chosen or None, wanted[place]) for place in wanted}
        session.output.rows(
            FIELDS,
            (
                FoundOffset(place, found)
                for place, offsets in listed.items()
                for found in reporter.skip_unreadable(offsets.with_errors())
            ),
            streamed=True,
        )


def _parse_place(place: str) -> OffsetSpec | Time:
    if place in _ENDS:
        return _ENDS[place]
    if place.startswith("@"):
        return parse_time(place)
    raise typer.BadParameter(
        f"--at {place!r} is not earliest, stable, latest, max-timestamp or a time such as "
        "@2024-05-01T12:00:00Z or @-1h"
    )


def _list_offsets(
    store: Store, chosen: list[str | TopicPartition] | None, spec: OffsetSpec | Time
) -> Found[ListedOffset]:
    if isinstance(spec, Time):
        return store.topics.offsets(chosen, timestamp_ms=spec.timestamp_ms)
    return store.topics.offsets(chosen, at=spec)


app = verb_group({"ls": list_offsets})
