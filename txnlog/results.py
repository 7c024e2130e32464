"""What a store's methods return: plain data, for annotations and ``match``.

    from txnlog.results import GroupDescription

    def is_behind(group: GroupDescription) -> bool:
        return group.lag > 1000

The classes live beside what makes them; this is the line that is kept from release to release.
Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnlog.hooks import lazily

if TYPE_CHECKING:
    from txnlog.admin.compaction.compact import Compaction
    from txnlog.admin.disk_usage import PartitionUsage
    from txnlog.admin.expiry import Expiry, TransactionEnd
    from txnlog.admin.found import Found
    from txnlog.admin.maintenance import MaintenanceFailure
    from txnlog.admin.merge_topic import Merge
    from txnlog.admin.offsets import ListedOffset
    from txnlog.admin.purge_topic import Purge, PurgeReport
    from txnlog.admin.retention import RetentionDeletion
    from txnlog.admin.storage_step import StorageStep
    from txnlog.admin.times import FutureRecords
    from txnlog.admin.vacuum import FileDeletion, FileRetirement
    from txnlog.config import Setting
    from txnlog.doctor.findings import Finding
    from txnlog.inspect.descriptions import (
        HangingTransaction,
        PartitionDescription,
        ProducerDescription,
        RecordDeletion,
        SegmentDescription,
        StableOffset,
        StableOffsetHolder,
        TopicDescription,
        TransactionDescription,
    )
    from txnlog.inspect.group_lag import (
        GroupDescription,
        GroupOffset,
        MemberDescription,
        OffsetReset,
    )
    from txnlog.inspect.history import GroupLogEntry, LoggedOffset
    from txnlog.inspect.log_dump import DumpedEntry
    from txnlog.kafka.export_log_dirs import ExportedPartition, KafkaExport
    from txnlog.kafka.import_log_dirs import DamagedBytes, ImportedPartition, KafkaImport
    from txnlog.kafka.transaction_tracker import OpenTransaction
    from txnlog.metric import Metric
    from txnlog.producer import BeginResult
    from txnlog.read.scan_reader import DamagedRecords
    from txnlog.schema import FormerName, TopicSchema
    from txnlog.segments.batch_header import SegmentIdentity
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
    "admin.compaction.compact": ("Compaction",),
    "admin.disk_usage": ("PartitionUsage",),
    "admin.expiry": ("Expiry", "TransactionEnd"),
    "admin.found": ("Found",),
    "admin.maintenance": ("MaintenanceFailure",),
    "admin.merge_topic": ("Merge",),
    "admin.offsets": ("ListedOffset",),
    "admin.purge_topic": ("Purge", "PurgeReport"),
    "admin.retention": ("RetentionDeletion",),
    "admin.storage_step": ("StorageStep",),
    "admin.times": ("FutureRecords",),
    "admin.vacuum": ("FileDeletion", "FileRetirement"),
    "config": ("Setting",),
    "doctor.findings": ("Finding",),
    "inspect.descriptions": (
        "HangingTransaction",
        "PartitionDescription",
        "ProducerDescription",
        "RecordDeletion",
        "SegmentDescription",
        "StableOffset",
        "StableOffsetHolder",
        "TopicDescription",
        "TransactionDescription",
    ),
    "inspect.group_lag": ("GroupDescription", "GroupOffset", "MemberDescription", "OffsetReset"),
    "inspect.history": ("GroupLogEntry", "LoggedOffset"),
    "inspect.log_dump": ("DumpedEntry",),
    "kafka.export_log_dirs": ("ExportedPartition", "KafkaExport"),
    "kafka.import_log_dirs": ("DamagedBytes", "ImportedPartition", "KafkaImport"),
    "kafka.transaction_tracker": ("OpenTransaction",),
    "metric": ("Metric",),
    "producer": ("BeginResult",),
    "read.scan_reader": ("DamagedRecords",),
    "schema": ("FormerName", "TopicSchema"),
    "segments.batch_header": ("SegmentIdentity",),
    "state.group": ("CommittedOffset",),
    "state.transaction": ("EntryRef", "Outcome", "TransactionRef"),
    "tables.publication": ("TablePublication",),
    "write.deliveries": ("FutureRecordMetadata", "RecordMetadata"),
}

__getattr__, __dir__ = lazily(globals(), _HOMES)
