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
    from txnlog.admin.maintenance import MaintenanceFailure
    from txnlog.admin.merging import Merge
    from txnlog.admin.metrics import Metric
    from txnlog.admin.offsets import ListedOffset
    from txnlog.admin.record_times import FutureRecords
    from txnlog.admin.retention import RetentionDeletion
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
    from txnlog.kafka.exporting import ExportedPartition, KafkaExport
    from txnlog.kafka.importing import DamagedBytes, ImportedPartition, KafkaImport
    from txnlog.kafka.transaction_tracker import OpenTransaction
    from txnlog.read.sound_ranges import DamagedRecords
    from txnlog.schema import FormerName, TopicSchema
    from txnlog.segments.identity import SegmentIdentity
    from txnlog.state.group import CommittedOffset
    from txnlog.state.placement import KafkaFile, Placement, RewrittenFile
    from txnlog.state.producers import ProducerRef
    from txnlog.state.rewrites import Rewritten
    from txnlog.state.topic_entries import (
        Altered,
        Append,
        Appends,
        Bundle,
        Created,
        Deleted,
        Imported,
        OffsetSpan,
        Trimmed,
    )
    from txnlog.state.transaction import EntryRef, Outcome, TransactionRef
    from txnlog.tables.publication import TablePublication
    from txnlog.write.begin_result import BeginResult
    from txnlog.write.deliveries import Delivery, RecordMetadata

__all__ = [
    "Altered",
    "Append",
    "Appends",
    "BeginResult",
    "Bundle",
    "CommittedOffset",
    "Compaction",
    "Created",
    "DamagedBytes",
    "DamagedRecords",
    "Deleted",
    "Delivery",
    "DumpedEntry",
    "EntryRef",
    "Expiry",
    "ExportedPartition",
    "FileDeletion",
    "FileRetirement",
    "Finding",
    "FormerName",
    "FutureRecords",
    "GroupDescription",
    "GroupLogEntry",
    "GroupOffset",
    "HangingTransaction",
    "Imported",
    "ImportedPartition",
    "KafkaExport",
    "KafkaFile",
    "KafkaImport",
    "ListedOffset",
    "LoggedOffset",
    "MaintenanceFailure",
    "MemberDescription",
    "Merge",
    "Metric",
    "OffsetReset",
    "OffsetSpan",
    "OpenTransaction",
    "Outcome",
    "PartitionDescription",
    "PartitionUsage",
    "Placement",
    "ProducerDescription",
    "ProducerRef",
    "RecordDeletion",
    "RecordMetadata",
    "RetentionDeletion",
    "Rewritten",
    "RewrittenFile",
    "SegmentDescription",
    "SegmentIdentity",
    "Setting",
    "StableOffset",
    "StableOffsetHolder",
    "TablePublication",
    "TopicDescription",
    "TopicSchema",
    "TransactionDescription",
    "TransactionEnd",
    "TransactionRef",
    "Trimmed",
]

_HOMES = {
    "Altered": "state.topic_entries",
    "Append": "state.topic_entries",
    "Appends": "state.topic_entries",
    "BeginResult": "write.begin_result",
    "Delivery": "write.deliveries",
    "RecordMetadata": "write.deliveries",
    "Bundle": "state.topic_entries",
    "CommittedOffset": "state.group",
    "Compaction": "admin.compaction.compact",
    "Created": "state.topic_entries",
    "DamagedBytes": "kafka.importing",
    "DamagedRecords": "read.sound_ranges",
    "Deleted": "state.topic_entries",
    "DumpedEntry": "inspect.log_dump",
    "EntryRef": "state.transaction",
    "Expiry": "admin.expiry",
    "ExportedPartition": "kafka.exporting",
    "FileDeletion": "admin.vacuum",
    "FileRetirement": "admin.vacuum",
    "Finding": "doctor.finding",
    "FormerName": "schema",
    "FutureRecords": "admin.record_times",
    "GroupDescription": "inspect.descriptions",
    "GroupLogEntry": "inspect.history",
    "GroupOffset": "inspect.descriptions",
    "HangingTransaction": "inspect.descriptions",
    "Imported": "state.topic_entries",
    "ImportedPartition": "kafka.importing",
    "KafkaExport": "kafka.exporting",
    "KafkaFile": "state.placement",
    "KafkaImport": "kafka.importing",
    "ListedOffset": "admin.offsets",
    "LoggedOffset": "inspect.history",
    "MaintenanceFailure": "admin.maintenance",
    "MemberDescription": "inspect.descriptions",
    "Merge": "admin.merging",
    "Metric": "admin.metrics",
    "OffsetReset": "inspect.descriptions",
    "OffsetSpan": "state.topic_entries",
    "OpenTransaction": "kafka.transaction_tracker",
    "Outcome": "state.transaction",
    "PartitionDescription": "inspect.descriptions",
    "PartitionUsage": "admin.disk_usage",
    "Placement": "state.placement",
    "ProducerDescription": "inspect.descriptions",
    "ProducerRef": "state.producers",
    "RecordDeletion": "inspect.descriptions",
    "RetentionDeletion": "admin.retention",
    "Rewritten": "state.rewrites",
    "RewrittenFile": "state.placement",
    "SegmentDescription": "inspect.descriptions",
    "SegmentIdentity": "segments.identity",
    "Setting": "config",
    "StableOffset": "inspect.descriptions",
    "StableOffsetHolder": "inspect.descriptions",
    "TablePublication": "tables.publication",
    "TopicDescription": "inspect.descriptions",
    "TopicSchema": "schema",
    "TransactionDescription": "inspect.descriptions",
    "TransactionEnd": "admin.expiry",
    "TransactionRef": "state.transaction",
    "Trimmed": "state.topic_entries",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(f"txnlog.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'txnlog.results' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
