"""The driver's side of a write: uploaded segments are placed, alone or in a transaction.

Files are deleted only if it is certain that nothing names them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated

import msgspec

from txnlog.errors import (
    CommitStateUnknown,
    InvalidTxnState,
    ProducerFenced,
    StorageError,
    TxnlogError,
)
from txnlog.limits import AnyNumber, Name
from txnlog.log.uploads import UploadedSegment
from txnlog.names import TopicPartition
from txnlog.state.group import OffsetCommit
from txnlog.state.transaction import (
    FENCED_ADVICE,
    ConsumedOffset,
    Outcome,
    TransactionRef,
    Version,
)
from txnlog.storage import envelope
from txnlog.storage.base import Storage
from txnlog.store import Store
from txnlog.write.coordinator import Coordinator
from txnlog.write.segment_uploads import discard_segments

_logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_MS = 60_000
"""From placing to deciding. The job's tasks have ended by then, so Kafka's default is plenty."""

SegmentsByTopic = Mapping[str, Sequence[UploadedSegment]]


def group_by_topic(segments: Iterable[UploadedSegment]) -> dict[str, list[UploadedSegment]]:
    """Segments by their topic, in the order given."""
    found: dict[str, list[UploadedSegment]] = {}
    for segment in segments:
        found.setdefault(segment.topic, []).append(segment)
    return found


def find_open_transaction(store: Store, transactional_id: str) -> TransactionRef | None:
    """The open transaction that a read with this id has begun; None if no read has.

    One that has rows of topics, and no offsets that a read has consumed, was left open by a write
    that died: it is aborted when this one begins its own.

    Raises InvalidTxnState: a read had begun one and it has ended. Writing without it would leave
    the group's offsets behind, and the same records would be processed again.
    """
    head = store.logs.transactions.head(transactional_id)
    if head is None:
        return None
    if head.state.open and (head.state.consumed or not head.state.topics):
        return head.state.ref
    if head.state.consumed:
        raise InvalidTxnState(
            f"the transaction that a read with transactional.id {transactional_id!r} began is "
            f"{head.state.status.value}: it was committed by another write, or it was aborted, or "
            "it outlived its transaction.timeout.ms. Load again to begin a new one. For several "
            "writes in one transaction use txnlog.spark.transaction(...)"
        )
    return None


def append(store: Store, segments: SegmentsByTopic) -> None:
    """Place segments of one topic without a transaction: one put makes all of them visible.

    Raises CommitStateUnknown: the storage failed, and nothing was deleted; other TxnlogErrors:
    nothing was written, and the files were deleted.
    """
    ((topic, placed),) = segments.items()
    log = store.logs.topic(topic)
    try:
        log.place(placed)
    except StorageError as error:
        raise CommitStateUnknown(
            f"the write to topic {topic!r} may or may not have happened: {error}. Nothing was "
            "deleted; look at the topic's newest records before you repeat the write"
        ) from error
    except TxnlogError:
        discard_segments(store.storage, placed)
        raise
    store.logs.tidy([log])


def commit_transaction(
    store: Store,
    transactional_id: str,
    timeout_ms: int,
    segments: SegmentsByTopic,
    continued: TransactionRef | None = None,
) -> None:
    """Place segments in one transaction and commit it, with the offsets that a read stored in it.

    It goes on with the open transaction ``continued``, or begins one, with ``timeout_ms`` from the
    first placement to the decision.

    Raises ProducerFenced: another instance took the id over, or the transaction timed out;
    CommitFailed: the group has moved since the read; CommitStateUnknown: nothing was deleted, and
    the next use of the id settles it.
    """
    coordinator = Coordinator(store.logs, transactional_id, timeout_ms)
    offsets: dict[str, list[OffsetCommit]] = {}
    with discard_on_error(store, segments), speak_of_jobs(transactional_id):
        if continued is None:
            coordinator.initialize()
        else:
            coordinator.resume()
            _check_same(coordinator, continued)
            offsets = offset_commits(coordinator.state.consumed)
    place_and_commit(store, coordinator, segments, offsets, begun=continued is not None)


def place_and_commit(
    store: Store,
    coordinator: Coordinator,
    segments: SegmentsByTopic,
    offsets: Mapping[str, Sequence[OffsetCommit]],
    *,
    begun: bool = False,
    version: Version | None = None,
) -> dict[TopicPartition, list[range]]:
    """Steps 2 to 6 of a transaction; on a failure it is aborted and the error goes on.

    Returns by partition the offsets that the records were given.
    """
    with abort_on_error(store, coordinator, segments, begun=begun):
        placed = coordinator.place(segments, offsets)
        coordinator.commit(version=version)
    return placed


@contextmanager
def abort_on_error(
    store: Store, coordinator: Coordinator, segments: SegmentsByTopic, *, begun: bool = False
) -> Iterator[None]:
    """Abort the transaction if an error comes out of the block; the error goes on.

    Afterwards ``coordinator.decided`` tells if it is committed after all: an interrupt may come
    after the decision was put.
    """
    try:
        with speak_of_jobs(coordinator.transactional_id):
            yield
    except CommitStateUnknown:
        raise
    except BaseException:
        if coordinator.decided is None:
            if begun or coordinator.state.open or coordinator.undecided:
                _abort(coordinator)
            else:
                # The transaction was never begun, so no entry can name the files.
                discard(store, segments)
        raise


def offset_commits(consumed: Iterable[ConsumedOffset]) -> dict[str, list[OffsetCommit]]:
    """The consumed offsets in the form of the groups' logs."""
    commits: dict[str, list[OffsetCommit]] = {}
    for item in consumed:
        moved = OffsetCommit(
            topic=item.topic,
            partition=item.partition,
            offset=item.end,
            compare=True,
            start=item.start,
            topic_id=item.topic_id,
            start_entry=item.start_entry,
        )
        commits.setdefault(item.group_id, []).append(moved)
    return commits


def discard(store: Store, segments: SegmentsByTopic) -> None:
    """Delete the files of segments that are certainly not placed, best effort."""
    for uploaded in segments.values():
        discard_segments(store.storage, uploaded)


@contextmanager
def speak_of_jobs(transactional_id: str) -> Iterator[None]:
    """Adapt the advice of ProducerFenced: a job has no producer that could be closed."""
    try:
        yield
    except ProducerFenced as error:
        why = str(error).removesuffix(FENCED_ADVICE)
        if why == str(error):
            raise
        raise ProducerFenced(
            f"another job, or another run of this one, has taken over transactional id "
            f"{transactional_id!r}, or this run outlived its transaction.timeout.ms: it cannot "
            f"commit any more ({why.rstrip('; ')}). Let only one job with this id run, and start "
            "it again"
        ) from None


@contextmanager
def discard_on_error(store: Store, segments: SegmentsByTopic) -> Iterator[None]:
    """Discard the segments if the block fails, which places none of them."""
    try:
        yield
    except TxnlogError:
        discard(store, segments)
        raise


def _abort(coordinator: Coordinator) -> None:
    """Abort, best effort: the original error matters more than the abort's."""
    try:
        outcome = coordinator.abort()
    except TxnlogError as error:
        _logger.warning("%s is left to be settled by others: %s", coordinator.state.ref, error)
        return
    if outcome is Outcome.COMMIT:
        _logger.warning("%s is committed: the decision had been put", coordinator.state.ref)


def _check_same(coordinator: Coordinator, continued: TransactionRef) -> None:
    if coordinator.state.ref != continued:
        raise ProducerFenced(
            f"{continued} was replaced by {coordinator.state.ref} while this write ran: another "
            "job reads with the same transactional.id. Nothing was written; let only one run"
        )


class StagedWrite(msgspec.Struct, frozen=True, tag_field="kind", tag="staged-write"):
    """The uploaded segments of one write, by topic in the order they are to be placed.

    A write in a ``transaction(...)`` block leaves it from its own driver-side process; the user's
    process, which holds the transaction, reads it when the block ends.
    """

    segments: Annotated[dict[Name, Annotated[list[UploadedSegment], AnyNumber]], AnyNumber]


_DECODER = msgspec.json.Decoder(StagedWrite)


def put_staged(storage: Storage, path: str, segments: SegmentsByTopic) -> None:
    """Leave one. Raises StorageError; then the write counts as failed."""
    staged = StagedWrite({topic: list(uploaded) for topic, uploaded in segments.items()})
    storage.put(path, envelope.encode(staged))


def read_staged(storage: Storage, path: str) -> StagedWrite:
    """Read one. Raises ObjectNotFound, CorruptEntry."""
    return envelope.decode(storage.get(path), _DECODER, f"{storage.url}/{path}")
