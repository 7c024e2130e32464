"""``txnlog txns why``: what holds a partition's last stable offset."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import chain, repeat
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.places import parse_target
from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.escape import Json, escape_text
from txnlog.cli.output.fields import Field, number, show_time, text, time, to_json
from txnlog.cli.output.transaction_fields import REF
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.errors import TxnlogError
    from txnlog.inspect.descriptions import StableOffset, StableOffsetHolder
    from txnlog.store import Store


HOLDERS: list[Field[StableOffsetHolder]] = [
    Field("transaction", None, lambda at: to_json(REF, at.transaction), str),
    number("entry", None, lambda at: at.entry),
    number("offset", None, lambda at: at.offset),
    time("placed_at_ms", None, lambda at: at.placed_at_ms),
    text("state", None, lambda at: at.status),
    time("started_at_ms", None, lambda at: at.started_at_ms),
    time("ends_by_ms", None, lambda at: at.ends_by_ms),
    text("ended_by", None, lambda at: at.ended_by),
]


def _get_holders(stable: StableOffset) -> Json:
    return [to_json(HOLDERS, holder) for holder in stable.holders]


FIELDS: list[Field[StableOffset]] = [
    text("topic", "TOPIC", lambda stable: stable.topic),
    number("partition", "PART", lambda stable: stable.partition),
    number("log_start_offset", "START", lambda stable: stable.log_start_offset),
    number("last_stable_offset", "STABLE", lambda stable: stable.last_stable_offset),
    number("end_offset", "END", lambda stable: stable.end_offset),
    number("held_back", "WAITING", lambda at: at.end_offset - at.last_stable_offset),
    Field("holders", None, _get_holders, lambda _: ""),
]


def explain_stable_offset(
    session: Session,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC[:PARTITION]",
            help="A topic or one partition of it; else all partitions in which anything waits.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Explain why a last stable offset is where it is.

    Who holds it there, since when, and what ends that. WAITING counts the offsets behind it,
    which read_committed does not show yet.

    \b
    Example:
      txnlog txns why
      txnlog txns why orders:0
    """
    store = session.open_to_read()
    if target is not None:
        where = parse_target(target)
        found = store.transactions.stable_offsets(where.topic, where.partition)
        session.output.rows(FIELDS, found, below=_explain)
        return
    with DamageReporter() as reporter:
        held = reporter.skip_unreadable(_find_held(store))
        session.output.rows(FIELDS, held, below=_explain)


def _find_held(store: Store) -> Iterator[StableOffset | TxnlogError]:
    """All partitions of all topics whose stable offset is before their end."""
    from txnlog.errors import TxnlogError, UnknownTopicOrPartition

    for topic in store.topics.list():
        try:
            yield from (
                stable for stable in store.transactions.stable_offsets(topic) if stable.holders
            )
        except UnknownTopicOrPartition:
            continue  # deleted meanwhile
        except TxnlogError as error:
            yield error


def _explain(stable: StableOffset) -> Iterator[str]:
    if not stable.holders:
        yield "held by nobody: the stable offset is the end"
    for position, holder in enumerate(stable.holders):
        ref = holder.transaction
        who = f"transaction {ref.number} of {escape_text(ref.transactional_id)}"
        held = "held by" if position == 0 else "then by"
        yield f"{held} {who}"
        yield f"  by producer {ref.producer_id}, epoch {ref.producer_epoch}"
        since = show_time(holder.placed_at_ms)
        yield f"  from offset {holder.offset} (log entry {holder.entry}, written {since})"
        if holder.status is not None:
            yield f"  {holder.status} since {show_time(holder.started_at_ms)}"
        if holder.ends_by_ms is not None:
            yield f"  ends by {show_time(holder.ends_by_ms)} at the latest, when somebody reads"
        for begin, way in zip(
            chain(["ended by:"], repeat("      or:")), _list_ways(holder), strict=False
        ):
            yield from wrap(way, 74, initial_indent=f"  {begin} ", subsequent_indent=" " * 12)


def _list_ways(holder: StableOffsetHolder) -> list[str]:
    """What ends a transaction, each way for itself."""
    if holder.status is None:
        return [holder.ended_by]  # a sentence, or an error that may have any characters
    ways = holder.ended_by.split("; ")
    if holder.status == "Ongoing":
        name = escape_text(shlex.quote(holder.transaction.transactional_id))
        ways[-1] = f"at once: txnlog txns abort {name}"
    return ways
