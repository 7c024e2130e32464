"""The maintenance methods of :class:`~txnlog.store.Store`; they import their code when called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from txnlog.admin.groups import GroupAdmin
from txnlog.admin.transactions import TransactionAdmin

if TYPE_CHECKING:
    from txnlog.admin.compaction.compact import Compaction
    from txnlog.admin.expiry import Expiry, TransactionEnd
    from txnlog.admin.maintenance import MaintenanceFailure
    from txnlog.admin.merging import Merge
    from txnlog.admin.record_times import FutureRecords
    from txnlog.admin.retention import RetentionDeletion
    from txnlog.admin.vacuum import FileDeletion, FileRetirement
    from txnlog.replicas.reassigning import Reassigned
    from txnlog.replicas.returning import ReplicaReturn


class MaintenanceAdmin(GroupAdmin, TransactionAdmin):
    """The methods of a store that maintain it. Idle ids and groups expire, too."""

    def maintain(
        self,
        topics: str | Sequence[str] | None = None,
        *,
        dry_run: bool = False,
        orphan_age_ms: int | None = None,
    ) -> list[
        RetentionDeletion
        | FutureRecords
        | Compaction
        | Merge
        | FileDeletion
        | FileRetirement
        | TransactionEnd
        | Expiry
        | ReplicaReturn
        | Reassigned
        | MaintenanceFailure
    ]:
        """Do the work that a store needs from time to time: nothing runs in the background.

        Retention: the oldest segments of topics are deleted, as their ``retention.ms`` and
        ``retention.bytes`` say. Compaction: in topics whose ``cleanup.policy`` says so, only the
        newest record of each key stays, in partitions with enough new records since the last time.
        Merging: many small segments become few large ones. Vacuum deletes files that nobody needs
        any more: those of deleted records and of segments that were merged or compacted
        (``file.delete.delay.ms`` later), those of deleted topics, and leftovers of killed jobs.
        Transactions that their producers do not end are ended. Transactional ids and groups that
        were idle for too long expire. Roots of a replicated store
        that left the in-sync set and answer again rejoin, if ``replica.auto.return`` is set, and
        data is then moved to where it belongs. Files' ages are by the storage's own clock; if it
        has none, only files of deleted topics are deleted. May run in several processes at once,
        and stop anywhere.

        Args:
            topics: the name of a topic, or several; then nothing else is touched. None for
                everything.
            dry_run: only say what would be done now.
            orphan_age_ms: uploaded files that nothing refers to are deleted at this age; at least
                a day, and 7 days if left out. A job that takes longer from its first upload to its
                commit is refused (``UploadExpired``).

        Returns:
            What was done, in order. A part that failed is a ``MaintenanceFailure`` among the
            results; the others go on. ``FutureRecords`` are only named: retention passes them by.

        Raises:
            InvalidOption, InvalidTopic: an argument is not valid.
            StorageError: the storage fails; nothing was done.
        """
        from txnlog.admin.maintenance import Maintenance

        chosen = [topics] if isinstance(topics, str) else topics
        return [*Maintenance(self._logs, chosen, orphan_age_ms, dry_run=dry_run).steps()]

    def compact(
        self, topic: str, *, dry_run: bool = False, max_memory_bytes: int | None = None
    ) -> list[Compaction]:
        """Compact a topic now, even if little is new.

        Records younger than ``min.compaction.lag.ms`` stay, and tombstones stay for
        ``delete.retention.ms``. :meth:`maintain` compacts too, where it is worthwhile.

        Args:
            topic: its name.
            dry_run: only say which partitions have something to compact.
            max_memory_bytes: the memory for keys, at least 1 MiB; 80 MiB if left out. With less,
                segments are read more often.

        Returns:
            What was done, in order.

        Raises:
            InvalidOption: its ``cleanup.policy`` does not say compact.
            UnknownTopicOrPartition: there is no such topic.
            CorruptRecord: a segment is damaged; its partition stays as it is.
            StorageError: the storage fails; some of it may be done, and a later call goes on.
        """
        from txnlog.admin.maintenance import compact_now

        return compact_now(self._logs, topic, dry_run=dry_run, max_memory_bytes=max_memory_bytes)

    def merge_topic(self, topic: str, *, dry_run: bool = False) -> list[Merge]:
        """Merge small neighbouring segments of a topic into segments of up to ``segment.bytes``.

        Records and offsets stay as they are. Running readers go on with the old files, which
        :meth:`maintain` deletes later; it merges, too.

        Args:
            topic: its name.
            dry_run: only say what would be done.

        Returns:
            What was done, partition by partition. A partition that another process rewrites at the
            same time is skipped.

        Raises:
            UnknownTopicOrPartition: there is no such topic.
            CorruptRecord: a segment is damaged.
            StorageError: some of it may be done; call it again.
        """
        from txnlog.admin.dry_run import logs_for
        from txnlog.admin.merging import merge_topic

        return [*merge_topic(logs_for(self._logs, dry_run=dry_run), topic, dry_run=dry_run)]
