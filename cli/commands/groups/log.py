"""``txnlog groups log``: a group's log, as it lies."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from txnlog.cli.input.options import GroupArgument
from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.escape import Json, escape_text
from txnlog.cli.output.fields import Field, names, number, text, time, to_json
from txnlog.cli.output.transaction_fields import transaction_ref
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.inspect.history import GroupLogEntry, LoggedOffset


_MOST_MEMBERS = 2
_MOST_DETAIL = 60

OFFSETS: list[Field[LoggedOffset]] = [
    text("topic", None, lambda at: at.topic),
    number("partition", None, lambda at: at.partition),
    number("offset", None, lambda at: at.offset),
    number("start", None, lambda at: at.start),
    text("metadata", None, lambda at: at.metadata),
]


def _get_moves(entry: GroupLogEntry) -> Json:
    return [to_json(OFFSETS, at) for at in entry.offsets]


def _show_moves(entry: GroupLogEntry) -> str:
    return ", ".join(_show_move(at) for at in entry.offsets) or "-"


def _show_move(at: LoggedOffset) -> str:
    before = "" if at.start is None else f"{at.start}>"
    return f"{at.topic}:{at.partition}" + ("" if at.offset is None else f"={before}{at.offset}")


def _glance_at_members(entry: GroupLogEntry) -> str:
    """One entry may be of all that joined, or left, at one instant."""
    if len(entry.members) <= _MOST_MEMBERS:
        return _MEMBERS.show(entry)
    return f"{escape_text(entry.members[0])} and {len(entry.members) - 1} more"


def _glance_at_detail(entry: GroupLogEntry) -> str:
    shown = _DETAIL.show(entry)
    return shown if len(shown) <= _MOST_DETAIL else f"{shown[: _MOST_DETAIL - 1]}…"


_MEMBERS: Field[GroupLogEntry] = names("members", "MEMBERS", lambda entry: entry.members, wide=True)
_DETAIL: Field[GroupLogEntry] = text(
    "detail", "DETAIL", lambda entry: entry.detail or None, wide=True
)

FIELDS: list[Field[GroupLogEntry]] = [
    number("entry", "ENTRY", lambda entry: entry.entry),
    text("kind", "KIND", lambda entry: entry.kind),
    time("at_ms", "AT", lambda entry: entry.at_ms),
    transaction_ref("transaction", "TRANSACTION", lambda entry: entry.transaction, wide=True),
    text("marker", "MARKER", lambda entry: entry.marker),
    Field("offsets", "OFFSETS", _get_moves, _show_moves),
    number("generation", "GENERATION", lambda entry: entry.generation),
    replace(_MEMBERS, glance=_glance_at_members),
    replace(_DETAIL, glance=_glance_at_detail),
]


def show_log(
    session: Session,
    group: GroupArgument,
) -> None:
    """Show the entries of a group's log, oldest first. Changes nothing.

    An entry of a TRANSACTION counts if its MARKER is commit. OFFSETS shows where each partition
    went, and from where if the writer said so. GENERATION is the one that an assignment begins, or
    in which a member has committed. Old entries are deleted once a checkpoint covers them.

    \b
    Example:
      txnlog groups log etl
    """
    with DamageReporter() as reporter:
        history = reporter.skip_unreadable(
            session.open_to_read().groups.history(group).with_errors()
        )
        session.output.rows(FIELDS, history)
