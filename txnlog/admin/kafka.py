"""``Store.kafka``: topics from a broker's partition folders, and to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from txnlog.admin.dry_run import writes
from txnlog.arguments import names_wrong_arguments
from txnlog.kafka.folders import Progress
from txnlog.log.open_logs import Logs

if TYPE_CHECKING:
    from txnlog.kafka.export_log_dirs import KafkaExport
    from txnlog.kafka.import_log_dirs import KafkaImport


@names_wrong_arguments()
class KafkaAdmin:
    """Topics from and to a broker's files: :attr:`txnlog.Store.kafka`."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    @writes
    def import_topic(
        self,
        topic: str,
        log_dirs: str | Sequence[str],
        *,
        skip_corrupt: bool = False,
        storage_options: Mapping[str, object] | None = None,
        progress: Progress | None = None,
    ) -> KafkaImport:
        """Make partition folders of a stopped Kafka broker, or copies of them, part of a topic.

        Every batch is checked and its bytes are copied as they are; offsets, timestamps, headers
        and producer ids stay, aborted records stay aborted. All of it becomes visible in one step.

        Args:
            topic: is created if it does not exist. Otherwise each partition must be new or end
                where its folder begins.
            log_dirs: paths or URLs of folders such as ``orders-0``, or the one that holds them.
            skip_corrupt: leave damaged batches out instead of refusing the import.
            storage_options: for the filesystem of ``log_dirs``.
            progress: called with the bytes done and the bytes in all.

        Raises:
            CorruptRecord: something is damaged; nothing was imported.
            OffsetOutOfRange: the topic has other records at these offsets.
            InvalidOption: the folders are not those of one topic's partitions.
            CommitStateUnknown: the storage failed; nothing was deleted.
        """
        from txnlog.kafka.import_log_dirs import import_log_dirs

        return import_log_dirs(
            self._logs,
            topic,
            [log_dirs] if isinstance(log_dirs, str) else log_dirs,
            storage_options=storage_options,
            skip_corrupt=skip_corrupt,
            progress=progress,
        )

    def export_topic(
        self,
        topic: str,
        directory: str,
        *,
        magic: int = 2,
        keep_offsets: bool = False,
        compression_type: str | None = None,
        storage_options: Mapping[str, object] | None = None,
        progress: Progress | None = None,
    ) -> KafkaExport:
        """Write a topic as the partition folders of a Kafka broker, up to its last stable offset.

        Args:
            topic: its name; the folders are ``directory/<topic>-<partition>``. Records of a typed
                one have the keys and values that consumers return.
            directory: a path or URL; the folders must not exist yet.
            magic: 2, or 0 or 1 for old readers, which know neither headers nor transactions.
            keep_offsets: write no transaction markers, so that offsets stay as they are. Aborted
                records are left out, committed ones become plain records. With markers (the
                default) each offset grows by the number of markers before it.
            compression_type: a codec instead of the topic's.
            storage_options: for the filesystem of ``directory``.
            progress: called with the bytes done and the bytes in all.

        Raises:
            UnknownTopicOrPartition, InvalidOption, NotAStore, CorruptRecord, StorageError: nothing
                was exported; what had been written is removed.
        """
        from txnlog.kafka.export_log_dirs import export_log_dirs

        return export_log_dirs(
            self._logs,
            topic,
            directory,
            magic=magic,
            keep_offsets=keep_offsets,
            compression_type=compression_type,
            storage_options=storage_options,
            progress=progress,
        )
