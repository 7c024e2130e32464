"""How verbs show consumer groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from txnlog.cli.output.escape import Json, escape_text
from txnlog.cli.output.fields import Field, names, number, text, time, to_json
from txnlog.cli.output.transaction_fields import REF

if TYPE_CHECKING:
    from txnlog.inspect.group_lag import GroupDescription, GroupOffset, MemberDescription

SUMMARY: list[Field[GroupDescription]] = [
    text("group_id", "GROUP", lambda group: group.group_id),
    number("topic_count", "TOPICS", lambda group: len({at.topic for at in group.offsets})),
    number("partition_count", "PARTITIONS", lambda group: len(group.offsets)),
    number("lag", "LAG", lambda group: group.lag),
    number("trimmed", "TRIMMED", lambda group: group.trimmed, wide=True),
    text("state", "STATE", lambda group: group.state),
    number("member_count", "MEMBERS", lambda group: len(group.members)),
]
STATE: list[Field[GroupDescription]] = [
    text("group_id", "GROUP", lambda group: group.group_id),
    text("state", "STATE", lambda group: group.state),
    number("member_count", "MEMBERS", lambda group: len(group.members)),
    text("assignor", "ASSIGNOR", lambda group: group.assignor or None),
    number("generation", "GENERATION", lambda group: group.generation),
]
MEMBERS: list[Field[MemberDescription]] = [
    text("member_id", "MEMBER", lambda member: member.member_id),
    text("instance_id", "INSTANCE", lambda member: member.instance_id or None, wide=True),
    text("client_id", "CLIENT", lambda member: member.client_id or None),
    text("host", "HOST", lambda member: member.host),
    number("partition_count", "PARTITIONS", lambda member: len(member.partitions)),
]
MEMBERS_VERBOSE: list[Field[MemberDescription]] = [
    *MEMBERS,
    names("topics", "TOPICS", lambda member: member.topics),
    names("assignors", None, lambda member: member.assignors),
    names("partitions", "ASSIGNED", lambda member: [*map(str, member.partitions)]),
    names("revoking", "REVOKING", lambda member: [*map(str, member.revoking)]),
]


def _get_pending(offset: GroupOffset) -> Json:
    return None if offset.pending is None else to_json(REF, offset.pending)


def _show_pending(offset: GroupOffset) -> str:
    return "-" if offset.pending is None else escape_text(offset.pending.transactional_id)


OFFSETS: list[Field[GroupOffset]] = [
    text("topic", "TOPIC", lambda at: at.topic),
    number("partition", "PARTITION", lambda at: at.partition),
    number("offset", "OFFSET", lambda at: at.offset),
    number("end_offset", "STABLE", lambda at: at.end_offset),
    number("lag", "LAG", lambda at: at.lag),
    Field(
        *("trimmed", "TRIMMED", lambda at: at.trimmed, lambda at: str(at.trimmed or "")),
        numeric=True,
        seldom=True,
    ),
    time("committed_at_ms", "COMMITTED", lambda at: at.committed_at_ms),
    text("metadata", "METADATA", lambda at: at.metadata, wide=True),
    Field("pending", "PENDING", _get_pending, _show_pending, wide=True),
]


class OffsetRow(NamedTuple):
    """A group, and its offset in one partition."""

    group_id: str
    at: GroupOffset


def list_places(groups: Iterable[GroupDescription]) -> Iterator[OffsetRow]:
    """Every partition of every group."""
    for group in groups:
        for at in group.offsets:
            yield OffsetRow(group.group_id, at)


def _of_place(field: Field[GroupOffset]) -> Field[OffsetRow]:
    value, show = field.value, field.show
    return Field(
        *(field.key, field.title, lambda place: value(place.at), lambda place: show(place.at)),
        numeric=field.numeric,
        wide=field.wide or field.key == "committed_at_ms",
        seldom=field.seldom,
    )


PLACES: list[Field[OffsetRow]] = [
    text("group_id", "GROUP", lambda place: place.group_id),
    *map(_of_place, OFFSETS),
]
