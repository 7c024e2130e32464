"""From options to plans: opens the store, on the driver's side, for a read or a write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from txnlog.spark import provenance
from txnlog.spark.options import ReadOptions, WriteOptions, parse_read, parse_write
from txnlog.spark.planning import ReadPlan, pin
from txnlog.store import Store, open_store
from txnlog.write.coordinator import Coordinator

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from txnlog.log.topic_log import TopicSpec
    from txnlog.spark.stream_writer import TxnlogStreamWriter
    from txnlog.spark.writer import TxnlogWriter


def plan_read(given: Mapping[str, str]) -> ReadPlan:
    """Pin a read; with a transactional id, begin its transaction.

    Raises:
        InvalidOption: the options are unknown, malformed or contradict each other.
        TxnlogError: the store, a topic or an offset is not there.
    """
    options = parse_read(given)
    store = open_given(options)
    coordinator = None
    if options.transactional_id is not None:
        # Before the group is looked at: an older instance's offsets are settled by this.
        coordinator = _initialized(store, options)
    pinned = pin(store, options)
    origin = None
    if coordinator is not None:
        assert options.group_id is not None
        provenance.sweep(store, coordinator.transactional_id)
        coordinator.begin(consumed=pinned.consumed(options.group_id))
        origin = provenance.origin_of(store, coordinator.state)
    return ReadPlan(store.storage, options.columns, options.task_sizes, pinned.ranges, origin)


def open_given(options: ReadOptions | WriteOptions) -> Store:
    """The store that options name."""
    return open_store(
        options.path,
        storage_options=options.storage_options,
        unsafe_single_writer=options.unsafe_single_writer,
    )


def _initialized(store: Store, options: ReadOptions) -> Coordinator:
    assert options.transactional_id is not None
    timeout_ms = options.transaction_timeout_ms or default_timeout_ms(store)
    coordinator = Coordinator(store.logs, options.transactional_id, timeout_ms)
    coordinator.initialize()
    return coordinator


def default_timeout_ms(store: Store) -> int:
    """The longest that the store allows.

    A transaction that is begun when a DataFrame is loaded lasts as long as the job; it holds
    nobody up, because nothing is placed before its end.
    """
    return store.logs.config.transaction_max_timeout_ms


def plan_write(given: Mapping[str, str], schema: StructType) -> TxnlogWriter:
    """Check a write before any task runs.

    Raises:
        InvalidOption, InvalidRecord: the options or columns are not those of a write.
        InvalidTxnState: the rows were read in a transaction that this write does not commit.
        TxnlogError: the store or a topic is not there.
    """
    from txnlog.spark.writer import TxnlogWriter, writing_of

    options = parse_write(given)
    store, used, spec = _checked(options, schema)
    continued = None
    if options.transactional_id is not None and options.staging is None:
        from txnlog.spark.publishing import continued_transaction

        continued = continued_transaction(store, options.transactional_id)
    provenance.check_columns(store, schema, writing_of(options, continued))
    return TxnlogWriter(store, options, tuple(schema.names), used, spec, continued)


def plan_stream_write(given: Mapping[str, str], schema: StructType) -> TxnlogStreamWriter:
    """Check one batch of a streaming write. Raises InvalidOption, InvalidRecord, TxnlogError."""
    from txnlog.spark.stream_writer import WRITING, TxnlogStreamWriter

    options = parse_write(given, streaming=True)
    store, used, spec = _checked(options, schema)
    provenance.check_columns(store, schema, WRITING)
    return TxnlogStreamWriter(store, options, tuple(schema.names), used, spec)


def _checked(
    options: WriteOptions, schema: StructType
) -> tuple[Store, tuple[str, ...], TopicSpec | None]:
    """The store, the columns that count, and the topic if the options name it."""
    from txnlog.spark.rows import check_writable

    used = check_writable(schema, options.topic, options.include_headers)
    store = open_given(options)
    spec = None if options.topic is None else store.topic_spec(options.topic)
    if spec is not None:
        spec.written_with(options.codec)  # what cannot be is said before any task runs
    return store, tuple(used), spec
