"""``Store.tables``: publish topics as tables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from txnlog.arguments import names_wrong_arguments
from txnlog.errors import require_package
from txnlog.log.open_logs import Logs

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from txnlog.tables.publication import TablePublication


@names_wrong_arguments()
class TableAdmin:
    """Topics as tables: :attr:`txnlog.Store.tables`."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    def publish_delta(
        self,
        topic: str,
        url: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> TablePublication:
        """Make a Delta table of a topic that is stored in Parquet files, or bring it up to date.

        The table refers to the topic's segments by their URLs. Copied are only rows of which no
        file can be named as it is: docs/TABLES.md says which. The table shows committed
        transactions only, each one whole. Called again, it adds what was committed since, and
        removes what was merged, compacted or deleted, in one new version. It may be killed
        anywhere, and several processes may call it at once.

        The columns are the topic's, ``_timestamp``, ``_headers``, ``_deleted`` if there is a key,
        and ``_partition``, by which the table is partitioned.

        Args:
            topic: its name; its ``record.format`` is parquet or auto.
            url: of the table, or the path of its folder, outside of the store's.
            storage_options: for the table, as deltalake takes them.

        Raises:
            UnknownTopicOrPartition: there is no such topic.
            InvalidOption: it is not stored in Parquet files, the place is no URL and no path, the
                folder holds another table, or deltalake is not installed.
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

        As :meth:`publish_delta`, with an Iceberg snapshot in place of a version. The columns are
        the topic's with their ids, ``_timestamp``, ``_headers`` and, if there is a key,
        ``_tombstone``, which is called ``_deleted`` elsewhere.

        Args:
            topic: its name; its ``record.format`` is parquet or auto.
            catalog: of pyiceberg, as ``pyiceberg.catalog.load_catalog`` gives it.
            table: its name with its namespace, as ``sales.flights``; both are created if missing.
            location: the folder of a table that is created, outside of the store's; if left out,
                the catalog chooses it.

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
