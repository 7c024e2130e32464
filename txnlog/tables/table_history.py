"""The snapshots that a topic's table has shown lately, whichever server was asked.

The metadata of each answer is put under the next number of its day, once: so servers agree on their
order, and the newest has all snapshots that are still listed. Those form an unbroken row, so that
what was current at some time is never mistaken.

docs/TABLES.md says how a snapshot is dated: by the moment at which it is asked for it would be
later than the transaction of a reader that has asked. They have no parents: lines of descent are
for readers of what was added between two snapshots, and merged files hold rows that were there
before.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence

import msgspec

from txnlog.errors import ObjectNotFound
from txnlog.log.open_logs import Logs
from txnlog.names import TABLES
from txnlog.tables.day_folder import DayFolder, metadata_name
from txnlog.tables.put_table import (
    MOST_METADATA_BYTES,
    MOST_SNAPSHOTS,
    NumberedSchema,
    PutSnapshot,
    PutTable,
    decode_table,
)

_MOST_BYTES = 256 << 10
"""Of all earlier ones: the summaries of topics with many partitions are long."""
_AHEAD_MS = 3_600_000
"""A time so far ahead was a server's wrong clock."""

_NOTHING = PutTable((), (), 0)

_logger = logging.getLogger(__name__)


class TableHistory:
    """What one table has shown, on one day and before."""

    def __init__(self, logs: Logs, topic: str, topic_id: str, folder: DayFolder) -> None:
        self.of = topic_id
        """The topic's id."""
        self._storage = logs.storage
        self._folder = folder
        self._list_names = re.compile(
            rf"{re.escape(f'{folder.root}/{TABLES}/')}[0-9-]{{10}}/{re.escape(topic)}/"
            r"[0-9a-f]{40}\.list\.avro"
        )
        self._number = folder.newest_of(topic_id)
        self.newest_data = b""
        """The newest metadata of the day; nothing if there is none that could be read."""
        self.shown_at_ms = 0
        """When the newest metadata was shown last, as far as is known."""
        self.table = _NOTHING
        """What ``newest_data`` says, as far as it is taken over."""
        self._snapshots: Sequence[PutSnapshot] = ()
        self._schemas: Mapping[int, msgspec.Raw] = {}
        if self._number:
            self._read_newest()
        elif (earlier := folder.newest_before(topic_id)) is not None:
            self._read(earlier)

    @property
    def newest_url(self) -> str:
        """The URL of ``newest_data``."""
        return self._folder.url(metadata_name(self.of, self._number))

    def shows(self, snapshot: PutSnapshot, columns: NumberedSchema, *, has_rows: bool) -> bool:
        """Whether the newest metadata shows just this; a table without rows may have no snapshot.

        What has put it, and when, is not looked at.
        """
        if not self.newest_data:
            return False
        if not self._snapshots:
            return not has_rows and self._schemas.get(columns.number) == columns.data
        last = self._snapshots[-1]
        known = last.snapshot_id, last.manifest_list
        return known == (snapshot.snapshot_id, snapshot.manifest_list)

    def has_expired(self, now_ms: int, kept_ms: int) -> bool:
        """Whether the newest metadata lists an earlier snapshot whose files need not be kept."""
        return not all(_is_kept(one, now_ms, kept_ms) for one in self._snapshots[:-1])

    def extended(
        self,
        snapshot: PutSnapshot,
        columns: NumberedSchema,
        now_ms: int,
        kept_ms: int,
        *,
        has_rows: bool,
    ) -> PutTable:
        """What the next metadata lists: this snapshot, behind those whose files are still kept.

        The snapshot's time is that of the newest entry in the log, ``now_ms`` this server's.
        Without ``has_rows`` it is listed only if there were others. ``kept_ms`` is for how long
        files of earlier snapshots are kept.
        """
        listed = self._listed(now_ms, kept_ms)
        if self._schemas.get(columns.number, columns.data) != columns.data:
            listed = []  # one number is of two schemas
        time_ms = min(max(snapshot.timestamp_ms, self.shown_at_ms + 1), now_ms)
        number = snapshot.sequence_number
        if self._snapshots:
            last = self._snapshots[-1]
            if last.snapshot_id == snapshot.snapshot_id:
                # The same rows, and more is known of their files.
                time_ms, number = last.timestamp_ms, last.sequence_number
                listed = [one for one in listed if one is not last]
            else:
                number = max(number, last.sequence_number + 1)
                if last.timestamp_ms <= now_ms + _AHEAD_MS:
                    time_ms = max(time_ms, last.timestamp_ms + 1)
        if has_rows or listed:
            newest = msgspec.structs.replace(
                snapshot, timestamp_ms=time_ms, sequence_number=number, schema_id=columns.number
            )
            listed.append(newest)
        others = sorted({one.schema_id for one in listed} - {columns.number})
        schemas = (*(self._schemas[one] for one in others), columns.data)
        updated_ms = max([now_ms, *(one.timestamp_ms for one in listed[-1:])])
        return PutTable(tuple(listed), schemas, updated_ms)

    def _listed(self, now_ms: int, kept_ms: int) -> list[PutSnapshot]:
        """The last ones in a row, all of whose files are kept; not all if they are many."""
        found = [*self._snapshots]
        for number, one in enumerate(self._snapshots):
            if not _is_kept(one, now_ms, kept_ms):
                found = [*self._snapshots[number + 1 :]]
        found = found[-MOST_SNAPSHOTS + 1 :]
        left = _MOST_BYTES
        for number in reversed(range(len(found))):
            left -= len(msgspec.json.encode(found[number]))
            if left < 0:
                return found[number + 1 :]
        return found

    def put(self, data: bytes, table: PutTable) -> bool:
        """Put the metadata of an answer under the next number.

        Returns False if another server has put that number: then this history catches up with it.
        Raises StorageError.
        """
        path = f"{self._folder.path}/{metadata_name(self.of, self._number + 1)}"
        if not self._storage.put_if_absent(path, data):
            self._catch_up()
            return False
        self._number += 1
        self.newest_data = data
        self._take(table)
        return True

    def _catch_up(self) -> None:
        """Find the last number, with few looks however many there are."""
        steps = [1]
        while self._is_there(self._number + steps[-1]):
            self._number += steps[-1]
            steps.append(2 * steps[-1])
        for step in reversed(steps[:-1]):
            if self._is_there(self._number + step):
                self._number += step
        self._read_newest()

    def _is_there(self, number: int) -> bool:
        try:
            self._storage.size(f"{self._folder.path}/{metadata_name(self.of, number)}")
        except ObjectNotFound:
            return False
        return True

    def _read_newest(self) -> None:
        self.newest_data = self._read(f"{self._folder.path}/{metadata_name(self.of, self._number)}")

    def _read(self, path: str) -> bytes:
        """Metadata that a server has put; empty if it tells nothing."""
        self.table, self._snapshots, self._schemas = _NOTHING, (), {}
        try:
            if self._storage.size(path) > MOST_METADATA_BYTES:
                raise msgspec.ValidationError("it is too large")
            data = self._storage.get(path)
            self._take(decode_table(data))
        except ObjectNotFound:
            return b""
        except msgspec.MsgspecError as error:
            _logger.warning("%s is passed over, with its snapshots: %s", path, error)
            return b""
        return data

    def _take(self, table: PutTable) -> None:
        """Raises ValidationError if it is not one that a server of this store has put."""
        found = table.snapshots
        schemas = table.schemas_by_number()
        is_sound = all(
            one.schema_id in schemas and self._list_names.fullmatch(one.manifest_list)
            for one in found
        )
        if not is_sound or not all(map(_follows, found, found[1:])):
            raise msgspec.ValidationError("no server of this store has put it")
        self.table, self._snapshots, self._schemas = table, found, schemas
        self.shown_at_ms = found[-1].shown_at_ms if found else 0


def _is_kept(snapshot: PutSnapshot, now_ms: int, kept_ms: int) -> bool:
    latest_ms = max(snapshot.shown_at_ms, snapshot.timestamp_ms)
    return now_ms - kept_ms < latest_ms <= now_ms + _AHEAD_MS


def _follows(before: PutSnapshot, after: PutSnapshot) -> bool:
    return (
        before.timestamp_ms < after.timestamp_ms and before.sequence_number < after.sequence_number
    )
