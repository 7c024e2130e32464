"""A topic as an Iceberg table: its manifests name the segments by their URLs.

A publication is one snapshot, made only if no other was made since the table was read. Its summary
says by partition how far it reaches. Columns are found by their ids, which are the topic's; a
change of columns is part of it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import chain
from typing import Annotated

import msgspec
import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestFile,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    SetCurrentSchemaUpdate,
    UpdatesAndRequirements,
    UpdateTableMetadata,
)
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.typedef import Record
from pyiceberg.utils.concurrent import ExecutorFactory
from pyiceberg.utils.config import Config

from txnlog.errors import InvalidOption
from txnlog.limits import Offset, PartitionNumber, PerPartition
from txnlog.log.open_logs import Logs
from txnlog.storage.failure_messages import secrets_of
from txnlog.tables.columns import found_by_id, shows_as_it_is, time_column
from txnlog.tables.iceberg_columns import FileBounds, iceberg_schema
from txnlog.tables.iceberg_properties import END_OFFSETS, KEEP_FILES, NEXT_ENTRY, TOPIC_ID
from txnlog.tables.pinned_topic import PinnedTopic, warn_of_lost
from txnlog.tables.publication import Conflict, TablePublication, reported, until_nobody_interferes
from txnlog.tables.table_files import (
    FilePlan,
    Sink,
    TableFile,
    check_apart,
    copy_files,
    iceberg_url,
    plan_files,
)
from txnlog.tables.table_places import check_log, check_places

_OFFSETS_DECODER: msgspec.json.Decoder[dict[int, int]] = msgspec.json.Decoder(
    Annotated[dict[PartitionNumber, Offset], PerPartition]
)
_RETRIES = "commit.retry.num-retries"
_PROPERTIES = {
    **KEEP_FILES,
    # A retry would add the same files to another process's commit, and so twice.
    _RETRIES: "0",
    "commit.manifest-merge.enabled": "true",
}


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """The catalog at the ``uri`` among its properties. Raises StorageError."""
    with reported("opening the catalog", name, secrets_of(properties)):
        return load_catalog(name, **properties)


def named_catalog(name: str) -> Catalog:
    """The catalog of this name in pyiceberg's configuration. Raises InvalidOption, StorageError."""
    with reported("opening the catalog", name):
        properties = Config().get_catalog_config(name)
    if properties is None:
        variable = f"PYICEBERG_CATALOG__{name.upper().replace('-', '_')}__URI"
        raise InvalidOption(
            f"pyiceberg's configuration has no catalog {name!r}: it is read from .pyiceberg.yaml "
            f"in the home folder, or from the environment, such as {variable}"
        )
    return open_catalog(name, {key: str(value) for key, value in properties.items()})


def publish_iceberg(
    logs: Logs,
    topic: str,
    catalog: object,
    name: object,
    location: str | None,
    *,
    dry_run: bool = False,
) -> TablePublication:
    """See :meth:`txnlog.admin.tables.TableAdmin.publish_iceberg`.

    ``dry_run``: only count the files.
    """
    if not isinstance(catalog, Catalog):
        kind = type(catalog).__name__
        raise InvalidOption(
            f"the catalog must be one of pyiceberg.catalog.load_catalog, not {kind}"
        )
    if not isinstance(name, str) or "." not in name or not all(map(str.strip, name.split("."))):
        raise InvalidOption(
            f"{name!r:.100} names no table of a catalog: give it as NAMESPACE.TABLE, such as "
            "sales.flights"
        )
    iceberg_url(logs.storage)  # before a namespace is made
    secrets = secrets_of(catalog.properties)

    def attempt() -> TablePublication:
        with reported("publishing to", name, secrets), _overtaken():
            publication = _Publication(logs, topic, catalog, name, location)
            return publication.foretell() if dry_run else publication.run()

    return until_nobody_interferes(attempt, name)


@contextmanager
def _overtaken() -> Generator[None]:
    try:
        yield
    except (CommitFailedException, TableAlreadyExistsError, ValidationException) as error:
        raise Conflict from error


class _Publication:
    """One attempt. The table is read first, then the topic: so only lost records take it back."""

    def __init__(
        self, logs: Logs, topic: str, catalog: Catalog, name: str, location: str | None
    ) -> None:
        self._logs = logs
        self._catalog = catalog
        self._name = name
        self._location = location
        self._found = self._load()
        if self._found is not None:
            self._check_places(self._found)
        self._pin(topic)

    def _pin(self, topic: str) -> None:
        self._topic = PinnedTopic.of(self._logs, topic)
        self._logs.topic(topic).confirm_read()  # a table stays as it was published
        self._columns = self._topic.columns
        self._schema = iceberg_schema(self._columns)

    @cached_property
    def _table(self) -> Table:
        return self._create() if self._found is None else self._found

    def _load(self) -> Table | None:
        try:
            return self._catalog.load_table(self._name)
        except NoSuchTableError:
            return None

    def _check_places(self, table: Table) -> None:
        """Raise InvalidOption if metadata names places outside of the table's.

        The libraries open these with the catalog's credentials.
        """
        warehouse = self._catalog.properties.get("warehouse")
        known = (table.metadata_location, warehouse, self._location)
        check_places(self._name, [table.location()], known)
        check_log(table.location(), "metadata")
        snapshot = table.current_snapshot()
        if snapshot is not None:
            check_places(self._name, [snapshot.manifest_list], known)
            manifests = snapshot.manifests(table.io)
            check_places(self._name, [one.manifest_path for one in manifests], known)

    def _create(self) -> Table:
        """A table without files. Raises TableAlreadyExistsError."""
        location = self._location
        if location is not None:
            check_apart(self._logs.storage, location)
        namespace = Catalog.namespace_from(self._name)
        self._catalog.create_namespace_if_not_exists(namespace)
        # Without the columns, to which it would assign its own ids.
        table = self._catalog.create_table(
            self._name,
            Schema(),
            location,
            properties={**_PROPERTIES, TOPIC_ID: self._topic.topic_id},
        )
        try:
            check_apart(self._logs.storage, table.location())
        except InvalidOption:
            self._catalog.drop_table(self._name)
            raise
        return table

    def run(self) -> TablePublication:
        """Raises Conflict: another process has committed to the table meanwhile."""
        logs, table = self._logs, self._table
        self._check_table(table)
        if table.properties.get(_RETRIES) != "0":
            table.transaction().set_properties(_PROPERTIES).commit_transaction()
            self._pin(self._topic.name)  # the table was read again
        topic = self._topic
        known = _known_offsets(table)
        if topic.is_late(known, _known_entry(table)):
            return self._result(table, 0, 0, 0)
        lost = topic.has_lost(known)
        files, has_deletes = _files(table)
        plan = self._plan(() if has_deletes else files)
        copies = copy_files(logs, plan.copies, topic.schema, self._columns, self)
        added = [*plan.references, *copies]
        removed = sorted(files.keys() - plan.kept)
        if added or removed or self._has_other_columns:
            if lost:
                warn_of_lost(topic, self._name, lost)
            self._commit(added, [files[name] for name in removed])
        return self._result(table, len(added), len(removed), len(copies))

    def foretell(self) -> TablePublication:
        """The result that ``run`` would have; writes nothing."""
        table = self._found
        if table is None:
            return self._result(None, *self._plan({}).counts(()))
        self._check_table(table)
        if self._topic.is_late(_known_offsets(table), _known_entry(table)):
            return self._result(table, 0, 0, 0)
        files, has_deletes = _files(table)
        return self._result(table, *self._plan(() if has_deletes else files).counts(files))

    def _plan(self, files: Collection[str]) -> FilePlan:
        storage, topic = self._logs.storage, self._topic
        return plan_files(
            storage,
            topic.ranges,
            files,
            topic.schema,
            self._columns,
            found_by_id,
            partial(shows_as_it_is, topic.schema, by_name=False),
            iceberg_url(storage),
            timed=time_column(self._columns, topic.schema) is not None,
        )

    def _result(
        self, table: Table | None, added: int, removed: int, copied: int
    ) -> TablePublication:
        snapshot = None if table is None else table.current_snapshot()
        return TablePublication(
            self._topic.name,
            self._name,
            None if snapshot is None else snapshot.snapshot_id,
            added,
            removed,
            copied,
            self._topic.end_offsets,
        )

    def _check_table(self, table: Table) -> None:
        properties = table.properties
        if properties.get(TOPIC_ID) != self._topic.topic_id:
            raise InvalidOption(
                f"there is a table {self._name} already, which is not of this topic (or of an "
                f"earlier one that was called {self._topic.name}): choose another name"
            )
        others = [field.name for field in table.spec().fields]
        if others:
            raise InvalidOption(
                f"others have partitioned the table {self._name} by {', '.join(others)}, and the "
                "topic's files are not: remove these fields from its partition spec, or publish "
                "to another name"
            )
        check_apart(self._logs.storage, table.location())

    @property
    def _has_other_columns(self) -> bool:
        return bool(self._table.schema().as_struct() != self._schema.as_struct())

    def create(self, name: str) -> tuple[str, pa.NativeFile]:
        """A new file in the table's folder."""
        url = f"{self._table.location().rstrip('/')}/data/{name}"
        return url, pa.PythonFile(Sink(self._table.io.new_output(url).create()), mode="w")

    def _commit(self, added: Sequence[TableFile], removed: Sequence[DataFile]) -> None:
        ends = {END_OFFSETS: json.dumps(self._topic.end_offsets)}
        transaction = self._table.transaction()
        transaction.set_properties({NEXT_ENTRY: str(self._topic.next_entry)})
        if self._has_other_columns:
            _OtherColumns(transaction, self._schema).commit()
        if added or removed:
            update = transaction.update_snapshot(snapshot_properties=ends)
            replacement = _Replacement(
                Operation.OVERWRITE, transaction, self._table.io, snapshot_properties=ends
            )
            with replacement if removed else update.merge_append() as producer:
                for file in added:
                    producer.append_data_file(self._data_file(file))
                for gone in removed:
                    producer.delete_data_file(gone)
        transaction.commit_transaction()

    def _data_file(self, file: TableFile) -> DataFile:
        bounds = FileBounds.of(self._schema, file.statistics)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=file.url,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=file.record_count,
            file_size_in_bytes=file.size_bytes,
            value_counts=dict.fromkeys(bounds.null_counts, file.record_count),
            null_value_counts=bounds.null_counts,
            nan_value_counts=bounds.nan_counts,
            column_sizes={},
            lower_bounds=bounds.least,
            upper_bounds=bounds.largest,
            split_offsets=[*file.split_offsets],
            spec_id=self._table.spec().spec_id,
        )


def _known_offsets(table: Table) -> dict[int, int]:
    """By partition, how far the newest published snapshot reaches."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        found = None if snapshot.summary is None else snapshot.summary.get(END_OFFSETS)
        if found is not None:
            return _OFFSETS_DECODER.decode(found)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    return {}


def _known_entry(table: Table) -> int:
    """How far the topic's log was read for the newest publication."""
    found = table.properties.get(NEXT_ENTRY, "0")
    return int(found) if found.isdecimal() else 0


def _files(table: Table) -> tuple[dict[str, DataFile], bool]:
    """A table's data files by URL, and whether it has any delete files.

    Those were put by others. They do not apply to files that are added later, even of the same
    name.
    """
    snapshot = table.current_snapshot()
    manifests = [] if snapshot is None else snapshot.manifests(table.io)
    pieces = ExecutorFactory.get_or_create().map(partial(_live_files, table.io), manifests)
    found = [*chain.from_iterable(pieces)]
    files = {file.file_path: file for file in found if file.content == DataFileContent.DATA}
    return files, any(file.content != DataFileContent.DATA for file in found)


def _live_files(io: FileIO, manifest: ManifestFile) -> list[DataFile]:
    return [entry.data_file for entry in manifest.fetch_manifest_entry(io)]


class _Replacement(_OverwriteFiles):
    """Files for others, and for all that deletes rows.

    Manifests whose files are all gone since earlier are left out, which pyiceberg's would keep.
    """

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        return [
            one
            for one in manifests
            if one.content == ManifestContent.DATA
            and (
                one.has_added_files()
                or one.has_existing_files()
                or one.added_snapshot_id == self.snapshot_id
            )
        ]


class _OtherColumns(UpdateTableMetadata["_OtherColumns"]):
    """Gives a table these columns, with their ids, unless another process sets some."""

    def __init__(self, transaction: Transaction, columns: Schema) -> None:
        super().__init__(transaction)
        self._columns = columns

    def _commit(self) -> UpdatesAndRequirements:
        metadata = self._transaction.table_metadata
        number = 1 + max(schema.schema_id for schema in metadata.schemas)
        wanted = self._columns.model_copy(update={"schema_id": number})
        current = {"current-schema-id": metadata.current_schema_id}
        return (
            (AddSchemaUpdate(schema=wanted), SetCurrentSchemaUpdate()),
            (AssertCurrentSchemaId.model_validate(current),),
        )
