"""What a store's methods return: plain data, for annotations and ``match``.

    from txnlog.results import GroupDescription

    def is_behind(group: GroupDescription) -> bool:
        return group.lag > 1000

The classes live beside what makes them; this is the line that is kept from release to release.
Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txnlog.admin.compaction.compact import Compaction
    from txnlog.admin.disk_usage import PartitionUsage
    from txnlog.admin.expiry import Expiry, TransactionEnd
    from txnlog.admin.found import Found
    from txnlog.admin.maintenance import MaintenanceFailure
    from txnlog.admin.merge_topic import Merge
    from txnlog.admin.offsets import ListedOffset
    from txnlog.admin.purge_topic import Purge, PurgeReport
    from txnlog.admin.record_times import FutureRecords
    from txnlog.admin.retention import RetentionDeletion
    from txnlog.admin.storage_step import StorageStep
    from txnlog.admin.vacuum import FileDeletion, FileRetirement
    from txnlog.config import Setting
    from txnlog.doctor.finding import Finding
    from txnlog.inspect.descriptions import (
        GroupDescription,
        GroupOffset,
        HangingTransaction,
        MemberDescription,
        OffsetReset,
        PartitionDescription,
        ProducerDescription,
        RecordDeletion,
        SegmentDescription,
        StableOffset,
        StableOffsetHolder,
        TopicDescription,
        TransactionDescription,
    )
    from txnlog.inspect.history import GroupLogEntry, LoggedOffset
    from txnlog.inspect.log_dump import DumpedEntry
    from txnlog.kafka.export_log_dirs import ExportedPartition, KafkaExport
    from txnlog.kafka.import_log_dirs import DamagedBytes, ImportedPartition, KafkaImport
    from txnlog.kafka.transaction_tracker import OpenTransaction
    from txnlog.metric import Metric
    from txnlog.producer import BeginResult
    from txnlog.read.sound_ranges import DamagedRecords
    from txnlog.schema import FormerName, TopicSchema
    from txnlog.segments.identity import SegmentIdentity
    from txnlog.state.group import CommittedOffset
    from txnlog.state.transaction import EntryRef, Outcome, TransactionRef
    from txnlog.tables.publication import TablePublication
    from txnlog.write.deliveries import FutureRecordMetadata, RecordMetadata

__all__ = [
    "BeginResult",
    "CommittedOffset",
    "Compaction",
    "DamagedBytes",
    "DamagedRecords",
    "DumpedEntry",
    "EntryRef",
    "Expiry",
    "ExportedPartition",
    "FileDeletion",
    "FileRetirement",
    "Finding",
    "FormerName",
    "Found",
    "FutureRecordMetadata",
    "FutureRecords",
    "GroupDescription",
    "GroupLogEntry",
    "GroupOffset",
    "HangingTransaction",
    "ImportedPartition",
    "KafkaExport",
    "KafkaImport",
    "ListedOffset",
    "LoggedOffset",
    "MaintenanceFailure",
    "MemberDescription",
    "Merge",
    "Metric",
    "OffsetReset",
    "OpenTransaction",
    "Outcome",
    "PartitionDescription",
    "PartitionUsage",
    "ProducerDescription",
    "Purge",
    "PurgeReport",
    "RecordDeletion",
    "RecordMetadata",
    "RetentionDeletion",
    "SegmentDescription",
    "SegmentIdentity",
    "Setting",
    "StableOffset",
    "StableOffsetHolder",
    "StorageStep",
    "TablePublication",
    "TopicDescription",
    "TopicSchema",
    "TransactionDescription",
    "TransactionEnd",
    "TransactionRef",
]

_HOMES = {
    "BeginResult": "producer",
    "RecordMetadata": "write.deliveries",
    "CommittedOffset": "state.group",
    "Compaction": "admin.compaction.compact",
    "DamagedBytes": "kafka.import_log_dirs",
    "DamagedRecords": "read.sound_ranges",
    "DumpedEntry": "inspect.log_dump",
    "EntryRef": "state.transaction",
    "Expiry": "admin.expiry",
    "ExportedPartition": "kafka.export_log_dirs",
    "FileDeletion": "admin.vacuum",
    "FileRetirement": "admin.vacuum",
    "Finding": "doctor.finding",
    "FutureRecordMetadata": "write.deliveries",
    "FormerName": "schema",
    "Found": "admin.found",
    "FutureRecords": "admin.record_times",
    "GroupDescription": "inspect.descriptions",
    "GroupLogEntry": "inspect.history",
    "GroupOffset": "inspect.descriptions",
    "HangingTransaction": "inspect.descriptions",
    "ImportedPartition": "kafka.import_log_dirs",
    "KafkaExport": "kafka.export_log_dirs",
    "KafkaImport": "kafka.import_log_dirs",
    "ListedOffset": "admin.offsets",
    "LoggedOffset": "inspect.history",
    "MaintenanceFailure": "admin.maintenance",
    "MemberDescription": "inspect.descriptions",
    "Merge": "admin.merge_topic",
    "Metric": "metric",
    "OffsetReset": "inspect.descriptions",
    "OpenTransaction": "kafka.transaction_tracker",
    "Outcome": "state.transaction",
    "PartitionDescription": "inspect.descriptions",
    "PartitionUsage": "admin.disk_usage",
    "ProducerDescription": "inspect.descriptions",
    "Purge": "admin.purge_topic",
    "PurgeReport": "admin.purge_topic",
    "RecordDeletion": "inspect.descriptions",
    "RetentionDeletion": "admin.retention",
    "SegmentDescription": "inspect.descriptions",
    "SegmentIdentity": "segments.identity",
    "Setting": "config",
    "StableOffset": "inspect.descriptions",
    "StableOffsetHolder": "inspect.descriptions",
    "StorageStep": "admin.storage_step",
    "TablePublication": "tables.publication",
    "TopicDescription": "inspect.descriptions",
    "TopicSchema": "schema",
    "TransactionDescription": "inspect.descriptions",
    "TransactionEnd": "admin.expiry",
    "TransactionRef": "state.transaction",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(f"txnlog.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'txnlog.results' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
