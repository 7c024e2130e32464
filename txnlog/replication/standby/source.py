"""Reads one consistent state of a store while others write.

Everything is read before a moment. After the moment, the new files of the logs and the states of
all transactional ids are read. ``cut.py`` finds the consistent part of that, and here the states of
the logs are folded up to it. Nothing is written to the source.

If names of a log were freed between the two readings, it must be read again. To keep that from
happening over and over where there are many logs, such a log is *busy* from then on: it is read
last before the moment, and first after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

import msgspec

from txnlog import names
from txnlog.clock import Clock
from txnlog.errors import (
    CorruptEntry,
    CorruptTransactionState,
    ObjectNotFound,
    StorageError,
    UnknownTopicOrPartition,
)
from txnlog.log.group_log import GroupLog
from txnlog.log.named_folders import list_groups, list_topics
from txnlog.log.open_logs import Logs
from txnlog.log.sequence_log import Listing, SequenceLog
from txnlog.log.topic_log import TopicLog
from txnlog.log.transaction_log import Head
from txnlog.replication.standby.cut import Cut, LogKey, LogPart, Need, NewFile, Placed
from txnlog.state import group as groups
from txnlog.state import topic as topics
from txnlog.state import topic_entries
from txnlog.state.folded_state import apply_file, unbundled
from txnlog.state.group import GroupState, OffsetsCommitted
from txnlog.state.manifest import ManifestList, Settled
from txnlog.state.topic import TopicState
from txnlog.state.transaction import DECODER, Outcome, TransactionRef, TransactionState
from txnlog.storage import envelope
from txnlog.storage.base import Storage

_ATTEMPTS = 20

AnyState: TypeAlias = TopicState | GroupState
T = TypeVar("T")


class SourceMoved(Exception):
    """What was read is inconsistent, because of cleaning meanwhile: read it again."""


@contextmanager
def noticing_deletion(log: TopicLog, state: TopicState) -> Iterator[None]:
    """Raise SourceMoved if files that a topic's state names are gone because the topic was deleted.

    Raises CorruptEntry: it is still the same topic, and is damaged.
    """
    try:
        yield
    except (CorruptEntry, UnknownTopicOrPartition) as error:
        if isinstance(error, CorruptEntry):
            log.refresh()
            with log.lock:
                if log.state.exists and log.state.topic_id == state.topic_id:
                    raise
        raise SourceMoved(f"topic {log.name!r} was deleted while it was read") from error


@dataclass(slots=True)
class _Read:
    """One log as read: its state before the moment, and the entries of its new files, by number.

    ``data`` has the bytes of files that were read, by their names in the store.
    """

    log: TopicLog | GroupLog
    part: LogPart
    listing: Listing
    entries: dict[int, Any]
    data: dict[str, bytes]
    manifests: ManifestList | None


@dataclass(frozen=True, slots=True)
class SourceLog:
    """One log for a round.

    ``files`` are the numbers of its newest file, and of those with undecided entries. ``markers``
    are the outcomes of other entries in these files, by entry. ``data`` has the bytes of files that
    were read, by name.
    """

    log: TopicLog | GroupLog
    state: AnyState
    manifests: ManifestList | None
    files: tuple[int, ...]
    markers: dict[int, Outcome]
    data: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class SourceView:
    """One consistent state of a source, as of ``reached_ms`` (Unix milliseconds).

    ``heads`` are the newest states of transactional ids and their numbers, by id. ``expired`` are
    the numbers of the last states of ids that have expired. ``damaged`` are ids whose newest state
    cannot be read.
    """

    reached_ms: int
    logs: tuple[SourceLog, ...]
    heads: dict[str, tuple[int, TransactionState]]
    expired: dict[str, int]
    damaged: frozenset[str]


class FollowedSource:
    """The store that is followed. Its open logs are refreshed, but not settled."""

    def __init__(self, logs: Logs) -> None:
        self.logs = logs
        self._storage = logs.storage
        self._damaged: set[str] = set()
        self.busy: set[str] = set()
        """The folders of logs whose names were freed once while a round was made."""

    def topics(self) -> list[TopicLog]:
        """The logs of all topics, which are not refreshed here."""
        return [self.logs.topic(name) for name in list_topics(self._storage)]

    def look(self) -> SourceView:
        """Read one consistent state: a few requests for each log and id, and reads of new files.

        Raises SourceMoved, StorageError, CorruptEntry.
        """
        self._damaged = set()
        known: dict[str, Head] = {}
        lists: dict[str, ManifestList | None] = {}
        ids, groups, topics = self.logs.transactions.ids(), self._groups(), self.topics()
        for busy in (False, True):
            known |= self._heads(name for name in ids if self._is_busy_id(name) is busy)
            self._storage.gather(log.refresh for log in groups if self._is_busy(log) is busy)
            lists |= self._refresh([log for log in topics if self._is_busy(log) is busy])
        reached_ms = self.logs.clock.now_ms()
        busy_ids = {*filter(self._is_busy_id, known)}
        histories = self._histories(busy_ids, known)
        # Groups first: the records that they have read are then in the topics.
        read = {("group", one.log.name): one for one in self._read_new(self._groups(), {})} | {
            ("topic", one.log.name): one for one in self._read_new(self.topics(), lists)
        }
        rest = {*known, *self.logs.transactions.ids()} - busy_ids
        histories |= self._histories(rest, known)
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

    def _heads(self, ids: Iterable[str]) -> dict[str, Head]:
        chosen = [*ids]
        found = self._storage.gather(partial(self._head, name) for name in chosen)
        return {name: head for name, head in zip(chosen, found, strict=True) if head is not None}

    def _head(self, transactional_id: str) -> Head | None:
        try:
            return self.logs.transactions.head(transactional_id)
        except CorruptTransactionState:
            self._damaged.add(transactional_id)
            return None

    def _refresh(self, logs: Sequence[TopicLog]) -> dict[str, ManifestList | None]:
        """Refresh topics; returns for each the manifest list of its settled appends."""
        found = self._storage.gather(partial(_refresh_topic, log) for log in logs)
        return dict(zip((log.name for log in logs), found, strict=True))

    # -- after it --------------------------------------------------------------------------------

    def _is_busy(self, log: TopicLog | GroupLog) -> bool:
        return log.log.folder in self.busy

    def _is_busy_id(self, transactional_id: str) -> bool:
        return names.transaction_log(transactional_id) in self.busy

    def _note_if_moved(self, folder: str, read: Callable[[], T]) -> T | SourceMoved:
        """The result of ``read``, or its SourceMoved: then the log counts as busy."""
        try:
            return read()
        except SourceMoved as error:
            self.busy.add(folder)
            return error

    def _histories(
        self, ids: Iterable[str], known: Mapping[str, Head]
    ) -> dict[str, tuple[int, Sequence[TransactionState]]]:
        """By id, the number of the first state that counts, and the states from there on."""
        chosen = sorted({*ids} - self._damaged)
        found = self._storage.gather(
            partial(
                self._note_if_moved,
                names.transaction_log(name),
                partial(self._history, name, known.get(name)),
            )
            for name in chosen
        )
        read = dict(zip(chosen, _all_or_raise(found), strict=True))
        return {name: one for name, one in read.items() if one is not None}

    def _history(
        self, transactional_id: str, known: Head | None
    ) -> tuple[int, Sequence[TransactionState]] | None:
        folder = names.transaction_log(transactional_id)
        log = SequenceLog(self._storage, folder, self.logs.clock)
        for _ in range(_ATTEMPTS):
            entries = log.listing(known.number if known else 0).entries
            if known is None:
                begin = self._find_beginning(transactional_id)
                if not entries or entries[-1] < begin:
                    return None  # removed since it was listed, but for strays
            else:
                begin = known.number
            if entries[:1] != (begin,):
                break
            if entries != tuple(range(begin, begin + len(entries))):
                continue  # a listing is not a snapshot
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

    def _find_beginning(self, transactional_id: str) -> int:
        """The number of an id's first state since it last expired."""
        expired = self.logs.transactions.expired(transactional_id)
        return expired.number + 1 if expired else 0

    def _expired(self, states: Mapping[str, object]) -> dict[str, int]:
        """The ids of which only a copy of the last state is left, with its number."""
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
        """Add to ``states`` the ids that transactions name, but that were not listed."""
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

    def _read_new(
        self,
        logs: Sequence[TopicLog] | Sequence[GroupLog],
        manifests: Mapping[str, ManifestList | None],
    ) -> list[_Read]:
        """Read the new entries of logs; busy logs come first."""
        return _all_or_raise(
            [
                self._note_if_moved(
                    log.log.folder, partial(self._read_on, log, manifests.get(log.name))
                )
                for log in sorted(logs, key=self._is_busy, reverse=True)
            ]
        )

    def _read_on(self, log: TopicLog | GroupLog, manifests: ManifestList | None) -> _Read:
        """Read the new files of a log since it was refreshed."""
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
            try:
                data = log.log.read(numbers)
                kept = self._read_kept(log, listing, must) if self._is_busy(log) else {}
            except ObjectNotFound:
                break
            if not numbers:
                part = LogPart(begin, undecided, (), ends, topic_id)
                return _Read(log, part, listing, {}, kept, manifests)
            found = _fold_new(log, begin, numbers, data)
            if found is None:
                continue  # a listing is not a snapshot
            if log.log.chapters.is_closed(begin):
                break  # they may be strays
            part = LogPart(begin, undecided, found[0], ends, topic_id)
            kept |= zip(map(log.log.path, numbers), data, strict=True)
            return _Read(log, part, listing, found[1], kept, manifests)
        raise SourceMoved(f"{log.log.folder} was cleaned up while it was read")

    def _read_kept(
        self, log: TopicLog | GroupLog, listing: Listing, files: set[int]
    ) -> dict[str, bytes]:
        """Read files that a round needs besides new ones, and their entries' markers; by path."""
        paths = [log.log.path(number) for number in files]
        paths += [
            log.log.path(number, names.LogFile(outcome.value))
            for number, outcome in listing.outcomes.items()
            if number >= max(files, default=0) or listing.file_of(number) in files
        ]
        return dict(zip(paths, self._storage.get_many(paths), strict=True))

    # -- the consistent part ---------------------------------------------------------------------

    def _fold(self, key: LogKey, one: _Read, cut: Cut) -> tuple[AnyState, ManifestList | None]:
        """The state of a log at the cut, and the manifest list of its settled appends."""
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
    return SourceLog(one.log, state, manifests, tuple(sorted(files)), markers, one.data)


def _all_or_raise(found: Sequence[T | SourceMoved]) -> list[T]:
    read = []
    for one in found:
        if isinstance(one, SourceMoved):
            raise one
        read.append(one)
    return read


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
    """An entry's outcome by rule c: its id had moved on before the log was listed."""
    for state in reversed(cut.history(owner.transactional_id)):
        if state.ref.key == owner.key and state.outcome is not None:
            ref = one.log.ref(number)
            commits = state.outcome is Outcome.COMMIT and ref in state.entries
            return Outcome.COMMIT if commits else Outcome.ABORT
    if number in one.listing.outcomes:
        return one.listing.outcomes[number]
    # The log was listed before most ids were: only now a marker that is missing says something.
    listing = one.log.log.listing(file)
    if number in listing.outcomes:
        return listing.outcomes[number]
    found = one.log.outcomes_in_checkpoints([number], listing).get(number)
    if isinstance(found, Outcome):
        return found
    if not one.log.is_entry_of(number, file, owner):
        raise SourceMoved(f"{one.log.log.path(file)} was cleaned up while it was read")
    return Outcome.ABORT


def _adopt(state: TopicState, found: ManifestList | None) -> ManifestList | None:
    """Drop from a state the appends that a manifest list has; the list must have all of them.

    Raises SourceMoved: it has not, or is another topic's.
    """
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
    """Fold the entries of new files; None if one is missing between them."""
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
    """Copy a state, so that changes of the copy do not reach the original."""
    data = msgspec.json.encode(state)
    if isinstance(state, TopicState):
        return topics.CHECKPOINT_DECODER.decode(data)
    return groups.CHECKPOINT_DECODER.decode(data)


def read_newest_states(storage: Storage, transactional_id: str, clock: Clock) -> dict[str, bytes]:
    """The bytes of the newest two files of an id's log, damaged or not, by path.

    Raises StorageError: the log is gone.
    """
    log = SequenceLog(storage, names.transaction_log(transactional_id), clock)
    found: dict[str, bytes] = {}
    for number in log.listing().entries[-2:]:
        with suppress(ObjectNotFound):
            found[log.path(number)] = storage.get(log.path(number))
    if not found:
        raise StorageError(f"{log.folder} is gone")
    return found
