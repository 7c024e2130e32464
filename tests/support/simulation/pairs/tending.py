"""Operations of administrators and of maintenance."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from tempfile import TemporaryDirectory

import pyarrow as pa
from deltalake import DeltaTable

from tests.support.simulation.pairs.history import History, Violation
from tests.support.simulation.pairs.operation import Operation, operation
from tests.support.simulation.pairs.world import (
    HOUR_MS,
    KEYED,
    LIMITS_MS,
    SCHEMA,
    STORE_URL,
    TOPICS,
    Actor,
)
from tests.support.simulation.pairs.writing import producer_of, transact
from txnlog.admin.expiry import tend_ids, times_when_needed
from txnlog.admin.retention import apply_retention
from txnlog.config import DAY_MS
from txnlog.errors import TxnlogError
from txnlog.names import TopicPartition
from txnlog.results import MaintenanceFailure


@operation
class AddPartitions(Operation):
    """A topic grows, and the new partition is used at once, in a transaction over two topics."""

    name = "add partitions"

    def prepare(self) -> None:
        self._producer = producer_of(self.actor, "grower")
        self._producer.init_transactions()

    def act(self) -> None:
        self.store.topics.alter("a", partitions=3)
        self._producer.begin_transaction()
        intent = self.actor.begin(self.name)
        try:
            for topic, partition in (("a", 2), ("b", 0)):
                self.actor.send(self._producer, intent, topic, partition)
        except TxnlogError:
            self.history.aborted(intent)
            raise
        self.actor.commit(self._producer, intent)


@operation
class Config(Operation):
    """A setting changes, twice."""

    name = "config"
    _is_set = False

    def act(self) -> None:
        for number in (2048, 4096):
            for topic in self.topics:
                self.store.topics.alter(topic, config={"segment.bytes": number})
        self._is_set = True

    def go_on(self) -> None:
        for topic in self.topics if self._is_set else ():
            if self.store.topics.describe(topic).config.get("segment.bytes") != "4096":
                raise Violation("config", f"segment.bytes of {topic} was set to 4096")


@operation
class Schema(Operation):
    """A typed topic gets a column more."""

    name = "schema"
    topics = ("y",)

    def act(self) -> None:
        self.store.topics.alter("y", schema=SCHEMA.append(pa.field("more", pa.int32())))


@operation
class Create(Operation):
    """A topic is made, and written to."""

    name = "create"
    topics = ("d",)

    def act(self) -> None:
        with suppress(TxnlogError):
            self.store.topics.create("d")
        with self.store.producer() as producer:
            intent = self.actor.begin(self.name)
            try:
                self.actor.send(producer, intent, "d")
                self.actor.flush(producer, intent)
            except TxnlogError:
                self.history.aborted(intent)
                raise


@operation
class Delete(Operation):
    """A topic is deleted."""

    name = "delete"
    topics = ("d",)

    def act(self) -> None:
        deletion = self.history.deleting("d")
        self.store.topics.delete("d")
        self.history.deleted(deletion)


@operation
class Recreate(Delete):
    """A topic is deleted, made anew, and written to."""

    name = "recreate"

    def act(self) -> None:
        super().act()
        Create.act(self)  # type: ignore[arg-type]


@operation
class Trim(Operation):
    """The oldest records of two partitions are deleted."""

    name = "trim"

    def act(self) -> None:
        for topic in self.topics:
            self.history.trim((topic, 0), 2)
        self.store.topics.delete_records({TopicPartition(topic, 0): 2 for topic in self.topics})


@operation
class Retention(Operation):
    """Records that are too old are deleted."""

    name = "retention"
    topics = ("r",)

    def act(self) -> None:
        apply_retention(self.store.logs, "r", self.actor.clock.now_ms())


@operation
class Compact(Operation):
    """A topic is compacted."""

    name = "compaction"
    topics = ("k",)

    def act(self) -> None:
        self.store.maintenance.compact("k")


@operation
class Purge(Operation):
    """All records of a key go from a compacted topic, and from a typed one."""

    name = "purge"
    topics = KEYED

    def act(self) -> None:
        for topic, rows in (("k", [{"key": b"1"}]), ("y", [{"id": 1}])):
            purge = self.history.purging(topic, "1")
            report = self.store.maintenance.purge(topic, rows)
            if not report.undecided_count:
                self.history.committed(purge)


@operation
class Merge(Operation):
    """Small segments are merged."""

    name = "merge"
    topics = ("a", "b", "y")

    def act(self) -> None:
        for topic in self.topics:
            self.store.maintenance.merge(topic)


@operation
class Vacuum(Operation):
    """Files that nobody needs are deleted: they are old enough when it begins."""

    name = "vacuum"
    topics: tuple[str, ...] = ("a", "b", "k")

    def prepare(self) -> None:
        other = self.world.actor("merging").store
        other.maintenance.merge("a")
        other.maintenance.compact("k")
        self.world.time_ms += 2 * HOUR_MS

    def act(self) -> None:
        check_steps(self.history, self.store.maintain(self.topics, orphan_age_ms=DAY_MS))


@operation
class Checkpoint(Operation):
    """States are put beside logs, what is settled goes to manifests, names are closed."""

    name = "checkpoint"
    topics = TOPICS

    def prepare(self) -> None:
        for topic in self.topics:
            self.store.logs.fresh_topic(topic)

    def act(self) -> None:
        for topic in ("a", "k", "d"):
            log = self.store.logs.topic(topic)
            log.refresh()
            log.checkpoint()
        group = self.store.logs.fresh_group("g")
        group.checkpoint()


@operation
class Free(Operation):
    """Names of logs are closed, and freed when they have reached their age."""

    name = "free"
    topics = TOPICS

    def act(self) -> None:
        for _ in range(2):
            Checkpoint.act(self)  # type: ignore[arg-type]
            self.world.time_ms += LIMITS_MS
        head = self.store.logs.transactions.head("w")
        if head is not None:
            self.store.logs.transactions.clean("w", head.number)


@operation
class ExpireIds(Operation):
    """Ids that were idle for long are marked as dead, and those that are dead are removed."""

    name = "expire ids"

    def prepare(self) -> None:
        # Another one is dead for long enough already.
        other = self.world.actor("expiring").store
        other.transactions.expire_ids()
        self.world.time_ms += LIMITS_MS

    def act(self) -> None:
        self.store.transactions.expire_ids()

    def go_on(self) -> None:
        producer = producer_of(self.actor, "idle")
        with suppress(TxnlogError):
            producer.init_transactions()
            transact(self.actor, producer, self.name, "b")


@operation
class ExpireAll(ExpireIds):
    """The same by an operator's age, under which ids at work fall too."""

    name = "expire all ids"

    def act(self) -> None:
        self.store.transactions.expire_ids(older_than_ms=1_000)


@operation
class RemoveIds(Operation):
    """All transactions are ended, and their ids expire and are removed.

    At each of these steps a process looks at the ids, which looks again when all of it is done.
    """

    name = "remove ids"

    def prepare(self) -> None:
        self._watching: list[Actor] = []

    def act(self) -> None:
        logs = self.store.logs
        self._watch()
        for transactional_id in logs.transactions.ids():
            since = logs.transactions.now()
            head = logs.transactions.head(transactional_id)
            if head is not None and head.state.open:
                logs.settlement.abort_for_another(head, since)
        self._watch()
        for _ in range(3):
            self.world.time_ms += LIMITS_MS
            for _ in tend_ids(logs, times_when_needed(logs), idle_ms=1_000):
                pass
            self._watch()

    def look_again(self) -> None:
        for watching in self._watching:
            # Each in a copy: what one of them has decided would tell the next one.
            watching.storage.inner = self.world.storage.copy()
            began = self.history.tick()
            watching.saw(watching.store.snapshot(self.topics), "knew the id", began=began)

    def _watch(self) -> None:
        watching = self.world.actor("watching")
        for _ in watching.store.transactions.list():
            pass
        self._watching.append(watching)


@operation
class ExpireGroups(Operation):
    """Groups that were idle for long are deleted."""

    name = "expire groups"
    topics = ("a",)

    def act(self) -> None:
        self.store.groups.expire()


@operation
class AbortOther(Operation):
    """An operator aborts whatever is open under an id."""

    name = "abort other"

    def act(self) -> None:
        self.store.transactions.abort("w", reason="it hangs")


@operation
class Maintain(Operation):
    """All periodic work."""

    name = "maintain"
    topics = TOPICS

    def act(self) -> None:
        check_steps(self.history, self.store.maintain(orphan_age_ms=DAY_MS))


@operation
class Import(Operation):
    """Folders of a broker become a topic, in one step."""

    name = "import"

    def prepare(self) -> None:
        self._folder = TemporaryDirectory()
        self.world.actor("exporting").store.kafka.export_topic("b", self._folder.name)
        self._expected = self.store.scan("b").count()

    def act(self) -> None:
        self.store.kafka.import_topic("imported", [self._folder.name])
        self._check()

    def go_on(self) -> None:
        self._check()

    def close(self) -> None:
        self._folder.cleanup()

    def _check(self) -> None:
        found = self.store.scan("imported").count()
        if found != self._expected:
            raise Violation("import", f"{found} records of {self._expected} are there")


@operation
class Publish(Operation):
    """A typed topic becomes a Delta table, which is brought up to date later."""

    name = "publish"
    topics = ("y",)

    def prepare(self) -> None:
        self._folder = TemporaryDirectory()
        self.actor.storage.url = STORE_URL

    def act(self) -> None:
        self.store.tables.publish_delta("y", self._folder.name)

    def go_on(self) -> None:
        self.act()
        table = DeltaTable(self._folder.name)
        files = {uri.rpartition("/")[2] for uri in table.file_uris()}
        shown = {r.segment.stored.name for r in self.store.scan("y").ranges}
        if files != shown:
            raise Violation("publish", f"the table has {files}, the topic {shown}")

    def close(self) -> None:
        self._folder.cleanup()


def check_steps(history: History, steps: Iterable[object]) -> None:
    """No part has failed, but for a topic that was deleted, or written to, while this one slept."""
    for step in steps:
        if not isinstance(step, MaintenanceFailure) or history.was_deleted(step.topic):
            continue
        if "other writers were faster" not in str(step.error):
            raise Violation("maintenance", f"{step.part} of {step.topic}: {step.error!r}")
