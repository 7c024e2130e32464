"""What :class:`~txnlog.store.Store` can do to make tables of topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from txnlog.errors import require_package
from txnlog.log.open_logs import Logs

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from txnlog.tables.publication import TablePublication


class TableAdmin:
    """The part of a store that is about tables."""

    _logs: Logs

    def publish_delta(
        self, topic: str, url: str, *, storage_options: Mapping[str, str] | None = None
    ) -> TablePublication:
        """Make a Delta table of a topic that is stored in Parquet files, or bring it up to date.

        The table refers to the topic's segments by their URLs; only what is left of segments that
        a trim cut through is copied. It shows what is committed, each transaction whole, as one
        version of the table. Called again it adds what was committed since, and takes away what
        was merged, compacted or deleted. May be killed anywhere, and called by several at once.

        Columns are the topic's, ``_timestamp``, ``_headers``, with a key ``_deleted``, and
        ``_partition``, by which the table is partitioned.

        Args:
            topic: its name; its ``record.format`` is parquet.
            url: the table's folder, outside of the store's.
            storage_options: for the table, as deltalake takes them.

        Raises:
            UnknownTopicOrPartition: there is no such topic.
            InvalidOption: it is not stored in Parquet files, the folder holds another table, or
                deltalake is not installed.
            InvalidSchema: a column was renamed since.
            ConcurrentTransactions: others change the table all the time.
            CorruptRecord: a segment is damaged.
            StorageError: the table or the store cannot be read or written.
        """
        require_package("deltalake", "delta")
        from txnlog.tables.delta import publish_delta

        return publish_delta(self._logs, topic, url, storage_options)

    def publish_iceberg(
        self, topic: str, catalog: Catalog, table: str, *, location: str | None = None
    ) -> TablePublication:
        """Make an Iceberg table of a topic that is stored in Parquet files, or bring it up to date.

        As :meth:`publish_delta`, with a snapshot of Iceberg's for a version. Columns are the
        topic's with their ids, ``_timestamp``, ``_headers``, and with a key ``_tombstone``, which
        is ``_deleted`` elsewhere.

        Args:
            topic: its name; its ``record.format`` is parquet.
            catalog: of pyiceberg, as ``pyiceberg.catalog.load_catalog`` gives it.
            table: its name with that of its namespace, as ``sales.flights``; both are created.
            location: the table's folder if it is created, outside of the store's; without it,
                where the catalog puts it.

        Raises:
            UnknownTopicOrPartition: there is no such topic.
            InvalidOption: it is not stored in Parquet files, the table is another one, or pyiceberg
                is not installed.
            InvalidSchema: a column is called ``_tombstone``.
            ConcurrentTransactions: others change the table all the time.
            CorruptRecord: a segment is damaged.
            StorageError: the table or the store cannot be read or written.
        """
        require_package("pyiceberg", "iceberg")
        from txnlog.tables.iceberg import publish_iceberg

        return publish_iceberg(self._logs, topic, catalog, table, location)
