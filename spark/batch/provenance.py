"""Records read with a ``transactional.id`` are written with it, or not at all.

So is what ``txn.read`` and ``txn.read_whole`` of a ``transaction(...)`` return, by ``txn.write``.
The offsets move with the write that names the id, or when the block ends. Another write would make
the records visible and leave the offsets: the next read would get them again. Spark tells a sink
nothing about the plan above it, but two things arrive, through Connect too:

    the columns' metadata   of columns that pass through as they are, also out of a cache: what is
                            wrong is said before any task runs
    the execution           tasks that read and tasks that write for one action are told the same
                            one: a task of such a read leaves a note of it in staging/ before its
                            first row, and a write looks for notes before it places anything. This
                            finds every row that was computed from such a read. Where Spark itself
                            reads the files, a task without rows stands in for ours: the first one,
                            which runs wherever one of the others does
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import msgspec
from pyspark import TaskContext

from txnlog.errors import IllegalState, InvalidOption, InvalidTxnState, TxnlogError
from txnlog.limits import MOST_MARK_BYTES, Name, TimeMs
from txnlog.names import STAGING, parse_read_note, read_note, read_note_owner
from txnlog.spark.batch import skipped_records
from txnlog.spark.options.option_names import ORIGIN
from txnlog.state.transaction import Status, TransactionRef, TransactionState
from txnlog.storage import envelope
from txnlog.storage.base import Storage
from txnlog.store import Store
from txnlog.write.coordinator import Coordinator

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_logger = logging.getLogger(__name__)

_METADATA = "txnlog.transaction"
_EXECUTION_ID = "spark.sql.execution.id"
_ROOT_EXECUTION_ID = "spark.sql.execution.root.id"
QUERY_ID = "sql.streaming.queryId"
"""The property in which Spark tells which query runs; a restart keeps the id."""
_TAGS = "spark.job.tags"
_SESSION = re.compile(r"spark-session-([0-9a-f-]{36})-execution-root-id-\d+")


class Origin(msgspec.Struct, frozen=True, tag_field="kind", tag="handed-out"):
    """The transaction that a read has begun, in its columns' metadata and its tasks' notes.

    ``until_ms``: when it has outlived its timeout, by the wall clock of the process that began it.
    With ``in_block`` it is the newest one of the id when a ``transaction(...)`` was entered, whose
    own begins at its end: the epoch tells which block it is. A block may last longer than
    ``until_ms``; from then on its tasks' notes alone tell.
    """

    most_bytes: ClassVar[int] = MOST_MARK_BYTES

    store_id: Name
    transaction: TransactionRef
    until_ms: TimeMs
    in_block: bool = False


_DECODER = msgspec.json.Decoder(Origin)


@dataclass(frozen=True, slots=True)
class CommitScope:
    """The offsets that a write commits, and so the rows that it may write.

    ``continued`` is the transaction of a read that it commits. ``in_block``: it belongs to a
    ``transaction(...)``, which is ``block`` as its reads have it, or to a streaming query.
    ``outside``: the option outsideTransaction says that its rows may be written without offsets.
    ``columns_tell``: it writes columns of that read as they are.
    """

    transactional_id: str | None = None
    continued: TransactionRef | None = None
    in_block: bool = False
    block: TransactionRef | None = None
    outside: bool = False
    columns_tell: bool = False

    def covers(self, origin: Origin) -> bool:
        """Whether this commit moves the offsets of the read that rows came from."""
        if origin.in_block:
            return origin.transaction == self.block
        return self.continued is not None and origin.transaction.key == self.continued.key


# -- reading -------------------------------------------------------------------------------------


def origin_of(store: Store, state: TransactionState) -> Origin:
    """The origin for a transaction that a read has just begun."""
    return Origin(store.store_id, state.ref, (state.started_at_ms or 0) + state.timeout_ms)


def origin_of_block(store: Store, state: TransactionState) -> Origin:
    """The origin of the reads of a ``transaction(...)`` that has taken its id over."""
    until_ms = store.logs.clock.now_ms() + store.logs.config.transaction_max_timeout_ms
    return Origin(store.store_id, state.ref, until_ms, in_block=True)


def parse_origin(text: str) -> Origin:
    """One from an option that :func:`format_origin` has made. Raises InvalidOption."""
    try:
        return _DECODER.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidOption(f"option {ORIGIN} is set by txnlog itself; remove it") from None


def format_origin(origin: Origin) -> str:
    return msgspec.json.encode(origin).decode()


def column_metadata(origin: Origin | None) -> dict[str, str]:
    """The metadata of each column of a read."""
    return {} if origin is None else {_METADATA: format_origin(origin)}


def leave_note(storage: Storage, origin: Origin) -> None:
    """In a task, before its first row: note which execution has rows of this read.

    Outside of an execution, as under ``df.rdd``, there is no sink for them either. Raises
    StorageError; then the task must not go on.
    """
    execution = current_execution()
    if execution is not None:
        ref = origin.transaction
        name = read_note(ref.transactional_id, execution, str(msgspec.structs.astuple(ref)))
        # The process that began the transaction has checked the server: Spark's workers need not.
        storage.trust()
        storage.put_if_absent(name, envelope.encode(origin))


def leave_note_alone(
    storage: Storage, origin: Origin, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Leave the note in a task that has no rows; :func:`leave_note` says what is raised."""
    leave_note(storage, origin)
    for _ in batches:  # Spark ends a worker that leaves some, and starts another for the next task
        pass
    return iter(())


def delete_notes(store: Store, transactional_id: str) -> None:
    """Delete the notes of an id's earlier reads, best effort: a new read is about to begin."""
    owner = read_note_owner(transactional_id)
    try:
        listed = store.storage.list_names(STAGING)
        skipped = [n for n in listed if skipped_records.is_of(n, transactional_id)]
        of_rows = [note.name for note in _notes(listed) if note.owner == owner]
        _delete(store.storage, [*of_rows, *(f"{STAGING}/{name}" for name in skipped)])
    except TxnlogError as error:
        _logger.warning("notes of earlier reads with %r were left: %s", transactional_id, error)


# -- writing -------------------------------------------------------------------------------------


def current_execution() -> str | None:
    """Which execution of a plan this task works for; None outside of one, as under ``df.rdd``.

    Spark numbers them within an application, whose sessions have ids that are unique.
    """
    context = TaskContext.get()
    number = context.getLocalProperty(_EXECUTION_ID) if context else None
    # A nested session has the tags of both; the same one is chosen everywhere.
    sessions = _SESSION.findall(context.getLocalProperty(_TAGS) or "") if context else []
    return f"{min(sessions)}-{number}" if number and sessions else None


def require_execution() -> str:
    """The execution that a writing task works for; "" where there is no task, as on the driver.

    Raises IllegalState: Spark does not say, so the rows' origin would be unknown.
    """
    execution = current_execution()
    if execution is None and TaskContext.get() is not None:
        raise IllegalState(
            f"Spark does not tell a task what it works for ({_EXECUTION_ID}, {_TAGS}), so nothing "
            "tells whether its rows were read with a transactional.id"
        )
    return execution or ""


def refuse_table() -> None:
    """In a task, before it uploads anything: refuse a write with which Spark makes a table.

    The only sign is that the write is an execution within another one, the statement's. A write in
    a function of ``foreachBatch`` is one too, and is not refused.

    Raises InvalidOption. The job's failure makes Spark drop the table that it has made.
    """
    context = TaskContext.get()
    number = context.getLocalProperty(_EXECUTION_ID) if context else None
    root = context.getLocalProperty(_ROOT_EXECUTION_ID) if context else None
    if context is None or root in (None, number) or context.getLocalProperty(QUERY_ID):
        return
    raise InvalidOption(
        "saveAsTable(), writeTo(...).create() and CREATE TABLE ... AS SELECT are refused: Spark "
        "would not keep the options with the table, so that nobody could read or write it. "
        'Nothing was written. Give df.write.format("txnlog").options(...).mode("append").save(), '
        "and for SQL CREATE TEMPORARY VIEW ... USING txnlog OPTIONS (...)"
    )


def check_columns(store: Store, schema: StructType, scope: CommitScope) -> bool:
    """Before any task runs: refuse columns of a read whose offsets this write would not move.

    A column remembers its read for ever, even in a file made from it: it matters only while the
    read's transaction is open. Returns whether some are of the read whose offsets it moves.

    Raises InvalidTxnState: they were read with a transactional.id that this write does not
    continue; that transaction was aborted.
    """
    if scope.outside:
        return False
    origins = sorted(_origins_in(schema), key=lambda each: each.transaction)
    for origin in origins:
        if origin.store_id != store.store_id:
            if origin.until_ms >= store.logs.clock.now_ms():
                raise _refuse_other_store(origin, store, scope)
        elif not scope.covers(origin) and _is_live(store, origin):
            raise _refuse(store, origin, scope)
    return any(scope.covers(origin) for origin in origins)


def check_rows(
    store: Store, executions: Iterable[str], scope: CommitScope, *, has_rows: bool = True
) -> None:
    """Before anything is placed: refuse rows of a read whose offsets this write would not move.

    And rows that are of no read, where those of one would be lost: its offsets would move. Costs
    one listing, and one read for each note that is found. The notes are then deleted. Raises
    InvalidTxnState as :func:`check_columns`; StorageError: nothing may be placed.
    """
    if scope.outside:
        return
    listed = store.storage.list_names(STAGING)
    mine = {*executions}
    notes = [note for note in _notes(listed) if note.execution in mine]
    if scope.continued is not None:
        skipped_records.take_notes(store.storage, scope.continued, listed)
    if not notes:
        if scope.continued is not None and has_rows and not scope.columns_tell:
            raise _refuse_others(scope.continued)
        return
    found = zip(store.storage.get_many([note.name for note in notes]), notes, strict=True)
    origins = [envelope.decode(data, _DECODER, note.name) for data, note in found]
    try:
        for origin in sorted(origins, key=lambda each: each.transaction):
            if not scope.covers(origin):
                raise _refuse(store, origin, scope)
    finally:
        try:
            _delete(store.storage, [note.name for note in notes])
        except TxnlogError as error:
            _logger.info("notes of reads were left: %s", error)


def _is_live(store: Store, origin: Origin) -> bool:
    """Whether the transaction of a read is still to be committed."""
    ref = origin.transaction
    head = store.logs.transactions.head(ref.transactional_id)
    if head is None:
        return False
    if not origin.in_block:
        return head.state.open and head.state.ref.key == ref.key
    return _is_of_block(head.state, ref) and origin.until_ms >= store.logs.clock.now_ms()


def _is_of_block(state: TransactionState, ref: TransactionRef) -> bool:
    """Whether a block that was entered at ``ref`` holds the id and has decided nothing."""
    mine = (state.producer_id, state.producer_epoch) == (ref.producer_id, ref.producer_epoch)
    return mine and (state.open or state.status is Status.EMPTY)


@dataclass(frozen=True, slots=True)
class _Note:
    name: str
    owner: str
    execution: str


def _notes(listed: Iterable[str]) -> list[_Note]:
    parsed = ((name, parse_read_note(name)) for name in listed)
    return [_Note(f"{STAGING}/{name}", *found) for name, found in parsed if found]


def _delete(storage: Storage, notes: list[str]) -> None:
    if notes:
        storage.delete(notes)


def _origins_in(schema: StructType) -> set[Origin]:
    texts = {field.metadata[_METADATA] for field in schema if _METADATA in (field.metadata or {})}
    found = set()
    for text in texts:
        try:
            found.add(_DECODER.decode(text))
        except (msgspec.DecodeError, TypeError, RecursionError):
            _logger.warning("a column has metadata %s that is not txnlog's own", _METADATA)
    return found


# -- refusing ------------------------------------------------------------------------------------

_LOST = "they would go out without the group's offsets, and again after the next read"


def _refuse(store: Store, origin: Origin, scope: CommitScope) -> InvalidTxnState:
    """Abort the read's transaction, and say what happened and what to do."""
    ref, name = origin.transaction, origin.transaction.transactional_id
    outside = (
        "If these rows may go out without the offsets, give the write "
        '.option("outsideTransaction", "true") instead'
    )
    if origin.in_block:
        read = f"in transaction(...) with transactional_id {name!r}"
        ended = _abort_block(store, ref)
        remedy = "Inside the block write with txn.write(...)"
    else:
        read = f"with transactional.id {name!r}"
        ended = f"{ref} {_abort_read(store, ref)}"
        remedy = (
            f'Load again, and give the write .option("transactional.id", "{name}"); for several '
            "writes use txnlog.spark.transaction(...)"
        )
    if scope.in_block:
        remedy = "Inside transaction(...) read with txn.read(...); for a stream read without it"
    else:
        remedy = f"{remedy}. {outside}"
    return InvalidTxnState(
        f"the rows of this write were read {read}, but {_describe(scope)}: {_LOST}. Nothing was "
        f"written, and {ended}. {remedy}"
    )


def _refuse_others(read: TransactionRef) -> InvalidTxnState:
    """Say what to do; the read's transaction stays open, for the write of its rows."""
    name = read.transactional_id
    return InvalidTxnState(
        f"the rows of this write do not come from the read with transactional.id {name!r}, whose "
        "offsets it would commit, or Spark has left the read out of the plan: what was read would "
        "never be written. Nothing was written, and "
        f"{read} is still open. Give the id only to the write of what was read; for several "
        "writes, and for rows that were collected, or computed from a cached frame, use "
        "txnlog.spark.transaction(...)"
    )


def _refuse_other_store(origin: Origin, store: Store, scope: CommitScope) -> InvalidTxnState:
    ref = origin.transaction
    left = (
        "its block should be left by an exception"
        if origin.in_block
        else f"{ref} is left to its timeout"
    )
    outside = (
        "write them to the store that they were read from"
        if scope.transactional_id is not None or scope.in_block
        else 'if they may, give the write .option("outsideTransaction", "true")'
    )
    return InvalidTxnState(
        f"the rows of this write were read from another store with transactional.id "
        f"{ref.transactional_id!r}, and a transaction cannot reach {store.url} from there: {_LOST}."
        f" Nothing was written; {left}. Read without transactional.id; or, "
        f"{outside}"
    )


def _describe(scope: CommitScope) -> str:
    if scope.in_block:
        return "it commits the offsets of its own transaction only"
    if scope.transactional_id is None:
        return "it names none"
    if scope.continued is None:
        return f"it has transactional.id {scope.transactional_id!r}"
    return f"it commits {scope.continued}"


def _abort_block(store: Store, ref: TransactionRef) -> str:
    """Fence a block that nobody may commit any more; returns a part of a sentence about it."""

    def check(state: TransactionState) -> None:
        if not _is_of_block(state, ref):
            raise InvalidTxnState(f"{state.ref} is {state.status.value}")

    timeout_ms = store.logs.config.transaction_max_timeout_ms
    try:
        Coordinator(store.logs, ref.transactional_id, timeout_ms).initialize(check=check)
    except InvalidTxnState as error:
        return f"the block is over ({error})"
    except TxnlogError as error:
        _logger.warning("the block of %r could not be fenced: %s", ref.transactional_id, error)
        return "the block should be left by an exception"
    return "the block can only be aborted"


def _abort_read(store: Store, ref: TransactionRef) -> str:
    """Abort a transaction that nobody will commit; returns the rest of a sentence about it."""
    transactions, settlement = store.logs.transactions, store.logs.settlement
    try:
        since = transactions.now()
        head = transactions.head(ref.transactional_id)
        if head is None or head.state.ref.key != ref.key:
            return "was replaced by another one"
        if not head.state.open:
            return f"is {head.state.status.value}"
        reason = "its records were about to be written without its transactional.id"
        aborted = settlement.abort_for_another(head, since, reason)
        if aborted is None:
            return "was ended by somebody else"
        settlement.finish(aborted, since)
    except TxnlogError as error:
        _logger.warning("%s could not be aborted: %s", ref, error)
        return "is left to its timeout"
    return "was aborted"
