"""txnlog: Kafka's transactional log without Kafka, on any filesystem with put-if-absent.

    import txnlog

    store = txnlog.open("/data/store", create=True)
    store.topics.create("orders", partitions=8)
    with store.producer() as producer:
        producer.send("orders", value=b"...", key=b"...")
    store.scan("orders").to_arrow()

Names are loaded when they are first used, so importing the package is cheap. The public API is
what is in ``__all__`` here, in :mod:`txnlog.errors`, :mod:`txnlog.replication`,
:mod:`txnlog.results`, :mod:`txnlog.spark`, :mod:`txnlog.storage`, :mod:`txnlog.testing` and
:mod:`txnlog.values`; every other module may change from one release to the next.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from txnlog.hooks import lazily

__version__ = "0.1.0"

if TYPE_CHECKING:
    from txnlog.admin.groups import GroupAdmin
    from txnlog.admin.kafka import KafkaAdmin
    from txnlog.admin.maintenance_admin import MaintenanceAdmin
    from txnlog.admin.tables import TableAdmin
    from txnlog.admin.topics import TopicAdmin
    from txnlog.admin.transactions import TransactionAdmin
    from txnlog.config import AcksValue, AutoOffsetReset, CompressionType, OnCorrupt
    from txnlog.consumer import Consumer
    from txnlog.consumer_config import ConsumerConfig
    from txnlog.errors import TxnlogError
    from txnlog.groups.assignment import Assignor
    from txnlog.groups.rebalance import ConsumerRebalanceListener
    from txnlog.log.group_metadata import GroupMetadata, OffsetAndMetadata
    from txnlog.names import TopicPartition
    from txnlog.producer import Producer
    from txnlog.read.changed_rows import ChangeFeed
    from txnlog.read.consumer_reads import ConsumerRecord
    from txnlog.read.isolation_levels import Consistency, ConsumerIsolationLevel, IsolationLevel
    from txnlog.read.offset_for_time import OffsetAndTimestamp
    from txnlog.scan import Scan
    from txnlog.schemas import SchemaAdmin
    from txnlog.snapshot import Snapshot
    from txnlog.store import Store, attach
    from txnlog.store import open_store as open

__all__ = [
    "AcksValue",
    "Assignor",
    "AutoOffsetReset",
    "ChangeFeed",
    "CompressionType",
    "Consistency",
    "Consumer",
    "ConsumerConfig",
    "ConsumerIsolationLevel",
    "ConsumerRebalanceListener",
    "ConsumerRecord",
    "GroupAdmin",
    "GroupMetadata",
    "IsolationLevel",
    "KafkaAdmin",
    "MaintenanceAdmin",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OnCorrupt",
    "Producer",
    "Scan",
    "SchemaAdmin",
    "Snapshot",
    "Store",
    "TableAdmin",
    "TopicAdmin",
    "TopicPartition",
    "TransactionAdmin",
    "TxnlogError",
    "__version__",
    "attach",
    "errors",
    "open",
    "results",
]

_HOMES = {
    "admin.groups": ("GroupAdmin",),
    "admin.kafka": ("KafkaAdmin",),
    "admin.maintenance_admin": ("MaintenanceAdmin",),
    "admin.tables": ("TableAdmin",),
    "admin.topics": ("TopicAdmin",),
    "admin.transactions": ("TransactionAdmin",),
    "config": ("AcksValue", "AutoOffsetReset", "CompressionType", "OnCorrupt"),
    "consumer": ("Consumer",),
    "consumer_config": ("ConsumerConfig",),
    "errors": ("TxnlogError",),
    "groups.assignment": ("Assignor",),
    "groups.rebalance": ("ConsumerRebalanceListener",),
    "log.group_metadata": ("GroupMetadata", "OffsetAndMetadata"),
    "names": ("TopicPartition",),
    "producer": ("Producer",),
    "read.changed_rows": ("ChangeFeed",),
    "read.consumer_reads": ("ConsumerRecord",),
    "read.isolation_levels": ("Consistency", "ConsumerIsolationLevel", "IsolationLevel"),
    "read.offset_for_time": ("OffsetAndTimestamp",),
    "scan": ("Scan",),
    "schemas": ("SchemaAdmin",),
    "snapshot": ("Snapshot",),
    "store": ("Store", "attach"),
}

_load, __dir__ = lazily(globals(), _HOMES)


def __getattr__(name: str) -> object:
    if name in ("errors", "results"):
        return import_module(f"txnlog.{name}")
    return import_module("txnlog.store").open_store if name == "open" else _load(name)
