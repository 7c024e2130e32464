"""Operations that read: snapshots of each level and moment, and consumers."""

from __future__ import annotations

from typing import ClassVar

from tests.support.simulation.pairs.history import Violation
from tests.support.simulation.pairs.operation import Operation, operation
from tests.support.simulation.pairs.table_values import values_of_table
from tests.support.simulation.pairs.world import (
    BEGIN_MS,
    COLUMNS,
    FAR,
    KEYED,
    NEAR,
    STORE_URL,
    TOMBSTONES_MS,
    latest_of,
    table_of,
    text_of,
    view_of,
)
from txnlog import IsolationLevel
from txnlog.consumer import Consumer
from txnlog.names import TopicPartition
from txnlog.snapshot import Snapshot
from txnlog.tables.fresh_table import FreshTables


@operation
class ReadCommitted(Operation):
    """A snapshot at the level of consumers."""

    name = "read committed"
    topics: tuple[str, ...] = NEAR
    level: ClassVar[IsolationLevel] = "read_committed"

    def prepare(self) -> None:
        self.store.snapshot(self.topics)

    def act(self) -> None:
        began = self.history.tick()
        snapshot = self.store.snapshot(self.topics, isolation_level=self.level)
        fresh = self.level == "snapshot" or not self.history.held_back(began)
        self.actor.saw(snapshot, self.name, began=began, fresh=fresh)


@operation
class ReadSnapshot(ReadCommitted):
    """A snapshot at level ``snapshot``, which shows what is committed behind open transactions."""

    name = "read snapshot"
    level = "snapshot"


@operation
class ReadFar(ReadCommitted):
    """Topics that others compact and delete."""

    name = "read far"
    topics = FAR


@operation
class ReadUncommitted(Operation):
    """Everything that was written: each offset has its one value."""

    name = "read uncommitted"

    def act(self) -> None:
        snapshot = self.store.snapshot(self.topics, isolation_level="read_uncommitted")
        self.history.saw_everything(view_of(snapshot), f"{self.actor.name} ({self.name})")


@operation
class At(Operation):
    """Topics as they were at a moment, then and again later."""

    name = "at"
    _first: Snapshot | None = None

    def act(self) -> None:
        began, at_ms = self.history.tick(), self.world.time_ms - 1
        snapshot = self.store.snapshot(self.topics, at=at_ms)
        self.actor.saw(snapshot, self.name, began=began, past=True)
        before = self.store.snapshot(self.topics, at=BEGIN_MS - 1)
        self.actor.saw(before, self.name, began=began, past=True)


@operation
class Token(Operation):
    """A snapshot, and the same one again later, by its token."""

    name = "token"

    def prepare(self) -> None:
        self._kept = self.store.snapshot(self.topics)
        self._token = self._kept.token()

    def act(self) -> None:
        began = self.history.tick()
        again = self.store.snapshot(self.topics, at=self._token)
        self.actor.saw(again, self.name, began=began, past=True)
        newer = self.store.snapshot(self.topics)
        self.actor.saw(newer, self.name, began=began)
        self._token, self._kept = newer.token(), newer

    def go_on(self) -> None:
        began = self.history.tick()
        again = self.store.snapshot(self.topics, at=self._token)
        self.actor.saw(again, self.name, began=began, past=True)
        if again.end_offsets("b") != self._kept.end_offsets("b"):
            raise Violation("token", "a token shows another snapshot than it was made of")


@operation
class Changes(Operation):
    """What was added between two snapshots is what the newer one shows and the older does not."""

    name = "changes"

    def prepare(self) -> None:
        self._older = self.store.snapshot(self.topics)

    def act(self) -> None:
        began = self.history.tick()
        newer = self.store.snapshot(self.topics)
        self.actor.saw(newer, self.name, began=began)
        for topic in self.topics:
            rows = self.store.changes(topic, self._older, newer).to_arrow()
            added = [value.decode() for value in rows.column("value").to_pylist()]
            before, after = view_of(self._older), view_of(newer)
            shown = {v for place, f in before.items() if place[0] == topic for _, v in f.records}
            wanted = [v for place, f in after.items() if place[0] == topic for _, v in f.records]
            if sorted(added) != sorted(v for v in wanted if v not in shown):
                raise Violation("changes", f"{added} is not what {wanted} has beyond {shown}")


@operation
class Latest(Operation):
    """The newest record of each key, and again later by a token."""

    name = "latest"
    topics = KEYED
    _token: str | None = None

    def act(self) -> None:
        began = self.history.tick()
        snapshot = self.store.snapshot(self.topics)
        self._token = snapshot.token()
        self._found = {topic: latest_of(snapshot, topic) for topic in self.topics}
        for topic, found in self._found.items():
            if not self.history.held_back(began):
                self.history.saw_table(topic, found, f"{self.actor.name} (latest)", began=began)
            folded = table_of(snapshot, topic)
            if found != folded:
                raise Violation("latest", f"{topic}: {found} is not {folded}")

    def go_on(self) -> None:
        if self._token is None:
            return
        again = self.store.snapshot(self.topics, at=self._token)
        for topic, found in self._found.items():
            later = latest_of(again, topic)
            for key, value in found.items():
                if later.get(key) == value or self.history.was_purged(topic, key):
                    continue
                if not (self.history.is_compacted(topic) and key not in later):
                    raise Violation("latest", f"{topic}: {key} was {value}, is {later.get(key)}")


@operation
class Feed(Operation):
    """A feed of changes makes of the rows at one moment those at another one."""

    name = "feed"
    topics = KEYED

    def prepare(self) -> None:
        self._since = self.store.snapshot(self.topics).token()
        self._since_tick = self.history.tick()

    def act(self) -> None:
        until_tick = self.history.tick()
        until = self.store.snapshot(self.topics)
        for topic in self.topics:
            key, value = COLUMNS[topic]
            older = self.store.snapshot(topic, at=self._since)
            rows = latest_of(older, topic)
            feed = self.store.changes(
                topic, self._since, until, ["_change", key, value], pre_images=True
            )
            told = set()
            for row in feed.to_arrow().to_pylist():
                self._apply(topic, rows, row["_change"], text_of(row[key]), text_of(row[value]))
                told.add(text_of(row[value]))
            missing = self.history.written(topic, self._since_tick, until_tick) - told
            if missing and not self.history.held_back(until_tick):
                raise Violation("feed", f"{topic}: nothing tells of {missing}")
            after = latest_of(until, topic)
            for one in rows.keys() | after.keys():
                if rows.get(one) != after.get(one) and not self.history.was_purged(topic, one):
                    raise Violation("feed", f"{topic}: it makes {rows}, there is {after}")

    def _apply(
        self, topic: str, rows: dict[str, str], change: str, key: str | None, value: str | None
    ) -> None:
        assert key is not None
        before = rows.get(key)
        shown = None if change == "insert" else value
        may_be_gone = before is None and self.history.is_compacted(topic)
        is_known = not may_be_gone and not self.history.was_purged(topic, key)
        if change != "update_after" and is_known and shown != before:
            raise Violation("feed", f"{topic}: {change} of {key}: {value} after {before}")
        if change in ("insert", "update_after"):
            assert value is not None
            rows[key] = value
        elif change == "delete":
            rows.pop(key, None)


@operation
class Catalog(Operation):
    """Topics as a catalog's tables, again and again by one server: level ``snapshot``."""

    name = "catalog"
    topics = KEYED

    def prepare(self) -> None:
        self.actor.storage.url = STORE_URL
        self._tables = FreshTables(self.store.logs)
        for topic in self.topics:
            self._tables.load(topic)

    def act(self) -> None:
        for topic in self.topics:
            began = self.history.tick()
            answer = self._tables.load(topic)
            shown = values_of_table(self.world.storage, answer.metadata, COLUMNS[topic][1])
            values = [text for value in shown if (text := text_of(value))]
            self.history.saw_values(topic, values, f"{self.actor.name} (a table)", began=began)

    def go_on(self) -> None:
        self.act()


def read_on(consumer: Consumer, polls: int = 20) -> list[str]:
    """Read until nothing comes."""
    found: list[str] = []
    for _ in range(polls):
        records = consumer.poll(max_records=3)
        if not records:
            return found
        found += [r.value.decode() for r in records if r.value is not None]
    raise Violation("no end", f"{polls} polls return records")


@operation
class Poll(Operation):
    """A consumer that has begun to read reads on, and at last all."""

    name = "poll"

    def prepare(self) -> None:
        self._consumer = self.store.consumer(auto_offset_reset="earliest")
        self._places = [TopicPartition("a", 0), TopicPartition("b", 0)]
        self._consumer.assign(self._places)
        first = self._consumer.poll(max_records=1)
        self._values = [r.value.decode() for r in first if r.value is not None]

    def act(self) -> None:
        for _ in range(2):
            got = self._consumer.poll(max_records=2)
            self._values += [r.value.decode() for r in got if r.value is not None]

    def go_on(self) -> None:
        self._values += read_on(self._consumer)
        self.history.polled(self._values, f"{self.actor.name} ({self.name})")


@operation
class PollBatches(Poll):
    """The same by whole batches."""

    name = "poll batches"

    def act(self) -> None:
        for batches in self._consumer.poll_batches().values():
            for batch in batches:
                self._values += [v.decode() for v in batch.column("value").to_pylist()]


@operation
class Table(Operation):
    """Somebody who keeps the newest value of each key, and reads the rest later."""

    name = "table"
    topics = ("k",)

    def prepare(self) -> None:
        self._table: dict[str, str] = {}
        self._consumer: Consumer | None = None
        self._began_ms = 0
        self._place = TopicPartition("k", 0)

    def act(self) -> None:
        self._consumer = self.store.consumer(auto_offset_reset="earliest")
        self._consumer.assign([self._place])
        self._began_ms = self.world.time_ms
        self._read(3)
        began = self.history.tick()
        if not self.history.held_back(began):
            table = table_of(self.store.snapshot(["k"]), "k")
            self.history.saw_table("k", table, f"{self.actor.name} (a scan)", began=began)

    def read_to_the_end(self) -> dict[str, str] | None:
        """What it has in the end; None if it has taken too long: tombstones may be gone."""
        if self._consumer is None or self.world.time_ms - self._began_ms > TOMBSTONES_MS:
            return None
        while self._read(2):
            pass
        return self._table

    def _read(self, most: int) -> bool:
        assert self._consumer is not None
        records = self._consumer.poll(max_records=most)
        # What was read ahead is dropped, as by a process that goes on for another one.
        self._consumer.seek(self._place, self._consumer.position(self._place))
        for record in records:
            assert record.key is not None
            if record.value is None:
                self._table.pop(record.key.decode(), None)
            else:
                self._table[record.key.decode()] = record.value.decode()
        return bool(records)


@operation
class Examine(Operation):
    """The doctor, while others write."""

    name = "examine"

    def act(self) -> None:
        for finding in self.store.examine(with_probe=False):
            if finding.state in ("damage", "unreadable"):
                raise Violation("doctor", f"{finding.check} {finding.subject}: {finding.detail}")
