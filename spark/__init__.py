"""txnlog in PySpark: the data source ``format("txnlog")``, ``transaction(...)``, ``foreach_batch``.

    from txnlog.spark import transaction

    with transaction(spark, "/data/store", transactional_id="etl", group_id="etl") as txn:
        orders = txn.read("orders")
        txn.write(orders.where("value is not null"), topic="paid")

Names are loaded when they are first used, so that looking the format up is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txnlog.spark.catching_up import CaughtUp, catch_up
    from txnlog.spark.micro_batches import foreach_batch
    from txnlog.spark.registration import register
    from txnlog.spark.shuffling import shuffle_by_partition
    from txnlog.spark.source import TxnlogDataSource
    from txnlog.spark.transactions import SparkTransaction, TransactionResult, transaction

__all__ = [
    "CaughtUp",
    "SparkTransaction",
    "TransactionResult",
    "TxnlogDataSource",
    "catch_up",
    "foreach_batch",
    "register",
    "shuffle_by_partition",
    "transaction",
]

_HOMES = {
    "CaughtUp": "catching_up",
    "SparkTransaction": "transactions",
    "TransactionResult": "transactions",
    "TxnlogDataSource": "source",
    "catch_up": "catching_up",
    "foreach_batch": "micro_batches",
    "register": "registration",
    "shuffle_by_partition": "shuffling",
    "transaction": "transactions",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(f"txnlog.spark.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'txnlog.spark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
