"""A process whose operations become a history: run as ``python worker.py JOB``, a Job as JSON.

It notes down each operation before and after it, and says a line after each, by which whoever has
started it lets others go on, stops or kills it.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import txnlog
from tests.support.simulation.histories.history import Notebook
from txnlog import ConsumerConfig, IsolationLevel
from txnlog.clock import SystemClock
from txnlog.errors import CommitStateUnknown, TxnlogError
from txnlog.log.open_logs import Logs

TOPICS = {"a": 2, "b": 1, "c": 2}
"""How many partitions they begin with; more are added."""
SOURCE, TARGET, COPIES, MEMBERS = "a", "c", "copies", "members"
MOST_PARTITIONS = 5
STOP = "stop"
LEVELS: tuple[IsolationLevel, ...] = ("snapshot", "read_committed", "read_uncommitted")


@dataclass
class Job:
    """What a process is to do, under which name."""

    url: str
    folder: str
    role: str
    name: str
    seed: int
    options: dict[str, Any] = field(default_factory=dict)
    incarnation: int = 0
    timeout_ms: int = 2_000

    def command(self) -> list[str]:
        return [sys.executable, __file__, json.dumps(asdict(self))]


class Worker:
    """What all roles share: the store, the notebook, and words to whoever listens."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.chance = random.Random(f"{job.seed} {job.name} {job.incarnation}")
        name = f"{job.name}.{job.incarnation}"
        self.name = name
        self.notebook = Notebook(Path(job.folder) / f"{name}.history")
        self.store = txnlog.open(job.url, storage_options=job.options)
        self._written = 0

    def goes_on(self) -> bool:
        """Until the run is over."""
        sys.stdout.write(f"{self.name}\n")
        sys.stdout.flush()
        return not (Path(self.job.folder) / STOP).exists()

    def value(self) -> str:
        self._written += 1
        return f"{self.name}#{self._written}"

    def partitions(self, topic: str) -> list[txnlog.TopicPartition]:
        """Those that it has by now."""
        found = self.store.snapshot([topic], isolation_level="read_uncommitted").partitions(topic)
        return [txnlog.TopicPartition(topic, number) for number in found]

    def somewhere(self, most: int) -> list[txnlog.TopicPartition]:
        chosen = self.chance.sample(sorted(TOPICS), self.chance.randint(1, min(most, len(TOPICS))))
        places = [self.chance.choice(self.partitions(topic)) for topic in chosen]
        # A transaction may write to one partition more than once, with others in between.
        return places + [place for place in places if self.chance.random() < 0.3]


def append(worker: Worker) -> None:
    """Without transactions, idempotent: what a flush places in a topic is one append."""
    with suppress(TxnlogError):
        producer = worker.store.producer()
        while worker.goes_on():
            where = worker.chance.choice(worker.somewhere(1))
            values = [worker.value() for _ in range(worker.chance.choice([1, 1, 3]))]
            number = worker.notebook.invoke("append", writes=[(str_of(where), v) for v in values])
            try:
                for value in values:
                    producer.send(where.topic, value, partition=where.partition)
                producer.flush()
            except TxnlogError:
                worker.notebook.result(number, "unknown")
                raise
            worker.notebook.result(number, "ok")


def transact(worker: Worker) -> None:
    """Transactions over several topics, open for a while, some of them aborted."""
    producer = worker.store.producer(
        transactional_id=worker.job.name, transaction_timeout_ms=worker.job.timeout_ms
    )
    with suppress(TxnlogError):
        producer.init_transactions()
        while worker.goes_on():
            places = worker.somewhere(3)
            _transaction(worker, producer, [(where, worker.value()) for where in places])


def _transaction(
    worker: Worker,
    producer: txnlog.Producer,
    writes: list[tuple[txnlog.TopicPartition, str]],
    offsets: Callable[[], None] = lambda: None,
    **noted: Any,
) -> None:
    """One transaction, whose outcome is noted; raises TxnlogError if it was not committed."""
    given = [(str_of(where), value) for where, value in writes]
    number = worker.notebook.invoke("transaction", writes=given, **noted)
    outcome = "aborted"
    try:
        producer.begin_transaction()
        for where, value in writes:
            producer.send(where.topic, value, partition=where.partition)
            if worker.chance.random() < 0.3:
                producer.flush()
                worker.goes_on()
        offsets()
        if worker.chance.random() < 0.1:
            producer.abort_transaction()
            return
        for _ in range(4):
            try:
                producer.commit_transaction()
            except CommitStateUnknown:
                outcome = "unknown"
            else:
                outcome = "ok"
                return
    finally:
        worker.notebook.result(number, outcome)


def copy(worker: Worker) -> None:
    """Consume, transform, produce: each record taken once, whoever else is in the group."""
    producer = worker.store.producer(
        transactional_id=worker.job.name, transaction_timeout_ms=worker.job.timeout_ms
    )
    with suppress(TxnlogError):
        producer.init_transactions()
        while worker.goes_on():
            with worker.store.consumer(
                group_id=COPIES, auto_offset_reset="earliest", max_poll_records=20
            ) as consumer:
                consumer.assign([worker.chance.choice(worker.partitions(SOURCE))])
                _copy_some(worker, producer, consumer)


def _copy_some(worker: Worker, producer: txnlog.Producer, consumer: txnlog.Consumer) -> None:
    (where,) = consumer.assignment()
    for _ in range(5):
        start = consumer.position(where)
        values = [text_of(record) for record in consumer.poll()]
        stop = consumer.position(where)
        if stop == start:
            return
        target = worker.chance.choice(worker.partitions(TARGET))
        writes = [(target, worker.value()) for _ in values or [""]]

        def move(stop: int = stop) -> None:
            producer.send_offsets_to_transaction({where: stop}, consumer.group_metadata())

        taken = {str_of(where): (start, stop, values)}
        _transaction(worker, producer, writes, move, group=COPIES, taken=taken)
        committed = consumer.committed(where)
        if committed is None or committed.offset != stop or not worker.goes_on():
            return  # after an abort the next consumer begins at what is committed


def poll(worker: Worker) -> None:
    """Read partitions from their beginning, without a group."""
    while worker.goes_on():
        with suppress(TxnlogError), worker.store.consumer(auto_offset_reset="earliest") as consumer:
            topic = worker.chance.choice(sorted(TOPICS))
            consumer.assign([worker.chance.choice(worker.partitions(topic))])
            for _ in range(10):
                _poll_once(worker, consumer, "")


def belong(worker: Worker) -> None:
    """A member of a group that shares partitions, and commits what it was given."""
    with (
        suppress(TxnlogError),
        worker.store.consumer(
            *sorted(TOPICS),
            group_id=MEMBERS,
            auto_offset_reset="earliest",
            config=ConsumerConfig(session_timeout_ms=2_000, heartbeat_interval_ms=300),
            max_poll_records=50,
        ) as consumer,
    ):
        while worker.goes_on():
            _poll_once(worker, consumer, MEMBERS)


def _poll_once(worker: Worker, consumer: txnlog.Consumer, group: str) -> None:
    """What a poll has returned counts as taken, whatever then becomes of its commit."""
    number = worker.notebook.invoke("poll", group=group)
    starts = {} if group else {where: consumer.position(where) for where in consumer.assignment()}
    values: dict[txnlog.TopicPartition, list[tuple[int, str]]] = {w: [] for w in starts}
    for record in consumer.poll(timeout_ms=200):
        where = txnlog.TopicPartition(record.topic, record.partition)
        values.setdefault(where, []).append((record.offset, text_of(record)))
    taken = {}
    for where, records in values.items():
        start = starts.get(where, records[0][0] if records else 0)
        stop = consumer.position(where) if where in starts else records[-1][0] + 1
        taken[str_of(where)] = (start, stop, [value for _, value in records])
    worker.notebook.result(number, "ok", taken=taken)
    if group:
        with suppress(TxnlogError):
            consumer.commit()


def read(worker: Worker) -> None:
    """Snapshots of everything, by a store that is kept, or opened for each."""
    anew = worker.job.name.endswith("anew")
    while worker.goes_on():
        if anew:
            worker.store = txnlog.open(worker.job.url, storage_options=worker.job.options)
        with suppress(TxnlogError):
            look(worker.store, worker.notebook, worker.chance.choice(LEVELS))


def look(
    store: txnlog.Store, notebook: Notebook, level: IsolationLevel, *, is_final: bool = False
) -> None:
    """One snapshot of all topics, and all that it shows."""
    number = notebook.invoke("read", level=level, is_final=is_final)
    snapshot = store.snapshot(sorted(TOPICS), isolation_level=level)
    shown: dict[str, list[tuple[int, str]]] = {}
    ends: dict[str, int] = {}
    for topic in TOPICS:
        for partition, end in snapshot.end_offsets(topic).items():
            shown[f"{topic}:{partition}"] = []
            ends[f"{topic}:{partition}"] = end
        table = snapshot.scan(topic, columns=["partition", "offset", "value"]).to_arrow()
        for partition, offset, value in zip(*map(pylist, table.columns), strict=True):
            shown[f"{topic}:{partition}"].append((offset, value.decode()))
    notebook.result(number, "ok", shown=shown, ends=ends, consistency=snapshot.consistency)


def maintain(worker: Worker) -> None:
    """Merge, clean up, checkpoint, and add partitions."""
    while worker.goes_on():
        with suppress(TxnlogError):
            logs: Logs = worker.store.logs
            topic = worker.chance.choice(sorted(TOPICS))
            lot = worker.chance.random()
            if lot < 0.15:
                worker.store.maintain()
            elif lot < 0.25:
                count = len(worker.partitions(topic))
                if count < MOST_PARTITIONS:
                    worker.store.topics.alter(topic, partitions=count + 1)
            else:
                log = logs.topic(topic) if lot < 0.8 else logs.group(COPIES)
                log.refresh()
                if log.next_entry:
                    log.checkpoint()
        SystemClock().sleep(worker.chance.random() * 0.2)


def str_of(where: txnlog.TopicPartition) -> str:
    return f"{where.topic}:{where.partition}"


def text_of(record: txnlog.ConsumerRecord) -> str:
    assert isinstance(record.value, bytes)
    return record.value.decode()


def pylist(column: Any) -> Iterable[Any]:
    values: list[Any] = column.to_pylist()
    return values


ROLES: dict[str, Callable[[Worker], None]] = {
    "append": append,
    "transact": transact,
    "copy": copy,
    "poll": poll,
    "belong": belong,
    "read": read,
    "maintain": maintain,
}

if __name__ == "__main__":
    job = Job(**json.loads(sys.argv[1]))
    ROLES[job.role](Worker(job))
