"""A topic as a Delta table: its log lists the segments, and refers to them by URL.

A publication is one commit, made only if no other was made since the table was read. Its ``txn``
actions say how far it reaches: their application is the topic's partition, their version the
offset; one more says how many entries of the topic's log were read. A change of columns is a commit
before it, with the same files; if these would then show something else than the topic does, it is
in the same commit.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, TableFeatures, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
from pyarrow import types

from txnlog.errors import InvalidOption, InvalidSchema
from txnlog.log.open_logs import Logs
from txnlog.schema import PARTITION
from txnlog.segments.schema_columns import id_of
from txnlog.storage import check_location
from txnlog.storage.failure_messages import secrets_of
from txnlog.tables.columns import found_by_name, shows_as_it_is, time_column
from txnlog.tables.pinned_topic import PinnedTopic, warn_of_lost
from txnlog.tables.publication import Conflict, TablePublication, reported, until_nobody_interferes
from txnlog.tables.statistics import Bound, ColumnStatistics
from txnlog.tables.table_files import (
    Sink,
    TableFile,
    check_apart,
    copy_files,
    plan_files,
    store_url,
    version_of,
)
from txnlog.tables.table_places import check_log

_COLUMN_ID = "txnlog.column.id"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
"""More than one letter: that is a drive of Windows."""
_NO_FILE = [(PARTITION, "=", "-1")]
"""The files of a partition that does not exist, which an overwrite of no file replaces."""


def publish_delta(
    logs: Logs,
    topic: str,
    url: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None,
    *,
    dry_run: bool = False,
) -> TablePublication:
    """See :meth:`txnlog.admin.tables.TableAdmin.publish_delta`.

    ``dry_run``: only count the files; whether the table's columns can be changed is not looked at.
    """
    url = _place(url)
    check_apart(logs.storage, url if "://" in url else f"file://{url}")
    options = dict(storage_options or {})
    table = _Table(url, options)

    def attempt() -> TablePublication:
        with reported("publishing to", url, secrets_of(options)):
            return _Publication(logs, topic, table).run(dry_run=dry_run)

    return until_nobody_interferes(attempt, url)


def _place(given: object) -> str:
    """A URL, or the whole path of a folder. Raises InvalidOption: it is neither."""
    url = check_location(given, None)
    if "://" in url:
        if url.startswith("file://"):
            _check_folder(unquote(url))
        return url
    if _SCHEME.match(url):
        raise InvalidOption(
            f"{url[:100]!r} is no URL, which has two slashes behind the colon; for a folder of "
            "this name write ./ before it"
        )
    path = str(Path(url).resolve())
    _check_folder(path)
    return path


def _check_folder(path: str) -> None:
    if unquote(path) != path or "\\" in path:
        raise InvalidOption(
            f"deltalake writes to the folder {path!r:.200}, and then reads another one: it decodes "
            "the '%' or takes the backslash for a slash. Name a folder without these"
        )


class _Table:
    """A table's location, and how to reach it."""

    def __init__(self, url: str, options: dict[str, str]) -> None:
        self.url = url
        self.options = options

    def read(self) -> DeltaTable | None:
        """The table as it is now, if it exists."""
        check_log(self.url, "_delta_log")
        if not DeltaTable.is_deltatable(self.url, self.options):
            return None
        return DeltaTable(self.url, storage_options=self.options)

    def create(self, name: str) -> tuple[str, pa.NativeFile]:
        """A new file in the table's folder."""
        if "://" not in self.url:
            Path(self.url).mkdir(parents=True, exist_ok=True)
        # deltalake's file for pyarrow does not accept pyarrow buffers.
        handler = DeltaStorageHandler(self.url, self.options)._handler  # noqa: SLF001
        return name, pa.PythonFile(Sink(handler.open_output_stream(name)), mode="w")


class _Publication:
    """One attempt. The table is read first, then the topic: so only lost records take it back."""

    def __init__(self, logs: Logs, topic: str, target: _Table) -> None:
        self._logs = logs
        self._target = target
        self._table = target.read()
        self._topic = PinnedTopic.of(logs, topic)
        logs.topic(topic).confirm_read()  # a table stays as it was published
        self._columns = self._topic.columns
        self._schema = _delta_schema(self._columns)

    def run(self, *, dry_run: bool) -> TablePublication:
        """Raises Conflict: another process has committed to the table meanwhile."""
        logs, topic = self._logs, self._topic
        known = self._known_offsets()
        if topic.is_late(known, self._known_version("log") or 0):
            return self._result(0, 0, 0)
        lost = topic.has_lost(known)
        files = self._files()
        fits = partial(found_by_name, columns=self._columns)
        shows = partial(shows_as_it_is, topic.schema, by_name=True)
        others = self._table is not None and not dry_run and self._has_other_columns()
        hides_rows = self._hides_rows()
        anew = hides_rows or (others and not all(shows(version_of(name)) for name in files))
        timed = time_column(self._columns, topic.schema) is not None
        root = store_url(logs.storage)
        current = () if hides_rows else files
        plan = plan_files(
            logs.storage,
            topic.ranges,
            current,
            topic.schema,
            self._columns,
            fits,
            shows,
            root,
            timed=timed,
        )
        if anew and plan.kept:
            raise InvalidSchema(
                f"a column of topic {topic.name!r} has a name that another column had before, and "
                "Delta finds columns by their names: publish to another folder than "
                f"{self._target.url}"
            )
        if dry_run:
            return self._result(*plan.counts(files))
        copies = copy_files(logs, plan.copies, topic.schema, self._columns, self._target)
        if others and not anew:
            self._write([], "overwrite", {}, _NO_FILE)
        added = [*plan.references, *copies]
        removed = sorted(files.keys() - plan.kept)
        if self._table is None or added or removed:
            if lost:
                warn_of_lost(topic, self._target.url, lost)
            moved = {n: end for n, end in topic.end_offsets.items() if known.get(n) != end}
            self._commit(added, [files[name] for name in removed], moved, anew=anew)
        return self._result(len(added), len(removed), len(copies))

    def _result(self, added: int, removed: int, copied: int) -> TablePublication:
        return TablePublication(
            self._topic.name,
            self._target.url,
            None if self._table is None else self._table.version(),
            added,
            removed,
            copied,
            self._topic.end_offsets,
        )

    def _known_offsets(self) -> dict[int, int]:
        """By partition, how far the table reaches. Raises InvalidOption: not this topic's table."""
        if self._table is None:
            return {}
        found = {}
        for partition in self._topic.end_offsets:
            version = self._known_version(partition)
            if version is not None:
                found[partition] = version
        if not found:
            raise InvalidOption(
                f"there is a table at {self._target.url} already, not of this topic (or of an "
                f"earlier one that was called {self._topic.name}): choose another folder"
            )
        others = self._table.metadata().partition_columns
        if others != [PARTITION]:
            raise InvalidOption(
                f"others have partitioned the table at {self._target.url} by "
                f"{', '.join(others) or 'nothing'}, and the topic's files are by {PARTITION}: "
                "publish to another folder"
            )
        return found

    def _known_version(self, part: int | str) -> int | None:
        table, application = self._table, self._application(part)
        return None if table is None else table.transaction_version(application)

    def _application(self, part: int | str) -> str:
        """The id of Delta's application transactions for a partition, or for the ``log``."""
        return f"txnlog/{self._topic.topic_id}/{part}"

    def _files(self) -> dict[str, _Known]:
        """The files of the table, by the names under which they were added."""
        if self._table is None:
            return {}
        actions = pa.table(self._table.get_add_actions(flatten=True))
        columns = ("path", "size_bytes", f"partition.{PARTITION}")
        rows = zip(*(actions.column(name).to_pylist() for name in columns), strict=True)
        return {unquote(path): _Known(unquote(path), size, part) for path, size, part in rows}

    def _hides_rows(self) -> bool:
        """Whether others have deleted single rows of files, by deletion vectors.

        deltalake writes none in its removals: only a table anew is without them.
        """
        if self._table is None:
            return False
        features = self._table.protocol().reader_features or ()
        vectors = self._table.deletion_vectors() if "deletionVectors" in features else ()
        return any(batch.num_rows for batch in vectors)

    def _has_other_columns(self) -> bool:
        """Whether the topic's columns differ from the table's, which can be changed to them.

        Delta features that they need are then enabled. Raises InvalidSchema.
        """
        assert self._table is not None
        before = json.loads(self._table.schema().to_json())
        after = json.loads(self._schema.to_json())
        if before == after:
            return False
        _check_change(before, after, self._target.url)
        feature = "timestampNtz"
        if feature in _types_in(after):
            protocol = self._table.protocol()
            if feature not in (protocol.reader_features or ()):
                with _overtaken():
                    self._table.alter.add_feature(
                        TableFeatures.TimestampWithoutTimezone,
                        allow_protocol_versions_increase=True,
                        commit_properties=CommitProperties(max_commit_retries=0),
                    )
        return True

    def _commit(
        self,
        added: Sequence[TableFile],
        removed: Sequence[_Known],
        ends: Mapping[int, int],
        *,
        anew: bool,
    ) -> None:
        """``anew``: replace columns and files at once, since no file may stay as it is."""
        now_ms = self._logs.clock.now_ms()
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                file.url,
                file.size_bytes,
                {PARTITION: str(file.partition)},
                now_ms,
                data_change=True,
                stats=_delta_statistics(file, self._columns),
            )
            for file in added
        ]
        if anew:
            self._write(actions, "overwrite", ends)
            return
        actions += [
            RemoveAction(
                file.name,
                data_change=True,
                deletion_timestamp=now_ms,
                size=file.size_bytes,
                partition_values={PARTITION: str(file.partition)},
            )
            for file in removed
        ]
        self._write(actions, "append", ends)

    def _write(
        self,
        actions: list[Any],
        mode: str,
        ends: Mapping[int, int],
        filters: list[tuple[str, str, str]] | None = None,
    ) -> None:
        """Commit, if the table has not changed since it was read."""
        known = [Transaction(self._application(n), end) for n, end in ends.items()]
        known.append(Transaction(self._application("log"), self._topic.next_entry))
        only = CommitProperties(app_transactions=known, max_commit_retries=0)
        url, options = self._target.url, self._target.options
        version = 0 if self._table is None else self._table.version() + 1
        if self._table is None:
            if "://" not in url:
                Path(url).mkdir(parents=True, exist_ok=True)
            try:
                create_table_with_add_actions(
                    url,
                    self._schema,
                    actions,
                    partition_by=[PARTITION],
                    storage_options=options,
                    commit_properties=only,
                )
            except Exception:
                if DeltaTable.is_deltatable(url, options):
                    raise Conflict from None
                raise
        else:
            with _overtaken():
                self._table.create_write_transaction(
                    actions, mode, self._schema, [PARTITION], filters, commit_properties=only
                )
        # Not a later one, of which nothing is known yet.
        self._table = DeltaTable(url, version, storage_options=options)


@contextmanager
def _overtaken() -> Generator[None]:
    try:
        yield
    except CommitFailedError as error:
        raise Conflict from error


class _Known(msgspec.Struct, frozen=True):
    """A file of the table."""

    name: str
    size_bytes: int
    partition: int


# -- columns -------------------------------------------------------------------------------------


def _delta_schema(columns: pa.Schema) -> Schema:
    fields = [_delta_field(field) for field in columns]
    return Schema.from_arrow(pa.schema([*fields, pa.field(PARTITION, pa.int32())]))


def _delta_field(field: pa.Field) -> pa.Field:
    """The field with its id in Delta's form, not in that of a Parquet file."""
    number = id_of(field)
    metadata = {} if number is None else {_COLUMN_ID: str(number)}
    return field.with_type(_delta_type(field.type)).with_metadata(metadata)


def _delta_type(kind: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    if types.is_struct(kind):
        return pa.struct([_delta_field(kind.field(n)) for n in range(kind.num_fields)])
    if types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_delta_type(kind.key_type)).remove_metadata(),
            kind.item_field.with_type(_delta_type(kind.item_type)).remove_metadata(),
        )
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_delta_type(kind.value_type)).remove_metadata())
    return kind


def _check_change(before: dict[str, Any], after: dict[str, Any], url: str) -> None:
    """Raise InvalidSchema if existing files would be read wrongly."""
    old, new = _names_by_id(before), _names_by_id(after)
    for number, name in new.items():
        if number in old and old[number] != name:
            raise InvalidSchema(
                f"column {old[number]!r} is called {name!r} now, and Delta finds columns by their "
                f"names: publish to another folder than {url}"
            )
    taken = {name: number for number, name in old.items()}
    for number, name in new.items():
        if taken.get(name, number) != number:
            raise InvalidSchema(
                f"column {name!r} is not the column that had this name before, and Delta finds "
                f"columns by their names: publish to another folder than {url}"
            )


def _names_by_id(kind: Any, path: str = "") -> dict[str, str]:  # noqa: ANN401 - JSON
    found: dict[str, str] = {}
    if not isinstance(kind, dict):
        return found
    for field in kind.get("fields", ()):
        name = f"{path}{field['name']}"
        if number := field["metadata"].get(_COLUMN_ID):
            found[number] = name
        found |= _names_by_id(field["type"], f"{name}.")
    for part in ("elementType", "keyType", "valueType"):
        found |= _names_by_id(kind.get(part), f"{path}{part}.")
    return found


def _types_in(kind: Any) -> set[str]:  # noqa: ANN401 - JSON
    """The names of features that its types need."""
    if isinstance(kind, str):
        return {"timestampNtz"} if kind == "timestamp_ntz" else set()
    parts = [kind.get(part) for part in ("elementType", "keyType", "valueType")]
    parts += [field["type"] for field in kind.get("fields", ())]
    return {feature for part in parts if part is not None for feature in _types_in(part)}


# -- statistics ----------------------------------------------------------------------------------


def _delta_statistics(file: TableFile, columns: pa.Schema) -> str:
    least: dict[str, Bound] = {}
    largest: dict[str, Bound] = {}
    nulls: dict[str, int] = {}
    for name, known in file.statistics.items():
        kind = columns.field(name).type
        if known.null_count is not None:
            nulls[name] = known.null_count
        bounds = _delta_bounds(known, kind)
        if bounds[0] is not None:
            least[name] = bounds[0]
        if bounds[1] is not None:
            largest[name] = bounds[1]
    return json.dumps(
        {
            "numRecords": file.record_count,
            "minValues": least,
            "maxValues": largest,
            "nullCount": nulls,
        },
        ensure_ascii=False,  # deltalake takes escapes of the last code points for others
    )


def _delta_bounds(known: ColumnStatistics, kind: Any) -> tuple[Bound | None, Bound | None]:  # noqa: ANN401
    if types.is_date32(kind):
        return _date(known.least), _date(known.largest)
    if types.is_timestamp(kind):
        # Some engines take them for milliseconds, so the bounds are rounded outwards.
        zone = "" if kind.tz is None else "Z"
        return _time(known.least, 0, zone), _time(known.largest, 999, zone)
    if types.is_floating(kind):
        return _finite(known.least), _finite(known.largest)
    return known.least, known.largest


def _finite(number: Bound | None) -> Bound | None:
    """JSON has no infinity."""
    return number if number is not None and math.isfinite(float(number)) else None


def _date(days: Bound | None) -> str | None:
    return None if days is None else _format("%Y-%m-%d", days=int(days))


def _time(micros: Bound | None, up: int, zone: str) -> str | None:
    if micros is None:
        return None
    millis = (int(micros) + up) // 1000
    text = _format("%Y-%m-%dT%H:%M:%S.%f", milliseconds=millis)
    return None if text is None else f"{text[:-3]}{zone}"


def _format(form: str, **since: int) -> str | None:
    """A time since 1970; None if it is outside of what others can parse."""
    try:
        at = _EPOCH + timedelta(**since)
    except OverflowError:
        return None
    return at.strftime(form) if at.year >= 1000 else None
