"""txnlog in PySpark: ``format("txnlog")``, ``read``, ``transaction(...)``, ``foreach_batch``.

    from txnlog.spark import transaction

    with transaction(spark, "/data/store", transactional_id="etl", group_id="etl") as txn:
        orders = txn.read("orders")
        txn.write(orders.where("value is not null"), topic="paid")

Names are loaded when they are first used, so that looking the format up is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnlog.hooks import lazily

if TYPE_CHECKING:
    from txnlog.spark.batch.decoded_values import decode_values
    from txnlog.spark.batch.shuffle_by_partition import shuffle_by_partition
    from txnlog.spark.batch_read import read
    from txnlog.spark.maintenance import maintain
    from txnlog.spark.registration import register
    from txnlog.spark.setup_check import CheckStep, SetUpCheck, check
    from txnlog.spark.source import TxnlogDataSource
    from txnlog.spark.transactions.catch_up import CaughtUp, catch_up
    from txnlog.spark.transactions.foreach_batch import foreach_batch
    from txnlog.spark.transactions.result import TransactionResult
    from txnlog.spark.transactions.transaction import SparkTransaction, transaction

__all__ = [
    "CaughtUp",
    "CheckStep",
    "SetUpCheck",
    "SparkTransaction",
    "TransactionResult",
    "TxnlogDataSource",
    "catch_up",
    "check",
    "decode_values",
    "foreach_batch",
    "maintain",
    "read",
    "register",
    "shuffle_by_partition",
    "transaction",
]

_HOMES = {
    "batch.decoded_values": ("decode_values",),
    "batch.shuffle_by_partition": ("shuffle_by_partition",),
    "batch_read": ("read",),
    "maintenance": ("maintain",),
    "registration": ("register",),
    "setup_check": ("CheckStep", "SetUpCheck", "check"),
    "source": ("TxnlogDataSource",),
    "transactions.catch_up": ("CaughtUp", "catch_up"),
    "transactions.foreach_batch": ("foreach_batch",),
    "transactions.result": ("TransactionResult",),
    "transactions.transaction": ("SparkTransaction", "transaction"),
}

_load, __dir__ = lazily(globals(), _HOMES)


def __getattr__(name: str) -> object:
    try:
        return _load(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyspark":  # or one that is too old
            raise
        from txnlog.errors import how_to_install

        remedy = f"txnlog.spark needs pyspark: {how_to_install('spark')}"
        raise ModuleNotFoundError(remedy, name=error.name) from error
