"""Operations of producers and consumers: what moves records and offsets."""

from __future__ import annotations

from contextlib import suppress
from typing import ClassVar

from tests.support.simulation.pairs.operation import Operation, operation
from tests.support.simulation.pairs.world import FAR, LIMITS_MS, NEAR, TIMEOUT_MS, Actor
from txnlog.consumer import Consumer
from txnlog.errors import TxnlogError
from txnlog.log.settlement import CLOCK_MARGIN_MS
from txnlog.names import TopicPartition
from txnlog.producer import Producer

SOURCE = TopicPartition("a", 0)


def producer_of(actor: Actor, transactional_id: str) -> Producer:
    """A transactional producer that has not begun."""
    return actor.store.producer(
        transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS
    )


def transact(
    actor: Actor, producer: Producer, name: str, *topics: str, commits: bool = True
) -> None:
    """One transaction over these topics, in both partitions of ``a``."""
    producer.begin_transaction()
    intent = actor.begin(name)
    try:
        for topic in topics:
            actor.send(producer, intent, topic)
        if "a" in topics:
            actor.send(producer, intent, "a", 1)
        producer.flush()
    except TxnlogError:
        actor.history.aborted(intent)
        raise
    if commits:
        actor.commit(producer, intent)
    else:
        producer.abort_transaction()
        actor.history.aborted(intent)


@operation
class Flush(Operation):
    """Records to two topics without a transaction: one flush each."""

    name = "flush"
    topics: tuple[str, ...] = NEAR

    def prepare(self) -> None:
        self._producer = self.store.producer()
        self._flush()

    def act(self) -> None:
        self._flush()

    def go_on(self) -> None:
        with suppress(TxnlogError):
            self._flush()

    def _flush(self) -> None:
        for topic in self.topics:
            intent = self.actor.begin(self.name)
            try:
                self.actor.send(self._producer, intent, topic)
                self.actor.flush(self._producer, intent)
            except TxnlogError:
                self.history.aborted(intent)
                raise


@operation
class FlushFar(Flush):
    """The same to a compacted topic, to one that others delete, to a typed one."""

    name = "flush far"
    topics = ("k", "d", "y")


@operation
class Commit(Operation):
    """A transaction from its beginning to its commit, by a producer that is at work."""

    name = "commit"
    topics: tuple[str, ...] = NEAR

    def prepare(self) -> None:
        self._producer = producer_of(self.actor, "w")
        self._producer.init_transactions()

    def act(self) -> None:
        transact(self.actor, self._producer, self.name, *self.topics)

    def go_on(self) -> None:
        with suppress(TxnlogError):
            transact(self.actor, self._producer, self.name, *self.topics)


@operation
class CommitFar(Commit):
    """The same over a compacted topic and one that others delete."""

    name = "commit far"
    topics = FAR


@operation
class Abort(Commit):
    """A transaction that is aborted after it has placed its records."""

    name = "abort"

    def act(self) -> None:
        transact(self.actor, self._producer, self.name, *self.topics, commits=False)


@operation
class Init(Operation):
    """A new instance takes an id over, and no more."""

    name = "init"

    def act(self) -> None:
        self._producer = producer_of(self.actor, "w")
        self._producer.init_transactions()

    def go_on(self) -> None:
        with suppress(TxnlogError):
            transact(self.actor, self._producer, self.name, *self.topics)


@operation
class TakeOver(Operation):
    """A new instance takes an id over, and commits twice."""

    name = "take over"

    def act(self) -> None:
        producer = producer_of(self.actor, "w")
        producer.init_transactions()
        for _ in range(2):
            transact(self.actor, producer, self.name, "a", "b")


@operation
class WorkOn(Operation):
    """A new instance takes an id over, and works for so long that names of its log are freed."""

    name = "work on"
    transactional_id = "w"
    topics: tuple[str, ...] = ("b",)

    def act(self) -> None:
        producer = producer_of(self.actor, self.transactional_id)
        producer.init_transactions()
        for _ in range(4):
            transact(self.actor, producer, self.name, "b")
            self.world.time_ms += LIMITS_MS


@operation
class WorkAnew(WorkOn):
    """The same with an id that was idle, and may have expired."""

    name = "work anew"
    transactional_id = "idle"


@operation
class Revive(Operation):
    """An instance of an id that has been idle for so long that it may have expired."""

    name = "revive"

    def act(self) -> None:
        producer = producer_of(self.actor, "idle")
        producer.init_transactions()
        transact(self.actor, producer, self.name, "b")


@operation
class TimeOut(Operation):
    """A reader that ends somebody's transaction that is past its timeout."""

    name = "time out"

    def prepare(self) -> None:
        hung = self.world.actor("hung")
        producer = producer_of(hung, "hung")
        producer.init_transactions()
        producer.begin_transaction()
        self._intent = hung.begin("hung")
        for topic in self.topics:
            hung.send(producer, self._intent, topic)
        producer.flush()
        self._hung = producer

    def act(self) -> None:
        self.world.time_ms += TIMEOUT_MS + CLOCK_MARGIN_MS + 1
        began = self.history.tick()
        snapshot = self.store.snapshot(self.topics)
        self.actor.saw(snapshot, self.name, began=began)

    def go_on(self) -> None:
        with suppress(TxnlogError):
            self.actor.commit(self._hung, self._intent)


@operation
class Begin(Operation):
    """A transaction that begins, joins a topic, places nothing, and is aborted."""

    name = "begin"

    def prepare(self) -> None:
        self._producer = producer_of(self.actor, "x")
        self._producer.init_transactions()

    def act(self) -> None:
        self._producer.begin_transaction()
        intent = self.actor.begin(self.name)
        assert self._producer._coordinator is not None
        self._producer._coordinator._participate(["a"], [])
        self._producer.abort_transaction()
        self.history.aborted(intent)


def copy_once(actor: Actor, consumer: Consumer, producer: Producer, name: str) -> None:
    """Read what is there, write something for it to ``b``, and move the group, all in one."""
    records = consumer.poll(max_records=100)
    if not records:
        return
    read = {actor.history.name_of(r.value.decode()) for r in records if r.value is not None}
    actor.known |= read
    producer.begin_transaction()
    intent = actor.begin(name, consumed=[*read])
    intent.span = range(records[0].offset, records[-1].offset + 1)
    try:
        actor.send(producer, intent, "b")
        producer.send_offsets_to_transaction(
            {SOURCE: records[-1].offset + 1}, consumer.group_metadata()
        )
        producer.flush()
    except TxnlogError:
        actor.history.aborted(intent)
        raise
    actor.history.move("g", intent, intent.span.stop)
    actor.commit(producer, intent)


@operation
class Copy(Operation):
    """Consume, produce and move the group's offsets in one transaction."""

    name = "copy"

    def prepare(self) -> None:
        self._producer = producer_of(self.actor, "copy")
        self._producer.init_transactions()
        self._consumer = self.store.consumer(group_id="g", auto_offset_reset="earliest")
        self._consumer.assign([SOURCE])

    def act(self) -> None:
        copy_once(self.actor, self._consumer, self._producer, self.name)


@operation
class Cause(Copy):
    """Somebody commits, and what is made of it is committed elsewhere: a cause and its effect."""

    name = "cause and effect"

    def act(self) -> None:
        transact(self.actor, self._producer, "cause", "a")
        copy_once(self.actor, self._consumer, self._producer, "effect")


@operation
class Offsets(Operation):
    """A consumer commits where it is, without a transaction."""

    name = "offsets"
    topics = ("a",)
    moves_group: ClassVar[bool] = True

    def prepare(self) -> None:
        self._consumer = self.store.consumer(group_id="g", auto_offset_reset="earliest")
        self._consumer.assign([SOURCE])
        self._consumer.poll(max_records=1)

    def act(self) -> None:
        intent = self.actor.begin(self.name)
        self.history.move("g", intent, self._consumer.position(SOURCE))
        self.history.ask(intent)
        try:
            self._consumer.commit()
        except TxnlogError:
            self.history.aborted(intent)
            raise
        self.history.committed(intent)


@operation
class Reset(Operation):
    """An operator moves a group."""

    name = "reset"
    topics = ("a",)
    moves_group: ClassVar[bool] = True

    def act(self) -> None:
        intent = self.actor.begin(self.name)
        self.history.move("g", intent, None)
        self.history.ask(intent)
        try:
            (reset,) = self.store.groups.reset_offsets("g", [SOURCE], to="earliest")
        except TxnlogError:
            self.history.aborted(intent)
            raise
        self.history.move("g", intent, reset.after)
        self.history.committed(intent)


@operation
class Join(Operation):
    """A consumer joins a group that has a member, and reads."""

    name = "join"
    topics = ("a",)

    def prepare(self) -> None:
        self._other = self.world.actor("member").store.consumer("a", group_id="m")
        self._other.poll()

    def act(self) -> None:
        self._consumer = self.store.consumer("a", group_id="m", auto_offset_reset="earliest")
        self._consumer.poll()

    def go_on(self) -> None:
        for _ in range(8):
            self._other.poll()
            self._consumer.poll()
            self.world.time_ms += 3_000


@operation
class Leave(Operation):
    """A member of a group of two leaves it."""

    name = "leave"
    topics = ("a",)

    def prepare(self) -> None:
        self._other = self.world.actor("member").store.consumer("a", group_id="m")
        self._consumer = self.store.consumer("a", group_id="m", enable_auto_commit=True)
        for _ in range(4):
            self._other.poll()
            self._consumer.poll()
            self.world.time_ms += 3_000

    def act(self) -> None:
        self._consumer.poll()
        self._consumer.close()

    def go_on(self) -> None:
        for _ in range(4):
            self._other.poll()
            self.world.time_ms += 3_000
