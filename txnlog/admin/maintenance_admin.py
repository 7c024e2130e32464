"""``Store.maintenance``: single steps of maintenance, when somebody asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnlog.admin.dry_run import logs_for, writes
from txnlog.arguments import names_wrong_arguments
from txnlog.log.open_logs import Logs

if TYPE_CHECKING:
    from txnlog.admin.compaction.compact import Compaction
    from txnlog.admin.merge_topic import Merge
    from txnlog.admin.purge_topic import PurgeReport


@names_wrong_arguments()
class MaintenanceAdmin:
    """Steps of :meth:`txnlog.Store.maintain`, one at a time: :attr:`txnlog.Store.maintenance`."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    @writes
    def compact(
        self, topic: str, *, dry_run: bool = False, max_memory_bytes: int | None = None
    ) -> list[Compaction]:
        """Compact a topic now, even if little is new.

        Records younger than ``min.compaction.lag.ms`` stay, and tombstones stay for
        ``delete.retention.ms``. :meth:`txnlog.Store.maintain` compacts too, where it is worthwhile.

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
            CorruptRecord: a segment is damaged; its partition stays as it is, the others are
                compacted.
            StorageError: the storage fails; some of it may be done, and a later call goes on.
        """
        from txnlog.admin.maintenance import compact_now

        return compact_now(self._logs, topic, dry_run=dry_run, max_memory_bytes=max_memory_bytes)

    @writes
    def merge(self, topic: str, *, dry_run: bool = False) -> list[Merge]:
        """Merge small neighbouring segments of a topic into segments of up to ``segment.bytes``.

        Records and offsets stay as they are; aborted records go if they are older than
        ``file.delete.delay.ms``. Running readers go on with the old files, which
        :meth:`txnlog.Store.maintain` deletes later; it merges, too.

        Args:
            topic: its name.
            dry_run: only say what would be done.

        Returns:
            What was done, partition by partition. A partition that another process rewrites at the
            same time is skipped.

        Raises:
            UnknownTopicOrPartition: there is no such topic.
            CorruptRecord: a segment is damaged; all that was not to be merged with it is merged.
            StorageError: some of it may be done; call it again.
        """
        from txnlog.admin.merge_topic import merge_topic

        return [*merge_topic(logs_for(self._logs, dry_run=dry_run), topic, dry_run=dry_run)]

    @writes
    def purge(self, topic: str, keys: object, *, dry_run: bool = False) -> PurgeReport:
        """Delete every record of some keys for good, tombstones too, whatever the topic's settings.

        Offsets of other records stay as they are. The old files stay for ``file.delete.delay.ms``,
        for readers that are at work; then :meth:`txnlog.Store.maintain` deletes them. Let nobody
        write these keys any more: what is appended meanwhile stays.

        Args:
            topic: its name.
            keys: a table or data frame that Arrow can read, a mapping of columns, or a list of
                mappings, with the columns of the key: ``key``, or those of the topic's schema.
                Other columns are ignored. 64 MiB of different ones at most. Or a scan: all keys of
                its records, also where they delete; of one without a key there is none.
            dry_run: only count.

        Returns:
            What was purged, and where records of these keys may still be. All are gone from the
            topic's files when nothing is found, undecided, waiting or damaged: segments that are
            damaged stay, and the others are purged.

        Raises:
            InvalidOption: the topic has a schema without a key, or the keys are too many.
            InvalidRecord: the keys lack a column, are null, or not of its type.
            UnknownTopicOrPartition: there is no such topic.
            CorruptRecord: the keys are a scan, and it meets damage.
            StorageError: some of it may be done; call it again.
        """
        from txnlog.admin.purge_topic import purge_topic

        return purge_topic(self._logs, topic, keys, dry_run=dry_run)
