"""Jobs that are interrupted at one line of one call, and then go on in the same process.

Each goes on as a notebook's user would: it calls again what was interrupted, aborts what it is told
to abort, and begins anew from the group's offsets. Then its view must be that of a process that
starts now, at once and after the next checkpoint, and nothing was written twice or lost.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from tests.support.runtime.interrupts import Point, Tracer
from tests.support.steps import append, begin_with, new_store, stop_before_marking
from txnlog import ConsumerConfig
from txnlog.errors import InvalidTxnState
from txnlog.log.state_log import StateLog
from txnlog.names import TopicPartition
from txnlog.producer import Producer
from txnlog.results import FutureRecordMetadata
from txnlog.storage.base import Storage
from txnlog.storage.threads import THREADS
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock

GROUP = "g"
WATCHED = (
    *("state/", "log/", "write/", "groups/", "producer.py", "consumer.py"),
    *("storage/create_once.py", "storage/envelope.py"),
)
WATCHED_READS = ("read/consumer_reads.py", "read/poll_wait.py")
IN = [TopicPartition("in", 0), TopicPartition("in", 1)]
INPUT = [b"%d" % number for number in range(6)]
KINDS: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit, MemoryError)
LOCKS = {type(threading.Lock()), type(threading.RLock())}


class Job(ABC):
    """A process with a store of its own, and the call that is interrupted."""

    watched: ClassVar[tuple[str, ...]] = WATCHED + WATCHED_READS

    def __init__(self, storage: Storage | None = None) -> None:
        self.clock = VirtualClock()
        heap = HeapStorage()
        heap.time_ms = self.clock.now_ms
        self.storage = storage or heap
        self.store = new_store(self.storage, self.clock, {"in": 2, "out": 1, "notes": 1})
        with self.store.producer() as producer:
            for number, value in enumerate(INPUT):
                producer.send("in", value, partition=number % 2)
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Come to the call."""

    @abstractmethod
    def call(self) -> None:
        """What is interrupted."""

    @abstractmethod
    def go_on(self) -> None:
        """What the application does then, until it is through."""

    @abstractmethod
    def judge(self, fresh: Store) -> None:
        """Check what was written, as another process finds it."""

    def roots(self) -> Iterator[object]:
        """What holds locks."""
        yield self.store
        yield THREADS

    # -- the judge -------------------------------------------------------------------------------

    def logs(self) -> list[StateLog[Any, Any]]:
        logs = self.store.logs
        return [logs.topic("in"), logs.topic("out"), logs.topic("notes"), logs.group(GROUP)]

    def check(self) -> None:
        """This process's view is that of one that starts now, also after the next checkpoints."""
        locked = [*held_locks(self.roots())]
        assert not locked, f"still locked: {locked}"
        self._compare("now")
        for log in self.logs():
            log.refresh()
            if log.next_entry:
                log.checkpoint()
        self._compare("after the next checkpoint")

    def _compare(self, when: str) -> None:
        fresh = attach(self.storage, clock=self.clock)
        for log in self.logs():
            other = fresh.logs.log(log.kind, log.name)
            found = view(self.store, log)
            assert found == view(fresh, other), f"{log.kind} {log.name} {when}"

    def finish(self) -> None:
        """Go on to the end, and check everything once more."""
        self.go_on()
        self.check()
        self.judge(attach(self.storage, clock=self.clock))


def view(store: Store, log: StateLog[Any, Any]) -> object:
    """What a process makes of a log: what it decided, where partitions end, offsets."""
    log.refresh()
    store.logs.settlement.settle([log])
    with log.lock:
        state = log.state
        if log.kind == "group":
            held = state.membership.members
            return state.committed, state.pending, state.membership.generation, sorted(held)
        ends = [(part.log_start_offset, part.end_offset) for part in state.partitions]
        placed = [[s.stored.name for s in part.segments[-8:]] for part in state.partitions]
        return state.next_entry, ends, state.last_stable_offsets(), state.undecided, placed[:0]


def held_locks(roots: Iterator[object]) -> Iterator[str]:
    """The locks below these objects that a thread which asks for them does not get."""
    seen, waiting = set[int](), [(type(root).__name__, root) for root in roots]
    locks: list[tuple[str, Any]] = []
    while waiting:
        name, one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if type(one) in LOCKS:
            locks.append((name, one))
        elif isinstance(one, dict):
            waiting += [(f"{name}[{key!r}]", value) for key, value in one.items()]
        elif isinstance(one, list | tuple | set):
            waiting += [(f"{name}[]", value) for value in one]
        elif type(one).__module__.startswith("txnlog."):
            waiting += [(f"{name}.{key}", v) for key, v in getattr(one, "__dict__", {}).items()]
            for slot in getattr(type(one), "__slots__", ()):
                if hasattr(one, slot):
                    waiting.append((f"{name}.{slot}", getattr(one, slot)))
    taken: list[str] = []

    def take() -> None:
        for name, lock in locks:
            if lock.acquire(blocking=False):
                lock.release()
            else:
                taken.append(name)

    other = threading.Thread(target=take)
    other.start()
    other.join()
    yield from taken


class Copying(Job):
    """Consumes, transforms and produces: each input once in ``out``, with its group's offsets."""

    options: ClassVar[dict[str, Any]] = {}

    def prepare(self) -> None:
        self.consumer = self.store.consumer(
            group_id=GROUP, auto_offset_reset="earliest", max_poll_records=4, **self.options
        )
        self.begin_reading()
        self.producer = self.store.producer(transactional_id="copy")
        self.producer.init_transactions()
        self.copy(self.polled())  # the first of two rounds
        self.arrive()

    def begin_reading(self) -> None:
        self.consumer.assign(IN)

    def arrive(self) -> None:
        """Come to the call in the second round."""

    def roots(self) -> Iterator[object]:
        yield from super().roots()
        yield self.producer
        yield self.consumer

    def polled(self) -> list[bytes]:
        found = []
        for _ in range(3):
            if found := self.consumer.poll():
                break
        return [record.value for record in found if record.value is not None]

    def copy(self, values: list[bytes]) -> None:
        """One transaction."""
        if not values:
            return
        self.begin()
        self.send(values)
        self.producer.flush()
        self.offsets()
        self.producer.commit_transaction()

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, values: list[bytes]) -> None:
        for value in values:
            self.producer.send("out", value)

    def offsets(self) -> None:
        self.producer.send("notes", b"a round")
        positions = {where: self.consumer.position(where) for where in self.consumer.assignment()}
        self.producer.send_offsets_to_transaction(positions, self.consumer.group_metadata())

    def go_on(self) -> None:
        """Abort what is open, unless it is committed, and begin anew from the group's offsets."""
        end_transaction(self.producer)
        for where in self.consumer.assignment():
            found = self.consumer.committed(where)
            self.consumer.seek(where, found.offset if found else 0)
        while values := self.polled():
            self.copy(values)

    def judge(self, fresh: Store) -> None:
        found = fresh.scan("out").to_arrow().column("value").to_pylist()
        assert sorted(found) == INPUT, f"inputs copied: {found}"
        reader = fresh.consumer(group_id=GROUP)
        ends = {where: at.offset for where in IN if (at := reader.committed(where))}
        assert ends == {IN[0]: 3, IN[1]: 3}, f"the group's offsets: {ends}"


def end_transaction(producer: Producer, call: Callable[[], object] | None = None) -> bool:
    """Commit or abort, as the producer allows; returns whether it is committed."""
    try:
        (call or producer.commit_transaction)()
    except InvalidTxnState:
        with suppress(InvalidTxnState):  # none is open, or its commit had succeeded
            producer.abort_transaction()
        return False
    return True


class Send(Copying):
    """Records one by one, in a transaction."""

    def arrive(self) -> None:
        self.values = self.polled()
        self.begin()

    def call(self) -> None:
        self.send(self.values)
        self.producer.send("out", b"never", partition=0, headers=[("h", b"x")])

    def go_on(self) -> None:
        self.producer.abort_transaction()
        super().go_on()


class Begin(Copying):
    """A transaction begins."""

    def arrive(self) -> None:
        self.values = self.polled()

    def call(self) -> None:
        self.begin()

    def go_on(self) -> None:
        with suppress(InvalidTxnState):
            self.producer.abort_transaction()
        super().go_on()


class Flush(Copying):
    """What was sent is placed, in a transaction."""

    def arrive(self) -> None:
        self.values = self.polled()
        self.begin()
        self.send(self.values)

    def call(self) -> None:
        self.producer.flush()

    def go_on(self) -> None:
        self.producer.abort_transaction()
        super().go_on()


class SendOffsets(Flush):
    """The offsets of what was polled become part of it."""

    def arrive(self) -> None:
        super().arrive()
        self.producer.flush()

    def call(self) -> None:
        self.offsets()


class Commit(Copying):
    """What is waiting is placed, decided and marked."""

    def arrive(self) -> None:
        values = self.polled()
        self.begin()
        self.send(values)
        self.offsets()

    def call(self) -> None:
        self.producer.commit_transaction()


class Abort(Commit):
    """What was placed is aborted."""

    def call(self) -> None:
        self.producer.flush()
        self.producer.abort_transaction()

    def go_on(self) -> None:
        with suppress(InvalidTxnState):
            self.producer.abort_transaction()
        super().go_on()


class Initialise(Commit):
    """Another instance takes the id over, and ends what is open."""

    def call(self) -> None:
        self.producer = self.store.producer(transactional_id="copy")
        self.producer.init_transactions()

    def go_on(self) -> None:
        with suppress(InvalidTxnState):
            self.producer.init_transactions()
        super().go_on()


class Poll(Copying):
    """What was polled and not returned comes again, and nothing that was returned."""

    later: ClassVar[list[bytes]] = []

    def arrive(self) -> None:
        self.read: list[bytes] = []

    def call(self) -> None:
        self.read += self.polled()
        self.read += self.polled()

    def go_on(self) -> None:
        before = [*self.read]
        while values := self.polled():
            self.read += values
        assert len(self.read) == len({*self.read}), f"{before}, then {self.read}"
        expected = {*INPUT, *self.later}
        assert {*self.read} | {*self.copied()} == expected, f"{before}, then {self.read}"
        super().go_on()

    def copied(self) -> list[bytes]:
        found: list[bytes] = self.store.scan("out").to_arrow().column("value").to_pylist()
        return found


class PollBatches(Poll):
    """The same of columns."""

    def polled(self) -> list[bytes]:
        for _ in range(3):
            if found := self.consumer.poll_batches():
                break
        return [
            value
            for batches in found.values()
            for batch in batches
            for value in batch.column("value").to_pylist()
        ]


class PollUndecided(Poll):
    """Another process has committed and not marked anything: the poll learns it."""

    later: ClassVar[list[bytes]] = [b"6"]

    def arrive(self) -> None:
        super().arrive()
        other = attach(self.storage, clock=self.clock)
        other_one = begin_with(other, "other")
        other_one.send("in", b"6", partition=0)
        other_one.send_offsets_to_transaction({TopicPartition("notes", 0): 0}, GROUP)
        stop_before_marking(other_one)
        other_one.commit_transaction()
        self.consumer.committed(IN[0])

    def judge(self, fresh: Store) -> None:
        found = fresh.scan("out").to_arrow().column("value").to_pylist()
        assert sorted(found) == [*INPUT, b"6"], f"inputs copied: {found}"


class Plain(Job):
    """Without a transaction: a flush that is repeated writes once, or says that all is lost."""

    def prepare(self) -> None:
        self.producer = self.store.producer()
        self.producer.send("out", b"0")
        self.producer.flush()
        self.producer.send("out", b"1")
        self.producer.send("notes", b"1")
        self.refused = False

    def call(self) -> None:
        self.producer.flush()

    def go_on(self) -> None:
        try:
            self.producer.flush()
            self.producer.send("out", b"2")
            self.producer.flush()
        except InvalidTxnState as error:
            self.refused = "is lost" in str(error)

    def judge(self, fresh: Store) -> None:
        found = fresh.scan("out").to_arrow().column("value").to_pylist()
        notes = fresh.scan("notes").to_arrow().column("value").to_pylist()
        if self.refused:
            assert found in ([b"0"], [b"0", b"1"]), found
            assert notes in ([], [b"1"]), notes
        else:
            assert (found, notes) == ([b"0", b"1", b"2"], [b"1"])

    def roots(self) -> Iterator[object]:
        yield from super().roots()
        yield self.producer


class Submit(Plain):
    """The same with futures: each is done in the end, and has its record's place or an error."""

    def prepare(self) -> None:
        super().prepare()
        self.calls = 0
        self.submitted: list[FutureRecordMetadata] = []

    def call(self) -> None:
        for topic in ("out", "notes", "out"):
            delivery = self.producer.send(topic, b"s", on_delivery=self.count)
            self.submitted.append(delivery)
        self.producer.flush()

    def count(self, _: FutureRecordMetadata) -> None:
        self.calls += 1

    def go_on(self) -> None:
        with suppress(InvalidTxnState):
            self.producer.flush()
        self.producer.close()

    def judge(self, fresh: Store) -> None:
        assert all(delivery.done() for delivery in self.submitted)
        assert self.calls >= len(self.submitted) - 1, "one callback may be interrupted itself"
        told = [one.result() for one in self.submitted if one.exception() is None]
        assert len({*told}) == len(told)
        for place in told:
            found = fresh.scan(place.topic, {0: place.offset}, {0: place.offset + 1}).to_arrow()
            assert found.column("value").to_pylist() == [b"s"], place


class SubmitInTransaction(Flush):
    """In a transaction: after an abort no future is left that nobody will ever tell."""

    def prepare(self) -> None:
        self.submitted: list[FutureRecordMetadata] = []
        super().prepare()

    def send(self, values: list[bytes]) -> None:
        for value in values:
            self.submitted.append(self.producer.send("out", value))

    def judge(self, fresh: Store) -> None:
        super().judge(fresh)
        assert all(delivery.done() for delivery in self.submitted)
        found = fresh.scan("out").to_arrow()
        told = [d.result().offset for d in self.submitted if d.exception() is None]
        assert {*found.column("offset").to_pylist()} <= {*told}


class CommitOffsets(Copying):
    """A consumer commits its offsets itself, of what it has processed."""

    def arrive(self) -> None:
        self.copied = self.polled()
        self.moved = {where: self.consumer.position(where) for where in IN}

    def call(self) -> None:
        self.consumer.commit()

    def go_on(self) -> None:
        self.consumer.commit()
        assert self.polled() == []

    def judge(self, fresh: Store) -> None:
        reader = fresh.consumer(group_id=GROUP)
        assert {where: at.offset for where in IN if (at := reader.committed(where))} == self.moved


class AutoCommit(Poll):
    """A poll commits the offsets of earlier ones."""

    options: ClassVar[dict[str, Any]] = {
        "enable_auto_commit": True,
        "config": ConsumerConfig(auto_commit_interval_ms=1000),
    }

    def prepare(self) -> None:
        self.consumer = self.store.consumer(
            group_id=GROUP, auto_offset_reset="earliest", max_poll_records=2, **self.options
        )
        self.consumer.assign(IN)
        self.read = self.polled()
        self.clock.sleep(2)

    def roots(self) -> Iterator[object]:
        yield from Job.roots(self)
        yield self.consumer

    def go_on(self) -> None:
        while values := self.polled():
            self.read += values
        assert sorted(self.read) == INPUT
        self.clock.sleep(2)
        assert self.polled() == []

    def judge(self, fresh: Store) -> None:
        reader = fresh.consumer(group_id=GROUP)
        assert [at.offset for where in IN if (at := reader.committed(where))] == [3, 3]


class Checkpoint(Copying):
    """All logs get checkpoints and manifests, and are cleaned behind them."""

    def arrive(self) -> None:
        for number in range(12):
            append(self.store, b"%d" % number, topic="notes")

    def call(self) -> None:
        for log in self.logs():
            log.refresh()
            log.checkpoint()


class Maintain(Checkpoint):
    """Small segments are merged, and files deleted."""

    def arrive(self) -> None:
        super().arrive()
        for log in self.logs():
            log.checkpoint()

    def call(self) -> None:
        self.store.maintain()

    def go_on(self) -> None:
        self.store.maintain()
        super().go_on()


class Member(Copying):
    """It shares the group with another one, which comes and goes."""

    def begin_reading(self) -> None:
        self.consumer.subscribe(["in"])

    def arrive(self) -> None:
        self.other = attach(self.storage, clock=self.clock).consumer(
            "in", group_id=GROUP, auto_offset_reset="earliest"
        )
        self.other.poll()

    def call(self) -> None:
        for _ in range(5):
            self.consumer.poll()
            self.other.poll()
            self.clock.sleep(1)

    def go_on(self) -> None:
        for _ in range(20):
            self.clock.sleep(3)
            self.consumer.poll()
            self.other.poll()
        shared = [*self.consumer.assignment(), *self.other.assignment()]
        assert sorted(shared) == IN, f"read by both: {shared}"
        self.other.close()
        for _ in range(8):
            self.clock.sleep(3)
            self.consumer.poll()
        assert sorted(self.consumer.assignment()) == IN
        super().go_on()


class Join(Member):
    """It joins while another one has all partitions, and gets its share."""

    def begin_reading(self) -> None:
        self.consumer.assign(IN)

    def arrive(self) -> None:
        self.other = attach(self.storage, clock=self.clock).consumer(
            "in", group_id=GROUP, auto_offset_reset="earliest"
        )
        self.other.poll()
        self.consumer.subscribe(["in"])


class Leave(Member):
    """It leaves its group."""

    def call(self) -> None:
        self.consumer.close()

    def go_on(self) -> None:
        self.consumer.close()
        assert len(self.members()) == 1, "it has left for good"
        self.consumer = self.store.consumer(
            "in", group_id=GROUP, auto_offset_reset="earliest", max_poll_records=4
        )
        super().go_on()

    def members(self) -> list[str]:
        log = self.store.logs.fresh_group(GROUP)
        with log.lock:
            state = log.state
            return [*state.membership.members]


class Settle(Copying):
    """A process that only reads learns of others' decisions, all of them at once."""

    def arrive(self) -> None:
        self.others = [attach(self.storage, clock=self.clock) for _ in range(2)]
        for name, topic, store in zip("ab", ("notes", "out"), self.others, strict=True):
            one = begin_with(store, name)
            one.send("notes", b"1")
            one.send_offsets_to_transaction({TopicPartition(topic, 0): 0}, GROUP)
            stop_before_marking(one)
            one.commit_transaction() if name == "a" else one.flush()
        for log in self.logs():
            log.refresh()

    def call(self) -> None:
        for log in self.logs():
            log.refresh()
        self.store.logs.settlement.settle(self.logs())
        self.store.scan("notes")


JOBS: list[type[Job]] = [
    *(Begin, Send, Flush, SendOffsets, Commit, Abort, Initialise, Poll, PollBatches),
    *(
        PollUndecided,
        Plain,
        Submit,
        SubmitInTransaction,
        CommitOffsets,
        AutoCommit,
        Checkpoint,
        Maintain,
        Member,
        Join,
        Leave,
        Settle,
    ),
]


def lines_of(job_type: type[Job]) -> list[Point]:
    """The lines that a job's call passes; undisturbed it ends well."""
    job = job_type()
    tracer = Tracer(job.watched)
    tracer.run(job.call)
    job.finish()
    return tracer.points()


def interrupt(job_type: type[Job], at: Point, kind: type[BaseException]) -> None:
    """Interrupt the call of a new job there, and let it go on to its end."""
    job = job_type()
    tracer = Tracer(job.watched, at, kind)
    threads = {*threading.enumerate()}
    left: BaseException | None = None
    try:
        tracer.run(job.call)
    except BaseException as error:  # noqa: BLE001 - the test judges it, whatever it is
        left = error  # kept, as notebooks do: nothing may wait for its end
    assert tracer.raised, f"{at} was not passed"
    assert left is None or type(left) is kind, f"{left!r} after {kind.__name__} at {at}"
    try:
        job.check()
        job.finish()
    except Exception as error:
        error.add_note(f"after {kind.__name__} at {at}")
        raise
    assert {*threading.enumerate()} <= threads, f"threads were left at {at}"


def interrupt_each(job_type: type[Job], points: Sequence[Point]) -> None:
    """Interrupt at each of these lines, by one of the three in turn."""
    for number, at in enumerate(points):
        interrupt(job_type, at, KINDS[number % len(KINDS)])
