"""Every error of txnlog, in one place, with Kafka's names where Kafka has one.

The tree is grouped by who is at fault; the three booleans on each class (see
:class:`~txnlog.segments.errors.TxnlogError`) say what a handler can do. Messages say what
happened, where (path, topic, partition, offset) and what to do about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txnlog.segments.errors import (
    CorruptRecord,
    RecordTooLarge,
    TxnlogError,
    UnsupportedCompression,
    UnsupportedRecordFormat,
)

__all__ = [
    "BridgeFailed",
    "CommitFailed",
    "CommitStateUnknown",
    "ConcurrentTransactions",
    "CorruptEntry",
    "CorruptRecord",
    "CorruptTransactionState",
    "FencedInstanceId",
    "ForkedProducer",
    "GroupIdNotFound",
    "GroupNotEmpty",
    "IllegalGeneration",
    "IllegalState",
    "IncompleteResult",
    "InconsistentGroupProtocol",
    "InvalidConfig",
    "InvalidGroupId",
    "InvalidOption",
    "InvalidPartitions",
    "InvalidProducerEpoch",
    "InvalidRecord",
    "InvalidSchema",
    "InvalidTimestamp",
    "InvalidTopic",
    "InvalidTransactionTimeout",
    "InvalidTransactionalId",
    "InvalidTxnState",
    "LogTruncated",
    "NoOffsetForPartition",
    "NotAStore",
    "NotEnoughReplicas",
    "ObjectNotFound",
    "OffsetMetadataTooLarge",
    "OffsetOutOfRange",
    "OutOfOrderSequence",
    "OutdatedController",
    "ProducerFenced",
    "PutIfAbsentBroken",
    "RebalanceInProgress",
    "RecordDeserializationFailed",
    "RecordTooLarge",
    "SnapshotExpired",
    "StorageError",
    "StoreExists",
    "StoreNotFound",
    "TopicAlreadyExists",
    "TransactionalIdNotFound",
    "TxnlogError",
    "UnknownMemberId",
    "UnknownSchema",
    "UnknownTopicOrPartition",
    "UnsupportedCompression",
    "UnsupportedFilesystem",
    "UnsupportedRecordFormat",
    "UnsupportedVersion",
    "UploadExpired",
    "Wakeup",
]


# -- storage -----------------------------------------------------------------------------------


class StorageError(TxnlogError):
    """A request to the filesystem failed; whether it had an effect is unknown.

    The original exception is the ``__cause__``.
    """

    retriable = True


class ObjectNotFound(StorageError):
    """There is no object with this name."""

    retriable = False


class NotEnoughReplicas(StorageError):
    """Fewer roots of a replicated store are in sync, or can be reached, than the request needs.

    Nothing was acknowledged; what was written may still show later, as after any failed request.
    It works again when roots come back, or are added.
    """


class OutdatedController(StorageError):
    """Roots of a replicated store know an epoch that its controller does not have.

    It was restored from a backup, or another one was made in its place: docs/REPLICAS.md says what
    to do. Nothing was acknowledged.
    """

    retriable = False


class LogTruncated(TxnlogError):
    """An unclean election was held since this process opened the store: logs may have lost entries.

    What it knows of them, and what it has written and not committed yet, may be gone; nothing has
    been acknowledged since. Reopen the store.
    """

    fatal = True


class UnsupportedFilesystem(TxnlogError):
    """The filesystem has no atomic put-if-absent that txnlog knows how to use."""


class PutIfAbsentBroken(TxnlogError):
    """The probe found that the filesystem lets two writers create the same name."""


# -- the store and what is in it ---------------------------------------------------------------


class StoreNotFound(TxnlogError):
    """The folder does not exist or is empty; ``create=True`` makes it a store."""


class StoreExists(TxnlogError):
    """The folder is a store already, with settings other than those asked for."""


class NotAStore(TxnlogError):
    """The folder holds other files and is not a txnlog store."""


class UnsupportedVersion(TxnlogError):
    """Something was written by a newer txnlog, in a format this version does not know."""


class IncompleteResult(TxnlogError):
    """Some of many things could not be read, or not be done; all the others were.

    Attributes:
        errors: what was wrong with each of them.
    """

    def __init__(self, errors: Sequence[TxnlogError]) -> None:
        super().__init__(errors)
        self.errors = (*errors,)

    def __str__(self) -> str:
        if len(self.errors) == 1:
            return str(self.errors[0])
        told = "".join(f"\n- {error}" for error in self.errors)
        return f"{len(self.errors)} things failed, and the others did not:{told}"


class CorruptEntry(TxnlogError):
    """A log entry, checkpoint or store file is damaged: it does not decode to what was written."""


class CorruptTransactionState(CorruptEntry):
    """The newest state of a transactional id is damaged or gone.

    Its transaction is treated as aborted when the store's longest timeout has passed, unless a
    commit marker shows that it was committed; ``Store.transactions.abort(..., force=True)`` does so
    at once.
    """


# -- what the caller asked for ---------------------------------------------------------------------


class InvalidTopic(TxnlogError):
    """The topic's name is not 1 to 249 of ``[a-zA-Z0-9._-]``, or it is ``.`` or ``..``."""


class InvalidGroupId(TxnlogError):
    """The group id is empty or too long."""


class InvalidTransactionalId(TxnlogError):
    """The transactional id is empty or too long."""


class InvalidTransactionTimeout(TxnlogError):
    """The timeout is not between 1 ms and the store's ``transaction.max.timeout.ms``."""


class InvalidConfig(TxnlogError):
    """A configuration key is unknown, or its value is out of range."""


class InvalidSchema(TxnlogError):
    """A typed topic cannot have these columns, or this key."""


class InvalidPartitions(TxnlogError):
    """A partition count or number is out of range, or would shrink a topic."""


class InvalidOption(TxnlogError):
    """An argument or option is unknown, missing, malformed, or contradicts another one."""


class InvalidRecord(TxnlogError):
    """A record, or a batch, does not have the columns, types or values that the topic takes."""

    abortable = True


class InvalidTimestamp(InvalidRecord):
    """A record's timestamp lies further from now than the topic's settings allow."""


class TopicAlreadyExists(TxnlogError):
    """A topic with this name exists already."""


class UnknownTopicOrPartition(TxnlogError):
    """There is no such topic, or it has no such partition, or it was deleted and recreated."""


class GroupIdNotFound(TxnlogError):
    """The consumer group has never committed an offset."""


class TransactionalIdNotFound(TxnlogError):
    """No producer has ever been initialised with this transactional id."""


class IllegalState(TxnlogError):
    """The call does not fit what was called before it (a closed consumer, no assignment, ...)."""


# -- producing -------------------------------------------------------------------------------------


class ProducerFenced(TxnlogError):
    """A newer producer with the same transactional id has taken over; this one is finished.

    ``ended_alone``: no newer one has; the transaction was aborted because it outlived its timeout,
    say while the computer slept, or by an operator.
    """

    fatal = True
    ended_alone = False


class InvalidProducerEpoch(ProducerFenced):
    """A batch carries a producer epoch older than one the topic has seen."""


class ForkedProducer(TxnlogError):
    """A producer, or a transaction of Spark, is used in a child of the process that made it.

    Its records would be written twice, or with the other one's numbers. Make a new one in the
    child.
    """

    fatal = True


class OutOfOrderSequence(TxnlogError):
    """A batch's sequence number is neither the next one nor that of a recent batch."""

    abortable = True


class UploadExpired(TxnlogError):
    """Uploaded records waited so long for their commit that vacuum took them for abandoned.

    Nothing was committed: write them again.
    """

    abortable = True


class InvalidTxnState(TxnlogError):
    """The transaction is in a state that does not allow the call."""


class ConcurrentTransactions(TxnlogError):
    """A transaction that is not decided yet is in the way; try again later."""

    retriable = True
    abortable = True


class CommitFailed(TxnlogError):
    """The consumer group has moved on since these offsets were read; nothing was committed.

    Somebody else has committed the same records. Abort, read from the group's offsets again, and
    repeat the work.
    """

    abortable = True


class IllegalGeneration(CommitFailed):
    """These partitions were reassigned after the records were read, even if to the same member.

    Abort what was done with the records and poll: the consumer goes on with what it owns now.
    """


class RebalanceInProgress(CommitFailed):
    """The member has given up its partitions, and waits for new ones.

    Abort what was done with their records and poll: that takes part in the rebalance.
    """


class UnknownMemberId(CommitFailed):
    """The group has removed this member: it was silent, or did not poll, for too long.

    Abort what was done with the records and poll: the consumer joins again as a new member.
    """


class FencedInstanceId(CommitFailed):
    """Another consumer has joined with the same ``group_instance_id``; close this one."""


class GroupNotEmpty(TxnlogError):
    """The group has members; this call is for groups without members, unless it is forced."""

    abortable = True


class InconsistentGroupProtocol(TxnlogError):
    """The consumer that wants to join has no assignor in common with the group's members."""


class OffsetMetadataTooLarge(TxnlogError):
    """The metadata of a committed offset takes more than 4096 bytes."""

    abortable = True


class CommitStateUnknown(TxnlogError):
    """The storage failed in such a way that a commit may or may not have happened.

    Nothing was deleted. Call ``commit_transaction`` again to learn the outcome, or
    ``init_transactions`` with the same transactional id, which settles it.
    """

    retriable = True


# -- consuming -------------------------------------------------------------------------------------


class SnapshotExpired(TxnlogError):
    """The segments that a read was planned for have been rewritten since, and are deleted by now.

    They were merged or compacted, longer ago than the topic's ``file.delete.delay.ms``; or records
    in them were purged, which nobody is shown. The others are in new segments: plan the read again.
    """


class OffsetOutOfRange(TxnlogError):
    """The offset lies below the log start offset or beyond the end of the partition."""


class NoOffsetForPartition(TxnlogError):
    """The group has no committed offset here and ``auto_offset_reset`` is ``none``."""


class RecordDeserializationFailed(TxnlogError):
    """A consumer's ``key_deserializer`` or ``value_deserializer`` raised: see ``__cause__``.

    The consumer stays before the record; to pass it by, seek to the offset after it.
    """

    where: Any
    """The record's TopicPartition."""
    offset: int


class UnknownSchema(TxnlogError):
    """A registry has no schema with this id, or no such subject or version."""


class BridgeFailed(TxnlogError):
    """A bridge to Kafka cannot go on: what it has committed stays, and it goes on there next time.

    ``retriable`` says that trying again may help.
    """


class Wakeup(TxnlogError):
    """Another thread called the ``wakeup()`` of the consumer that polled. Nothing was lost."""


# -- remedies --------------------------------------------------------------------------------------


def how_to_install(extra: str) -> str:
    """The command that installs the packages of an extra, by their own names.

    txnlog is not published, so pip may not know ``txnlog[extra]``.
    """
    from importlib.metadata import PackageNotFoundError, requires

    try:
        found = requires("txnlog") or []
    except PackageNotFoundError:
        found = []
    packages = [
        package.strip()
        for package, _, condition in (requirement.partition(";") for requirement in found)
        if condition.replace("'", '"').strip() == f'extra == "{extra}"'
    ]
    if not packages:
        return f"pip install '.[{extra}]' in a clone of txnlog"
    return " ".join(["pip install", *(f"'{package}'" for package in packages)])


def require_package(package: str, extra: str, what: str = "this") -> None:
    """Raise InvalidOption unless an optional library is installed."""
    from importlib.util import find_spec

    try:
        found = find_spec(package)
    except ModuleNotFoundError:  # of a package that it is in
        found = None
    if found is None:
        raise InvalidOption(f"{what} needs {package}: {how_to_install(extra)}")
