"""The state of one transactional id, and Kafka's transitions between its states.

Each entry of an id's log is the whole :class:`TransactionState`, so the newest one is enough.
A transition is a function from one state to the next; it raises when Kafka's coordinator would
refuse. docs/PROTOCOL.md numbers the invariants (T1, T2, ...) that the functions cite.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Annotated, ClassVar, Literal, NamedTuple

import msgspec

from txnlog.config import check_whole_number
from txnlog.errors import (
    InvalidOption,
    InvalidTransactionTimeout,
    InvalidTxnState,
    ProducerFenced,
)
from txnlog.limits import (
    MOST_LONG_NAME,
    MOST_MARK_BYTES,
    AnyNumber,
    Counter,
    CounterOrNone,
    LongName,
    Metadata,
    Name,
    Names,
    Offset,
    PartitionNumber,
    ProducerEpoch,
    ProducerId,
    Text,
    TimeMs,
    TimeoutMs,
    VersionNumber,
)
from txnlog.names import check_text

MAX_PRODUCER_EPOCH = 32767
HELP_AFTER_MS = 10_000
"""After this time without progress other processes finish a prepared transaction."""


class Status(str, Enum):
    """Kafka's names for the states of a transaction. Persisted: append only."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"


IDLE = frozenset({Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT})
"""No transaction is in progress: the id may expire."""


class Outcome(str, Enum):
    """How an entry was decided. The values are the extensions of control-marker files."""

    COMMIT = "commit"
    ABORT = "abort"


class Version(NamedTuple):
    """An idempotence version: the number that an application gives to a commit."""

    application_id: str
    number: int

    def is_committed(self, versions: Mapping[str, int]) -> bool:
        """Whether it, or a greater one, is among the last versions that applications committed."""
        return versions.get(self.application_id, -1) >= self.number


class TransactionKey(NamedTuple):
    """Distinguishes a transaction from all others ever."""

    transactional_id: str
    producer_id: int
    number: int


class TransactionRef(msgspec.Struct, frozen=True, order=True):
    """The transaction that an entry belongs to: in every transactional entry."""

    transactional_id: Name
    number: Counter
    producer_id: ProducerId
    producer_epoch: ProducerEpoch

    @property
    def key(self) -> TransactionKey:
        """Identity of the transaction. The epoch is not part of it: a time-out bumps it."""
        return TransactionKey(self.transactional_id, self.producer_id, self.number)

    def __str__(self) -> str:
        return (
            f"transaction {self.number} of {self.transactional_id!r} (epoch {self.producer_epoch})"
        )


class EntryRef(msgspec.Struct, frozen=True, order=True):
    """One entry of a topic's or a group's log, as a decision's list names it."""

    log: Literal["topic", "group"]
    name: Name
    number: Counter


class Marker(msgspec.Struct, frozen=True, tag_field="kind", tag="marker"):
    """The content of a control-marker file, for people: its name alone decides."""

    most_bytes: ClassVar[int] = MOST_MARK_BYTES

    outcome: Outcome
    transaction: TransactionRef


class ConsumedOffset(msgspec.Struct, frozen=True, order=True):
    """The offsets [start, end) of one partition of ``topic`` that a transaction consumed.

    ``start`` is the group's committed offset it began from, None if there was none, and
    ``start_entry`` the entry that had set it (see ``OffsetCommit``); ``topic_id`` distinguishes the
    topic from others of its name.
    """

    group_id: Name
    topic: Name
    partition: PartitionNumber
    start: Offset | None
    end: Offset
    metadata: Metadata = ""
    topic_id: Name = ""
    start_entry: CounterOrNone | None = None


class TransactionState(msgspec.Struct, frozen=True, tag_field="kind", tag="transaction"):
    """One entry of a transactional id's log. Times are wall-clock milliseconds since the epoch.

    ``entries`` is the exact list that a decision to commit covers. ``consumed`` holds the reads of
    a transaction that spans processes, to be committed with it. ``versions`` maps an application to
    the last idempotence version (say, a batch id) that it committed. ``reason`` tells why a process
    other than the producer aborted the transaction.
    """

    transactional_id: Name
    status: Status
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    number: Counter
    timeout_ms: TimeoutMs
    updated_at_ms: TimeMs
    nonce: Name
    started_at_ms: TimeMs | None = None
    topics: Names = ()
    groups: Names = ()
    entries: Annotated[tuple[EntryRef, ...], AnyNumber] = ()
    consumed: Annotated[tuple[ConsumedOffset, ...], AnyNumber] = ()
    versions: Annotated[dict[LongName, VersionNumber], AnyNumber] = {}
    reason: Text = ""

    @property
    def ref(self) -> TransactionRef:
        """The reference in entries of this id's current transaction."""
        return TransactionRef(
            self.transactional_id, self.number, self.producer_id, self.producer_epoch
        )

    @property
    def open(self) -> bool:
        """True while the outcome is not decided."""
        return self.status is Status.ONGOING

    @property
    def prepared(self) -> bool:
        """True between the decision and its completion."""
        return self.status in (Status.PREPARE_COMMIT, Status.PREPARE_ABORT)

    @property
    def outcome(self) -> Outcome | None:
        """The decision on the current transaction; None while there is none."""
        if self.status in (Status.PREPARE_COMMIT, Status.COMPLETE_COMMIT):
            return Outcome.COMMIT
        if self.status in (Status.PREPARE_ABORT, Status.COMPLETE_ABORT):
            return Outcome.ABORT
        return None


DECODER = msgspec.json.Decoder(TransactionState)


def new_producer_id(token: str) -> int:
    """A producer id of 63 random bits, from a random token of 128 bits in hex."""
    return int(token, 16) >> 65


def check_timeout(timeout_ms: int, max_timeout_ms: int) -> int:
    """Return ``timeout_ms`` if 1 <= it <= max_timeout_ms, else raise InvalidTransactionTimeout."""
    what = "transaction_timeout_ms (at most the store's transaction.max.timeout.ms)"
    return check_whole_number(
        timeout_ms, what, InvalidTransactionTimeout, least=1, most=max_timeout_ms
    )


def check_version(application_id: str | None, version: int | None) -> Version | None:
    """Return an idempotence version if one is given, else None. Raises InvalidOption."""
    if application_id is None and version is None:
        return None
    if not isinstance(application_id, str) or not application_id:
        raise InvalidOption(
            f"a version needs the application_id that it counts for, not {application_id!r}"
        )
    check_text(application_id, "application id", InvalidOption, most_chars=MOST_LONG_NAME)
    what = f"the version of application {application_id!r}"
    most = (1 << 63) - 1
    return Version(
        application_id, check_whole_number(version, what, InvalidOption, least=0, most=most)
    )


def decide_entry(
    entry: EntryRef, transaction: TransactionRef, state: TransactionState | None
) -> Outcome | Literal["past"] | None:
    """Rule b of how a reader decides an entry that has no marker (invariant T5).

    The outcome if ``state`` holds it, None if the transaction is open, or ``"past"`` if the id has
    moved on (or is gone): then a marker was written before, or the entry is from a zombie.
    """
    if state is None or state.ref.key != transaction.key:
        return "past"
    outcome = state.outcome
    if outcome is Outcome.COMMIT:
        return Outcome.COMMIT if entry in state.entries else Outcome.ABORT
    if outcome is Outcome.ABORT:
        return Outcome.ABORT
    return None if state.open else "past"


# -- transitions ---------------------------------------------------------------------------------


def initialize(
    state: TransactionState | None,
    *,
    transactional_id: str,
    timeout_ms: int,
    fresh_producer_id: int,
    owned_epoch: int | None,
    now_ms: int,
    nonce: str,
) -> TransactionState:
    """Take the id over: Empty with an epoch that fences every older instance (invariant T1).

    ``owned_epoch`` is the epoch that this very initialisation has bumped already, when it
    aborted the previous transaction; it is not bumped twice. After epoch 32767 comes a new
    producer id with epoch 0.
    """
    number = state.number if state else 0
    # Versions outlive the producer id: a batch repeated after a long time is recognised too.
    versions: Mapping[str, int] = state.versions if state else {}
    if state is None or state.status is Status.DEAD:
        producer_id, epoch = fresh_producer_id, 0
    else:
        if state.open or state.prepared:
            raise InvalidTxnState(f"{state.ref} is {state.status.value}; it must be ended first")
        producer_id = state.producer_id
        epoch = state.producer_epoch + (0 if owned_epoch == state.producer_epoch else 1)
        if epoch > MAX_PRODUCER_EPOCH:
            producer_id, epoch = fresh_producer_id, 0
    return TransactionState(
        transactional_id=transactional_id,
        status=Status.EMPTY,
        producer_id=producer_id,
        producer_epoch=epoch,
        number=number,
        timeout_ms=timeout_ms,
        updated_at_ms=now_ms,
        nonce=nonce,
        versions=dict(versions),
    )


def participate(
    state: TransactionState,
    *,
    topics: Iterable[str],
    groups: Iterable[str],
    now_ms: int,
    nonce: str,
    consumed: Iterable[ConsumedOffset] = (),
) -> TransactionState:
    """Begin a transaction, or add topics and groups to the open one (invariant T2).

    Must be put before anything is appended to the logs that it names.
    """
    if state.prepared or state.status is Status.DEAD:
        raise InvalidTxnState(f"{state.ref} is {state.status.value}: no transaction can begin")
    fresh = not state.open
    return msgspec.structs.replace(
        state,
        status=Status.ONGOING,
        number=state.number + 1 if fresh else state.number,
        started_at_ms=now_ms if fresh else state.started_at_ms,
        updated_at_ms=now_ms,
        nonce=nonce,
        topics=tuple(sorted({*topics, *(() if fresh else state.topics)})),
        groups=tuple(sorted({*groups, *(() if fresh else state.groups)})),
        entries=(),
        consumed=tuple(consumed) if fresh else (*state.consumed, *consumed),
    )


def prepare_commit(
    state: TransactionState,
    entries: Iterable[EntryRef],
    *,
    now_ms: int,
    nonce: str,
    version: Version | None = None,
) -> TransactionState:
    """Decide to commit exactly ``entries`` (invariant T3). Putting this state is the commit."""
    if not state.open:
        raise InvalidTxnState(f"{state.ref} is {state.status.value}: there is nothing to commit")
    versions = dict(state.versions)
    if version is not None:
        versions[version.application_id] = version.number
    return msgspec.structs.replace(
        state,
        status=Status.PREPARE_COMMIT,
        entries=tuple(sorted(set(entries))),
        versions=versions,
        updated_at_ms=now_ms,
        nonce=nonce,
    )


def prepare_abort(
    state: TransactionState, *, now_ms: int, nonce: str, fence: bool = False, reason: str = ""
) -> TransactionState:
    """Decide to abort. ``fence`` bumps the epoch: for processes other than the producer.

    ``reason`` tells why, for people.

    At the last epoch the bump is left to the next initialisation's new producer id; the
    producer is fenced all the same, because its next put on this log loses.
    """
    if not state.open:
        raise InvalidTxnState(f"{state.ref} is {state.status.value}: there is nothing to abort")
    epoch = min(state.producer_epoch + 1, MAX_PRODUCER_EPOCH) if fence else state.producer_epoch
    return msgspec.structs.replace(
        state,
        status=Status.PREPARE_ABORT,
        producer_epoch=epoch,
        entries=(),
        updated_at_ms=now_ms,
        nonce=nonce,
        reason=reason,
    )


def presume_open(ref: TransactionRef, timeout_ms: int, *, now_ms: int) -> TransactionState:
    """The open transaction that an entry belongs to, if nothing else is left of its state."""
    return TransactionState(
        transactional_id=ref.transactional_id,
        status=Status.ONGOING,
        producer_id=ref.producer_id,
        producer_epoch=ref.producer_epoch,
        number=ref.number,
        timeout_ms=timeout_ms,
        updated_at_ms=now_ms,
        nonce="",
        started_at_ms=now_ms,
    )


def fence(state: TransactionState) -> TransactionState:
    """Give the id its next epoch, which nobody else owns."""
    epoch = min(state.producer_epoch + 1, MAX_PRODUCER_EPOCH)
    return msgspec.structs.replace(state, producer_epoch=epoch)


def complete(state: TransactionState) -> TransactionState:
    """End a prepared transaction. For a commit all markers must exist (invariant T4).

    Every process that does so puts the same bytes, whatever its clock says: the time and the nonce
    are the decision's (invariant T10).
    """
    if not state.prepared:
        raise InvalidTxnState(f"{state.ref} is {state.status.value}: it is not prepared")
    done = (
        Status.COMPLETE_COMMIT if state.status is Status.PREPARE_COMMIT else Status.COMPLETE_ABORT
    )
    return msgspec.structs.replace(state, status=done)


def expire(state: TransactionState, *, now_ms: int, nonce: str, reason: str) -> TransactionState:
    """End an id that is idle: only from Empty and Complete*, so nothing is undecided (T7)."""
    if state.status not in IDLE:
        raise InvalidTxnState(f"{state.ref} is {state.status.value}: it does not expire")
    return msgspec.structs.replace(
        state, status=Status.DEAD, updated_at_ms=now_ms, nonce=nonce, reason=reason
    )


def may_follow(later: TransactionState, state: TransactionState) -> bool:
    """True if ``later`` can be the state put directly after ``state``."""
    if state.prepared:
        return (
            later.ref.key == state.ref.key
            and later.outcome is state.outcome
            and not later.prepared
            and later.entries == state.entries
        )
    if state.open:
        bump = later.producer_epoch - state.producer_epoch
        return later.ref.key == state.ref.key and (
            (bump == 0 and (later.open or later.prepared))
            or (bump == 1 and later.status is Status.PREPARE_ABORT)
        )
    if later.status is Status.EMPTY:
        return later.number == state.number and later.ref != state.ref
    if later.status is Status.DEAD:
        return later.ref == state.ref
    owned = (later.producer_id, later.producer_epoch) == (state.producer_id, state.producer_epoch)
    return later.open and owned and later.number == state.number + 1


FENCED_ADVICE = "close this producer, make a new one and call init_transactions()"
"""The last sentence of a producer's ProducerFenced. Spark's jobs have no producer, and another one.
"""


NEWER_PRODUCER = "a newer producer was initialised with its transactional id"
"""The reason for an abort by the next producer of a transactional id."""


def check_owner(state: TransactionState | None, producer_id: int, producer_epoch: int) -> None:
    """Raise ProducerFenced unless this producer id and epoch own ``state`` (invariant T6)."""
    if state is None or (state.producer_id, state.producer_epoch) != (producer_id, producer_epoch):
        named = "its transactional id"
        if state is not None:
            named = f"transactional id {state.transactional_id!r}"
        found = "is gone" if state is None else f"has epoch {state.producer_epoch}"
        if state is not None and state.producer_id != producer_id:
            found = f"belongs to producer {state.producer_id}"
        why = "another instance took over, or the transaction outlived its timeout"
        if state is not None and state.reason:
            why = f"its transaction was aborted: {state.reason}"
        fenced = ProducerFenced(
            f"producer {producer_id} with epoch {producer_epoch} was fenced: {named} "
            f"now {found}; {why}; {FENCED_ADVICE}"
        )
        fenced.ended_alone = (
            state is not None
            and state.reason not in ("", NEWER_PRODUCER)
            # Else it was the transaction of a newer one. An abort at the last epoch keeps it.
            and state.producer_id == producer_id
            and state.producer_epoch == producer_epoch + 1 < MAX_PRODUCER_EPOCH
        )
        raise fenced
