"""``foreach_batch``: every micro-batch of a streaming query in a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame

from txnlog.config import DEFAULT_TRANSACTION_TIMEOUT_MS
from txnlog.errors import InvalidOption
from txnlog.spark.batch.provenance import QUERY_ID
from txnlog.spark.stream.commit_once import default_transactional_id, query_batch
from txnlog.spark.transactions.transaction import SparkTransaction, transaction
from txnlog.store import Store, open_store


def foreach_batch(
    path: str | Store,
    function: Callable[[SparkTransaction, DataFrame], None],
    *,
    transactional_id: str | None = None,
    storage_options: Mapping[str, object] | None = None,
    transaction_timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS,
) -> Callable[[DataFrame, int], None]:
    """Turn a function into one for ``writeStream.foreachBatch``.

        def fan_out(txn, batch):
            txn.write(batch.where(...), topic="paid")
            txn.write(batch.where(...), topic="dead-letters")

        stream.writeStream.foreachBatch(foreach_batch("/data/store", fan_out)).start()

    Everything that ``function`` writes through ``txn`` is committed when it returns, all at once
    and exactly once: if Spark repeats a batch after a failure, it is recognised by the ids of query
    and batch, and ``function`` is not called. An exception commits nothing and fails the query.

    Args:
        path: the store to write to: its folder or URL, or an open store.
        function: called with an open transaction and the batch.
        transactional_id: instead of one made from the query's id; for one query only.
        storage_options: as for :func:`txnlog.spark.transaction`.
        transaction_timeout_ms: the same.

    Raises:
        StoreNotFound: there is no store. The other errors fail the query when a batch comes.
        InvalidTxnState: the transactional id belongs to another query, or the query's checkpoint
            was set back to an older state.
        InvalidOption: it was not called by a streaming query.
    """
    options = dict(storage_options or {})
    store = path if isinstance(path, Store) else open_store(path, storage_options=options)

    def process(batch: DataFrame, batch_id: int) -> None:
        spark = batch.sparkSession
        context = getattr(spark, "sparkContext", None)  # a session of Spark Connect has none
        query_id = context.getLocalProperty(QUERY_ID) if context else None
        if not query_id:
            raise InvalidOption(
                "foreach_batch(...) makes a function for writeStream.foreachBatch; it was called "
                "outside of a streaming query, or on Spark Connect, which does not name the query"
            )
        application_id, version = query_batch(query_id, batch_id)
        with transaction(
            spark,
            store,
            transactional_id=transactional_id or default_transactional_id(query_id),
            storage_options=options,
            transaction_timeout_ms=transaction_timeout_ms,
            application_id=application_id,
            version=version,
        ) as txn:
            if not txn.already_committed:
                function(txn, batch)

    return process
