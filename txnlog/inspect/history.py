"""The logs of groups and transactional ids as they are: every entry, and the marker beside it.

Nothing is settled, folded or changed, and a damaged entry gives an error in its place. Entries
covered by a checkpoint may have been cleaned up: then a log begins later than 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from txnlog import names
from txnlog.clock import Clock
from txnlog.errors import CorruptEntry, GroupIdNotFound, ObjectNotFound, TransactionalIdNotFound
from txnlog.inspect.describe import describe_transaction
from txnlog.inspect.descriptions import TransactionDescription
from txnlog.log.sequence_log import SequenceLog
from txnlog.log.transaction_log import Head
from txnlog.state.group import (
    ENTRY_DECODER,
    GroupDeleted,
    GroupEntry,
    OffsetCommit,
    OffsetsCommitted,
    OffsetsDeleted,
)
from txnlog.state.membership import (
    MembersExpired,
    MembershipEntry,
    MembersJoined,
    MembersLeft,
    PartitionsAssigned,
    RebalanceBegun,
)
from txnlog.state.transaction import DECODER, Outcome, TransactionRef
from txnlog.storage import envelope
from txnlog.storage.base import PARALLEL_REQUESTS, Storage

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class LoggedOffset:
    """An offset that an entry moves or (``offset`` None) deletes.

    ``start`` is the committed offset that the consumer began from, where that is compared.
    """

    topic: str
    partition: int
    offset: int | None
    start: int | None
    metadata: str


@dataclass(frozen=True, slots=True)
class GroupLogEntry:
    """An entry of a group's log.

    ``kind`` is ``offsets``, ``offsets-deleted`` or ``deleted``; or, of members, ``members-joined``,
    ``members-left``, ``members-expired``, ``rebalance-begun`` or ``partitions-assigned``. Then
    ``members`` are those that it is about (of ``offsets`` the one that commits, if any),
    ``generation`` is the one that it begins or was committed in, and ``detail`` is for people.

    ``marker`` is ``commit`` or ``abort`` if there is one beside the entry; only an entry of a
    transaction has any, and one without was not decided, or not yet marked.
    """

    entry: int
    kind: str
    at_ms: int
    transaction: TransactionRef | None
    marker: str | None
    offsets: tuple[LoggedOffset, ...]
    members: tuple[str, ...] = ()
    generation: int | None = None
    detail: str = ""


def group_history(
    storage: Storage, clock: Clock, group_id: str, newest: int | None = None, known_end: int = 0
) -> Iterator[GroupLogEntry | CorruptEntry]:
    """See :meth:`txnlog.Store.groups.history`. The log has reached ``known_end`` at least."""
    log = SequenceLog(storage, names.group_log(group_id), clock)
    first = max(known_end - newest, 0) if newest is not None else 0
    listing = log.listing(first)
    if newest is not None and first and len(listing.entries) < newest:
        listing = log.listing()  # a file may hold several entries
    if not listing.entries and not listing.checkpoints:
        raise GroupIdNotFound(f"group {group_id!r} has no log in {storage.url}")
    outcomes = listing.outcomes
    return _read_entries(
        log,
        _newest_of(listing.entries, newest),
        lambda number, data: _describe_group_entry(
            number, envelope.decode(data, ENTRY_DECODER, log.path(number)), outcomes.get(number)
        ),
    )


def transaction_history(
    storage: Storage, clock: Clock, transactional_id: str, newest: int | None = None
) -> Iterator[TransactionDescription | CorruptEntry]:
    """See :meth:`txnlog.Store.transactions.history`."""
    log = SequenceLog(storage, names.transaction_log(transactional_id), clock)
    listing = log.listing()
    if not listing.entries:
        raise TransactionalIdNotFound(
            f"transactional id {transactional_id!r} is not known in {storage.url}"
        )
    return _read_entries(
        log,
        _newest_of(listing.entries, newest),
        lambda number, data: describe_transaction(
            Head(number, envelope.decode(data, DECODER, log.path(number)))
        ),
    )


def _newest_of(numbers: Sequence[int], newest: int | None) -> Sequence[int]:
    return numbers if newest is None else numbers[max(len(numbers) - newest, 0) :]


def _read_entries(
    log: SequenceLog, numbers: Sequence[int], decode: Callable[[int, bytes], Read]
) -> Iterator[Read | CorruptEntry]:
    """Read entries a few at a time; those cleaned up meanwhile are skipped."""
    for first in range(0, len(numbers), PARALLEL_REQUESTS):
        some = numbers[first : first + PARALLEL_REQUESTS]
        found = log.storage.gather([partial(_read_entry, log, number) for number in some])
        for number, data in zip(some, found, strict=True):
            if data is None:
                continue
            try:
                yield decode(number, data)
            except CorruptEntry as error:
                yield error


def _read_entry(log: SequenceLog, number: int) -> bytes | None:
    try:
        return log.read([number])[0]
    except ObjectNotFound:
        return None


def _describe_group_entry(number: int, entry: GroupEntry, outcome: Outcome | None) -> GroupLogEntry:
    marker = None if outcome is None else outcome.value
    match entry:
        case OffsetsCommitted():
            moved = tuple(_describe_offset(offset) for offset in entry.offsets)
            found = GroupLogEntry(number, "offsets", entry.at_ms, entry.transaction, marker, moved)
            by = entry.committer
            if by is not None:
                return replace(found, members=(by.member_id,), generation=by.generation)
            return replace(found, detail="forced") if entry.force else found
        case OffsetsDeleted():
            gone = tuple(LoggedOffset(*where, None, None, "") for where in entry.partitions)
            return GroupLogEntry(number, "offsets-deleted", entry.at_ms, None, marker, gone)
        case GroupDeleted():
            return GroupLogEntry(number, "deleted", entry.at_ms, None, marker, ())
        case _:
            kind = type(entry).__struct_config__.tag
            found = GroupLogEntry(number, str(kind), entry.at_ms, None, marker, ())
            return _describe_rebalance(found, entry)


def _describe_rebalance(found: GroupLogEntry, entry: MembershipEntry) -> GroupLogEntry:
    match entry:
        case MembersJoined(members=members):
            told = [f"{m.client_id or '-'} on {m.host}: {', '.join(m.topics)}" for m in members]
            ids = tuple(member.member_id for member in members)
            return replace(found, members=ids, detail="; ".join(told))
        case MembersLeft(member_ids=ids, reason=reason):
            return replace(found, members=ids, detail=reason)
        case MembersExpired(expired=expired):
            ids = tuple(silence.member_id for silence in expired)
            told = [f"{s.reason}, last heartbeat {s.heartbeat}" for s in expired]
            return replace(found, members=ids, detail="; ".join(told))
        case RebalanceBegun(reason=reason):
            return replace(found, detail=reason)
        case PartitionsAssigned():
            counts = [sum(map(len, topics.values())) for topics in entry.owners.values()]
            detail = f"{entry.assignor}: {', '.join(map(str, counts)) or 'none'}"
            return replace(
                found, members=(*entry.owners,), generation=entry.generation, detail=detail
            )


def _describe_offset(offset: OffsetCommit) -> LoggedOffset:
    start = offset.start if offset.compare else None
    return LoggedOffset(offset.topic, offset.partition, offset.offset, start, offset.metadata)
