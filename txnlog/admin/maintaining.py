"""What :class:`~txnlog.store.Store` can do to maintain itself: what lies beneath is loaded then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from txnlog.admin.groups import GroupAdmin
from txnlog.admin.transactions import TransactionAdmin

if TYPE_CHECKING:
    from txnlog.admin.compaction.compact import Compaction
    from txnlog.admin.maintenance import Expiry, MaintenanceFailure
    from txnlog.admin.merging import Merge
    from txnlog.admin.retention import RetentionDeletion
    from txnlog.admin.vacuum import FileDeletion, FileRetirement
    from txnlog.replicas.reassigning import Reassigned
    from txnlog.replicas.returning import ReplicaReturn


class MaintenanceAdmin(GroupAdmin, TransactionAdmin):
    """The part of a store that is about maintaining it. Idle ids and groups expire, too."""

    def maintain(
        self,
        topics: str | Sequence[str] | None = None,
        *,
        dry_run: bool = False,
        orphan_age_ms: int | None = None,
    ) -> list[
        RetentionDeletion
        | Compaction
        | Merge
        | FileDeletion
        | FileRetirement
        | Expiry
        | ReplicaReturn
        | Reassigned
        | MaintenanceFailure
    ]:
        """Do what has to be done from time to time: nothing runs by itself.

        Retention: the oldest segments of topics go, as their ``retention.ms`` and
        ``retention.bytes`` say. Compaction: of topics whose ``cleanup.policy`` says so, of each key
        the newest record stays, where enough is new since the last time. Merging: many small
        segments become few large ones. Vacuum: files that nobody needs any more are deleted: those
        of deleted records and of segments that were merged or compacted (``file.delete.delay.ms``
        later), of deleted topics, and what killed jobs have left. Transactional ids and groups that
        were idle for too long expire. Roots of a replicated store that were put out and answer
        again come back, if ``replica.auto.return`` is set, and data is moved then to where it
        belongs. Ages of files are by the storage's own
        clock; where it tells no time, only those of deleted topics are deleted. May run in several
        processes at once, and stop anywhere.

        Args:
            topics: the names of one or several, and neither ids nor groups nor what lies outside
                of topics; None for everything.
            dry_run: only tell what would be done with what there is now.
            orphan_age_ms: when what was uploaded and nothing refers to was left behind, at least
                a day; 7 days if left out. No job may take longer between its first upload and its
                commit, which would be refused then (``UploadExpired``).

        Returns:
            What was done, one thing after the other. A part that failed is a
            ``MaintenanceFailure`` among them, and stops nothing else.

        Raises:
            InvalidOption, InvalidTopic: an argument has a value that it cannot have.
            StorageError: the storage fails; nothing was done.
        """
        from txnlog.admin.maintenance import Maintenance

        chosen = [topics] if isinstance(topics, str) else topics
        return [*Maintenance(self._logs, self, chosen, orphan_age_ms, dry_run=dry_run).steps()]

    def compact(
        self, topic: str, *, dry_run: bool = False, max_memory_bytes: int | None = None
    ) -> list[Compaction]:
        """Compact a topic now, wherever something is new, however little that is.

        Records younger than ``min.compaction.lag.ms`` stay, and so do tombstones for
        ``delete.retention.ms``. :meth:`maintain` does it by itself, where it is worth while.

        Args:
            topic: its name.
            dry_run: only tell which partitions have something to compact.
            max_memory_bytes: what the keys that are looked at together may take, at least 1 MiB;
                80 MiB if left out. With less they are read more often.

        Returns:
            What was done, one thing after the other.

        Raises:
            InvalidOption: its ``cleanup.policy`` does not say compact.
            UnknownTopicOrPartition: there is no such topic.
            CorruptRecord: a segment is damaged; its partition stays as it is.
            StorageError: the storage fails; some of it may be done, and a later call goes on.
        """
        from txnlog.admin.maintenance import compact_now

        return compact_now(self._logs, topic, dry_run=dry_run, max_memory_bytes=max_memory_bytes)

    def merge_topic(self, topic: str, *, dry_run: bool = False) -> list[Merge]:
        """Merge small segments of a topic that lie side by side into large ones.

        Up to ``segment.bytes``. Records and offsets stay as they are. Readers that are at work go
        on with the old files, which :meth:`maintain` deletes later; it merges, too.

        Args:
            topic: its name.
            dry_run: only tell what would be done.

        Returns:
            What was done, partition by partition. Nothing more is done where somebody else has
            rewritten some of it at the same time.

        Raises:
            UnknownTopicOrPartition: there is no such topic.
            CorruptRecord: a segment is damaged.
            StorageError: some of it may be done; call it again.
        """
        from txnlog.admin.merging import merge_topic

        return [*merge_topic(self._logs, topic, dry_run=dry_run)]
