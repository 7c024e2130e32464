"""Which errors are retriable, abortable and fatal: all of them, beside Kafka's own judgement.

The judge for what is retriable is kafka-python, which shares no code with us. What a handler may
rely on is tested with a producer that meets each of them.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Iterator

import pytest

import txnlog
from tests.support.steps import begin
from txnlog import errors
from txnlog.errors import InvalidTxnState, TxnlogError
from txnlog.store import Store

FATAL = {"ForkedProducer", "InvalidProducerEpoch", "LogTruncated", "ProducerFenced"}
ABORTABLE = {
    "CommitFailed",
    "ConcurrentTransactions",
    "FencedInstanceId",
    "GroupNotEmpty",
    "IllegalGeneration",
    "InvalidRecord",
    "InvalidTimestamp",
    "OffsetMetadataTooLarge",
    "OutOfOrderSequence",
    "RebalanceInProgress",
    "RecordTooLarge",
    "SegmentTooLarge",
    "TooManyFields",
    "UnknownMemberId",
    "UploadExpired",
}
RETRIABLE = {
    "CannotReplace",
    "CommitStateUnknown",
    "ConcurrentTransactions",
    "Damaged",
    "Diverged",
    "MarkGone",
    "NotEnoughReplicas",
    "StorageError",
    "TookTooLong",
    "_HandedOver",
}
CALLERS_MISTAKE_OR_STATE_OF_THE_STORE = {
    "BridgeFailed",
    "CorruptEntry",
    "CorruptRecord",
    "CorruptTransactionState",
    "GroupIdNotFound",
    "IllegalState",
    "IncompleteResult",
    "InconsistentGroupProtocol",
    "InvalidConfig",
    "InvalidGroupId",
    "InvalidOption",
    "InvalidPartitions",
    "InvalidSchema",
    "InvalidTopic",
    "InvalidTransactionTimeout",
    "InvalidTransactionalId",
    "InvalidTxnState",
    "NoOffsetForPartition",
    "NotAStore",
    "ObjectNotFound",
    "OffsetOutOfRange",
    "OutdatedController",
    "PutIfAbsentBroken",
    "RecordDeserializationFailed",
    "SnapshotExpired",
    "StoreExists",
    "StoreNotFound",
    "TopicAlreadyExists",
    "TransactionalIdNotFound",
    "UnknownCodec",
    "UnknownMagic",
    "UnknownSchema",
    "UnknownTopicOrPartition",
    "UnnamedUrl",
    "Unresolvable",
    "UnsupportedCompression",
    "UnsupportedFilesystem",
    "UnsupportedRecordFormat",
    "UnsupportedVersion",
    "Wakeup",
}

OTHER_NAMES = {"OutOfOrderSequence": "OutOfOrderSequenceNumberError"}
DIFFERENT = {
    "UnknownTopicOrPartition": "a client's metadata may be old, a listing never is",
}
"""Where Kafka says otherwise of retriable, and why we do not."""


def every_class() -> dict[str, type[TxnlogError]]:
    """Every error class of the package, wherever it is defined."""
    for module in pkgutil.walk_packages(txnlog.__path__, "txnlog."):
        if not module.name.startswith(("txnlog.spark", "txnlog.cli")):
            importlib.import_module(module.name)

    def below(of: type[TxnlogError]) -> Iterator[type[TxnlogError]]:
        for kind in of.__subclasses__():
            yield kind
            yield from below(kind)

    return {kind.__name__: kind for kind in below(TxnlogError)}


CLASSES = every_class()


def test_every_class_is_judged() -> None:
    """A new error must be put into one of the lists above, on purpose."""
    found = {
        "fatal": {name for name, kind in CLASSES.items() if kind.fatal},
        "abortable": {name for name, kind in CLASSES.items() if kind.abortable},
        "retriable": {name for name, kind in CLASSES.items() if kind.retriable},
    }
    assert found == {"fatal": FATAL, "abortable": ABORTABLE, "retriable": RETRIABLE}
    assert set(CLASSES) - FATAL - ABORTABLE - RETRIABLE == CALLERS_MISTAKE_OR_STATE_OF_THE_STORE
    assert FATAL.isdisjoint(ABORTABLE | RETRIABLE)


def test_kafkas_clients_agree_on_what_is_retriable() -> None:
    """Every error that Kafka has by this name, but for those with a reason."""
    with warnings.catch_warnings():
        # Importing it warns of what it does with importlib; that is not ours to mend.
        warnings.simplefilter("ignore", DeprecationWarning)
        judge = importlib.import_module("kafka.errors")
    compared = []
    for name, kind in CLASSES.items():
        theirs = getattr(judge, OTHER_NAMES.get(name, f"{name}Error"), None)
        if theirs is None:
            continue
        compared.append(name)
        assert (bool(theirs.retriable) != kind.retriable) == (name in DIFFERENT), name
    assert len(compared) > 18
    assert {"ConcurrentTransactions", "OutOfOrderSequence", "ProducerFenced"} <= set(compared)


def test_public_errors_are_in_one_place() -> None:
    """All errors can be imported from txnlog.errors."""
    inner = {"Diverged", "MarkGone", "SegmentTooLarge", "UnknownCodec", "UnknownMagic"}
    inner |= {"CannotReplace", "Damaged", "TookTooLong", "UnnamedUrl", "_HandedOver"}
    inner |= {"TooManyFields", "Unresolvable"}
    assert set(errors.__all__) == set(CLASSES) - inner | {"TxnlogError"}


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_what_a_producer_does_after_each(store: Store, name: str) -> None:
    """A fatal one ends the producer; after any other, inside a transaction, only abort is left."""
    kind = CLASSES[name]
    producer = begin(store, "p")
    producer.send("t", b"x")
    coordinator = producer._coordinator
    assert coordinator is not None
    place = coordinator.place

    def failing(*_: object) -> object:
        raise kind("for a test")

    coordinator.place = failing  # type: ignore[method-assign, assignment]
    with pytest.raises(kind):
        producer.commit_transaction()
    coordinator.place = place  # type: ignore[method-assign]
    if kind.fatal:
        for call in (producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(InvalidTxnState, match="fenced"):
                call()
        return
    with pytest.raises(InvalidTxnState, match="only be aborted"):
        producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction():
        producer.send("t", b"next")
    assert store.scan("t").to_arrow().column("value").to_pylist() == [b"next"]
