"""Running a step in transactions until a group has read everything there is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession

from txnlog.config import DEFAULT_TRANSACTION_TIMEOUT_MS
from txnlog.errors import CommitFailed, ConcurrentTransactions, InvalidOption, TxnlogError
from txnlog.spark.options.option_values import check_positive
from txnlog.spark.transactions.transaction import SparkTransaction, transaction
from txnlog.store import Store, open_store

_logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """What :func:`catch_up` did: how many transactions it committed, and their records."""

    transactions: int
    consumed_records: int
    written_records: int


def catch_up(
    spark: SparkSession,
    path: str | Store,
    step: Callable[[SparkTransaction], None],
    *,
    transactional_id: str,
    group_id: str,
    max_records: int | None = None,
    max_transactions: int | None = None,
    storage_options: Mapping[str, object] | None = None,
    transaction_timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS,
) -> CaughtUp:
    """Run ``step`` in one transaction after another until the group has read everything.

        def step(txn):
            orders = txn.read("orders")
            txn.write(orders.where("value is not null"), topic="paid")

        catch_up(spark, root, step, transactional_id="etl", group_id="etl", max_records=1_000_000)

    The first step that finds nothing to read is the last one: what it wrote is dropped, not
    committed. If another job of the group commits the same records first, this step's work is
    dropped, and the next transaction goes on behind them. While a transaction of somebody else's
    that moves the group is not decided the step is run again, after pauses that grow from 0.1 to 10
    seconds, for as long as the store lets a transaction take (``transaction.max.timeout.ms``).

    Args:
        spark: the session that reads and writes.
        path: the store's folder or URL, or an open store.
        step: reads with ``txn.read`` and writes with ``txn.write``, as inside a ``with`` block.
        transactional_id: names the job, as in :func:`transaction`.
        group_id: the group that is to catch up.
        max_records: the most that one ``read`` returns.
        max_transactions: run the step at most this often, even if there is more to read; attempts
            that lost to another job count.
        storage_options: for the filesystem, as in :func:`transaction`.
        transaction_timeout_ms: the most that one commit may take.

    Raises:
        InvalidOption: the step reads nothing, or sets its own start, so that it would never end.
        CommitFailed, ConcurrentTransactions: all of ``max_transactions`` lost to another job.
        TxnlogError: a transaction failed; those before it are committed.
    """
    check_positive("max_transactions", max_transactions)
    options = dict(storage_options or {})
    store = path if isinstance(path, Store) else open_store(path, storage_options=options)
    clock = store.logs.clock
    longest_s = store.logs.config.transaction_max_timeout_ms / 1000
    attempts = count = consumed = written = 0
    waited_s = 0.0
    lost: TxnlogError | None = None
    while max_transactions is None or attempts < max_transactions:
        attempts += 1
        block = transaction(
            spark,
            store,
            transactional_id=transactional_id,
            group_id=group_id,
            max_records=max_records,
            storage_options=storage_options,
            transaction_timeout_ms=transaction_timeout_ms,
        )
        try:
            with block as txn:
                step(txn)
                if not txn.has_read:
                    raise InvalidOption(
                        "the step of catch_up() did not call txn.read(): nothing would ever tell "
                        "it that it has caught up; use transaction(...) for a job without a read"
                    )
                if not txn.follows_group:
                    raise InvalidOption(
                        "the step of catch_up() tells txn.read() where to start, so it would read "
                        "the same records in every transaction, without end; set the group's "
                        "offsets before, with store.groups.reset_offsets(...)"
                    )
                if txn.consumed_records == 0:
                    # Offsets may move all the same, over what was aborted.
                    txn.discard_writes()
        except CommitFailed as error:
            _logger.info("another job committed first; going on after it: %s", error)
            waited_s = 0.0
            lost = error
            continue
        except ConcurrentTransactions as error:
            if waited_s >= longest_s:
                raise
            # Doubles what was waited: steps are whole jobs of Spark's.
            pause_s = min(max(waited_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            _logger.info("another job is about to commit; again in %.1f s: %s", pause_s, error)
            clock.sleep(pause_s)
            waited_s += pause_s
            lost = error
            continue
        waited_s = 0.0
        if txn.consumed_records == 0:
            break
        count += 1
        consumed += txn.consumed_records
        written += txn.result.written_records
    else:
        if lost is not None and count == 0:
            raise lost
    return CaughtUp(count, consumed, written)
