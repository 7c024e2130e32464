"""Reads one consistent state of a store while others write.

Everything is read twice: before a moment, and after it the states of all transactional ids, then
the new files of the logs. ``cut.py`` finds the consistent part; here the states of the logs are
folded up to it. Nothing is written to the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

import msgspec

from txnlog import names
from txnlog.clock import Clock
from txnlog.errors import (
    CorruptTransactionState,
    ObjectNotFound,
    StorageError,
)
from txnlog.log.group_log import GroupLog
from txnlog.log.named_folders import list_groups, list_topics
from txnlog.log.open_logs import Logs
from txnlog.log.sequence_log import Listing, SequenceLog
from txnlog.log.topic_log import TopicLog
from txnlog.log.transaction_log import Head
from txnlog.replication.standby.cut import Cut, LogKey, LogPart, Need, NewFile, Placed
from txnlog.state import envelope, topic_entries
from txnlog.state import group as groups
from txnlog.state import topic as topics
from txnlog.state.folded_state import apply_file, unbundled
from txnlog.state.group import GroupState, OffsetsCommitted
from txnlog.state.manifest import ManifestList, Settled
from txnlog.state.topic import TopicState
from txnlog.state.transaction import DECODER, Outcome, TransactionRef, TransactionState
from txnlog.storage.base import Storage

_ATTEMPTS = 20

AnyState: TypeAlias = TopicState | GroupState


class SourceMoved(Exception):
    """What was read is inconsistent, because of cleaning meanwhile: read again."""


@dataclass(slots=True)
class _Read:
    """One log as read: its state before the moment, and the entries of its new files."""

    log: TopicLog | GroupLog
    part: LogPart
    listing: Listing
    entries: dict[int, Any]
    manifests: ManifestList | None


@dataclass(frozen=True, slots=True)
class SourceLog:
    """One log for a round.

    ``files`` are those of its undecided entries, and the newest one. ``markers`` are the outcomes
    of other entries in these files, by their markers.
    """

    log: TopicLog | GroupLog
    state: AnyState
    manifests: ManifestList | None
    files: tuple[int, ...]
    markers: dict[int, Outcome]


@dataclass(frozen=True, slots=True)
class SourceView:
    """One consistent state of a source.

    ``heads`` are the newest states of transactional ids, by id, and ``expired`` the numbers of
    those that are gone. ``damaged`` are ids whose newest state cannot be read.
    """

    reached_ms: int
    logs: tuple[SourceLog, ...]
    heads: dict[str, tuple[int, TransactionState]]
    expired: dict[str, int]
    damaged: frozenset[str]


class FollowedSource:
    """The followed store.

    Args:
        logs: its open logs. They are refreshed, but not settled.
    """

    def __init__(self, logs: Logs) -> None:
        self.logs = logs
        self._storage = logs.storage
        self._damaged: set[str] = set()

    def topics(self) -> list[TopicLog]:
        """The logs of all topics, as last read, if they were."""
        return [self.logs.topic(name) for name in list_topics(self._storage)]

    def look(self) -> SourceView:
        """Read everything. A few requests for each log and id, and reads of new files.

        Raises SourceMoved, StorageError, CorruptEntry.
        """
        self._damaged = set()
        known = self._heads()
        lists = self._refresh()
        reached_ms = self.logs.clock.now_ms()
        histories = self._histories(known)
        # Groups first: the records that they have read are then in the topics.
        read = {("group", log.name): self._read_on(log, None) for log in self._groups()} | {
            ("topic", log.name): self._read_on(log, lists.get(log.name)) for log in self.topics()
        }
        keyed = cast("dict[LogKey, _Read]", read)
        first = {name: number for name, (number, _) in histories.items()}
        states = {name: found for name, (_, found) in histories.items()}
        expired = self._expired(states)
        self._look_for_rest(keyed, states, expired)
        cut = Cut({key: one.part for key, one in keyed.items()}, states)
        logs = tuple(
            _as_it_is(one, *self._fold(key, one, cut))
            for key, one in keyed.items()
            if cut.end(key) > 0
        )
        heads = {
            name: (number + cut.states[name], state)
            for name, number in first.items()
            if (state := cut.state(name)) is not None
        }
        return SourceView(reached_ms, logs, heads, expired, frozenset(self._damaged))

    def _groups(self) -> list[GroupLog]:
        return [self.logs.group(name) for name in list_groups(self._storage)]

    # -- before the moment -----------------------------------------------------------------------

    def _heads(self) -> dict[str, Head]:
        ids = self.logs.transactions.ids()
        found = self._storage.gather(partial(self._head, name) for name in ids)
        return {name: head for name, head in zip(ids, found, strict=True) if head is not None}

    def _head(self, transactional_id: str) -> Head | None:
        try:
            return self.logs.transactions.head(transactional_id)
        except CorruptTransactionState:
            self._damaged.add(transactional_id)
            return None

    def _refresh(self) -> dict[str, ManifestList | None]:
        """Refresh all logs; returns each topic's manifest list for its settled appends."""
        self._storage.gather(log.refresh for log in self._groups())
        logs = self.topics()
        found = self._storage.gather(partial(_refresh_topic, log) for log in logs)
        return dict(zip((log.name for log in logs), found, strict=True))

    # -- after it --------------------------------------------------------------------------------

    def _histories(
        self, known: Mapping[str, Head]
    ) -> dict[str, tuple[int, Sequence[TransactionState]]]:
        """By id, the number of its first state that counts, and the states from there on."""
        ids = [name for name in self.logs.transactions.ids() if name not in self._damaged]
        found = self._storage.gather(partial(self._history, n, known.get(n)) for n in ids)
        return {name: one for name, one in zip(ids, found, strict=True) if one is not None}

    def _history(
        self, transactional_id: str, known: Head | None
    ) -> tuple[int, Sequence[TransactionState]] | None:
        folder = names.transaction_log(transactional_id)
        log = SequenceLog(self._storage, folder, self.logs.clock)
        for _ in range(_ATTEMPTS):
            entries = log.listing(known.number if known else 0).entries
            if not entries and known is None:
                return None  # removed since it was listed
            if known is not None and entries[:1] != (known.number,):
                break
            if entries != tuple(range(entries[0], entries[0] + len(entries))):
                continue  # a listing is not a snapshot
            begin = entries[0]
            new = entries[1:] if known else entries
            try:
                read = [
                    envelope.decode(data, DECODER, log.path(number))
                    for number, data in zip(new, log.read(new), strict=True)
                ]
            except ObjectNotFound:
                break
            if new and log.chapters.is_closed(new[0]):
                break  # it may be a stray
            return begin, [*([known.state] if known else []), *read]
        raise SourceMoved(f"{folder} was cleaned up while it was read")

    def _expired(self, states: Mapping[str, object]) -> dict[str, int]:
        """The ids of which only the last state is left, and its number."""
        found: dict[str, int] = {}
        for name, _ in self._storage.list_all(names.EXPIRED):
            folder, _, last = name.rpartition("/")
            parsed = names.parse_log_file(last)
            if parsed is not None and parsed[1] is names.LogFile.ENTRY:
                owner = names.transactional_id_of_folder(folder.rpartition("/")[2])
                if owner is not None and owner not in states and owner not in self._damaged:
                    found[owner] = max(found.get(owner, -1), parsed[0])
        return found

    def _look_for_rest(
        self,
        read: Mapping[LogKey, _Read],
        states: dict[str, Sequence[TransactionState]],
        expired: Mapping[str, int],
    ) -> None:
        """The ids that transactions name but that were not listed."""
        owners = {
            entry.transaction.transactional_id
            for one in read.values()
            for entry in _entries(one.part)
            if entry.transaction is not None
        }
        for owner in sorted(owners - {*states} - self._damaged):
            if owner in expired:
                head = self.logs.transactions.expired(owner)
                states[owner] = [head.state] if head else []
            elif self._head(owner) is not None:
                states[owner] = []  # it was begun after the others were read
            # Else nobody knows what became of it: it stays undecided, as in the source.

    def _read_on(self, log: TopicLog | GroupLog, manifests: ManifestList | None) -> _Read:
        """The new files of a log since it was refreshed."""
        with log.lock:
            state = log.state
            begin = state.next_entry
            newest = state.newest_file
            undecided = _undecided(state)
            files = {state.file_of(entry.number) for entry in undecided}
            ends, topic_id = _ends(state), _topic_id(state)
        must = {*files, *([newest] if newest >= 0 else [])}
        for _ in range(_ATTEMPTS):
            listing = log.log.listing(min(must, default=0))
            if not must <= {*listing.entries}:
                break
            numbers = listing.files_from(begin)
            if not numbers:
                part = LogPart(begin, undecided, (), ends, topic_id)
                return _Read(log, part, listing, {}, manifests)
            try:
                data = log.log.read(numbers)
            except ObjectNotFound:
                break
            found = _fold_new(log, begin, numbers, data)
            if found is None:
                continue  # a listing is not a snapshot
            if log.log.chapters.is_closed(begin):
                break  # they may be strays
            part = LogPart(begin, undecided, found[0], ends, topic_id)
            return _Read(log, part, listing, found[1], manifests)
        raise SourceMoved(f"{log.log.folder} was cleaned up while it was read")

    # -- the consistent part ---------------------------------------------------------------------

    def _fold(self, key: LogKey, one: _Read, cut: Cut) -> tuple[AnyState, ManifestList | None]:
        """The state of a log at the cut, and the manifest list for its settled appends."""
        with one.log.lock:
            live = one.log.state
            # A log without new files stays as it is: most logs, in most rounds.
            state = copy_state(live) if one.part.files or one.part.undecided else live
        if state.next_entry != one.part.next_entry:
            raise SourceMoved(f"{one.log.log.folder} was refreshed by somebody else")
        for file in one.part.files[: cut.files[key]]:
            path = one.log.log.path(file.number)
            apply_file(state, file.number, one.entries[file.number], path)
        for number, owner in [*state.undecided_entries().items()]:
            outcome = cut.outcome(key, number, owner)
            if outcome == "past":
                outcome = _past(one, number, state.file_of(number), owner, cut)
            if outcome is not None:
                state.decide(number, outcome)
        state.expire()
        if not isinstance(state, TopicState):
            return state, None
        return state, _adopt(state, one.manifests)


def _as_it_is(one: _Read, state: AnyState, manifests: ManifestList | None) -> SourceLog:
    undecided = state.undecided_entries()
    files = {state.newest_file, *map(state.file_of, undecided)}
    markers = {
        number: outcome
        for number, outcome in one.listing.outcomes.items()
        if number < state.next_entry
        and number not in undecided
        and (state.file_of(number) in files or number >= state.newest_file)
    }
    return SourceLog(one.log, state, manifests, tuple(sorted(files)), markers)


def _refresh_topic(log: TopicLog) -> ManifestList | None:
    for _ in range(_ATTEMPTS):
        found = log.manifests.newest()
        log.refresh()
        with log.lock:
            state = log.state
            settled = state.settled
        if settled is None or (found is not None and found.number >= settled.number):
            return found
    raise SourceMoved(f"{log.manifests.folder} changes too fast")


def _past(one: _Read, number: int, file: int, owner: TransactionRef, cut: Cut) -> Outcome:
    """Rule c of how an entry is decided: its id has moved on, before the log was listed."""
    for state in reversed(cut.history(owner.transactional_id)):
        if state.ref.key == owner.key and state.outcome is not None:
            ref = one.log.ref(number)
            commits = state.outcome is Outcome.COMMIT and ref in state.entries
            return Outcome.COMMIT if commits else Outcome.ABORT
    if number in one.listing.outcomes:
        return one.listing.outcomes[number]
    found = one.log.outcomes_in_checkpoints([number], one.listing).get(number)
    if isinstance(found, Outcome):
        return found
    if not one.log.is_entry_of(number, file, owner):
        raise SourceMoved(f"{one.log.log.path(file)} was cleaned up while it was read")
    return Outcome.ABORT


def _adopt(state: TopicState, found: ManifestList | None) -> ManifestList | None:
    """Drop the appends that a list holds: the list must have everything that the state drops."""
    settled = state.settled
    if found is None or found.topic_id != state.topic_id:
        if settled is not None:
            raise SourceMoved("a topic was recreated while it was read")
        return None
    if found.end > state.first_unsettled(0) or (settled is not None and settled.end > found.end):
        raise SourceMoved("manifests were left while a log was read")
    if settled is None or settled.number != found.number or settled.end != found.end:
        state.leave_to_manifests(
            Settled(found.number, found.end, found.has_transactions), found.log_start_offsets
        )
    return found


def _fold_new(
    log: TopicLog | GroupLog, begin: int, numbers: Sequence[int], data: Sequence[bytes]
) -> tuple[tuple[NewFile, ...], dict[int, Any]] | None:
    """The entries of new files; None if one is missing between them."""
    decoder: msgspec.json.Decoder[Any] = (
        topic_entries.ENTRY_DECODER if isinstance(log, TopicLog) else groups.ENTRY_DECODER
    )
    with log.lock:
        live = log.state
        if live.next_entry != begin:
            raise SourceMoved(f"{log.log.folder} was refreshed by somebody else")
        state = copy_state(live)
    files, entries = [], {}
    for number, one in zip(numbers, data, strict=True):
        if number != state.next_entry:
            return None
        path = log.log.path(number)
        entry = entries[number] = envelope.decode(one, decoder, path)
        apply_file(state, number, entry, path)
        files.append(_new_file(state, number, entry))
    return tuple(files), entries


def _new_file(state: AnyState, number: int, entry: msgspec.Struct) -> NewFile:
    firsts = (
        {recent.number: recent.first_offsets for recent in state.recent if recent.number >= number}
        if isinstance(state, TopicState)
        else {}
    )
    placed = tuple(
        Placed(at, getattr(one, "transaction", None), firsts.get(at, {}))
        for at, one in enumerate(unbundled(entry), start=number)
    )
    needs = tuple(_needs(entry))
    return NewFile(number, state.next_entry, placed, needs, _ends(state), _topic_id(state))


def _needs(entry: object) -> Iterator[Need]:
    if isinstance(entry, OffsetsCommitted):
        for moved in entry.offsets:
            yield Need(moved.topic, moved.partition, moved.offset, moved.topic_id)


def _undecided(state: AnyState) -> tuple[Placed, ...]:
    firsts = (
        {recent.number: recent.first_offsets for recent in state.recent}
        if isinstance(state, TopicState)
        else {}
    )
    return tuple(
        Placed(number, owner, firsts.get(number, {}))
        for number, owner in state.undecided_entries().items()
    )


def _entries(part: LogPart) -> Iterator[Placed]:
    yield from part.undecided
    for file in part.files:
        yield from file.entries


def _ends(state: AnyState) -> tuple[int, ...]:
    if isinstance(state, GroupState):
        return ()
    return tuple(partition.end_offset for partition in state.partitions)


def _topic_id(state: AnyState) -> str | None:
    return state.topic_id if isinstance(state, TopicState) else None


def copy_state(state: AnyState) -> AnyState:
    """A copy that is independent of the original."""
    data = msgspec.json.encode(state)
    if isinstance(state, TopicState):
        return topics.CHECKPOINT_DECODER.decode(data)
    return groups.CHECKPOINT_DECODER.decode(data)


def read_newest_states(storage: Storage, transactional_id: str, clock: Clock) -> dict[str, bytes]:
    """The newest two files of an id's log as they are, damage included."""
    log = SequenceLog(storage, names.transaction_log(transactional_id), clock)
    found: dict[str, bytes] = {}
    for number in log.listing().entries[-2:]:
        with suppress(ObjectNotFound):
            found[log.path(number)] = storage.get(log.path(number))
    if not found:
        raise StorageError(f"{log.folder} is gone")
    return found
