"""``check(spark, path)``: a whole round through Spark, to find what is wrong with the set-up."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from txnlog import __version__
from txnlog.errors import InvalidOption, TxnlogError
from txnlog.spark.options.store_options import open_at, store_options
from txnlog.spark.registration import register
from txnlog.spark.source import reads_streams
from txnlog.spark.transactions.row_budget import BATCH_BYTES, UNBOUNDED
from txnlog.spark.transactions.transaction import transaction
from txnlog.state.transaction import IDLE, expire
from txnlog.store import Store, open_store

RECORDS = 1_000
_TASKS = 4
"""The number of tasks if the number of cores is unknown: through Spark Connect."""
_MOST_TASKS = 32
_STREAM_S = 300
_REDACTION = "spark.sql.redaction.options.regex"
_NOT_SEEN_AS_SECRET = re.compile("(?i)account_key|connection_string|passphrase|SSECustomerKey")
"""Credentials that Spark shows: neither names nor values are of those that it hides by itself."""
_WORKER = "host string, python string, version string, store string, error string"


@dataclass(frozen=True, slots=True)
class CheckStep:
    """One step of the check: ``problem`` says what is wrong and what to do; None if it works."""

    name: str
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class SetUpCheck:
    """What :func:`check` found, step by step. After a step that fails it only cleans up.

    ``advice`` is what would make a set-up that works faster. ``str()`` has one line for each step,
    and one for each piece of advice.
    """

    steps: tuple[CheckStep, ...]
    advice: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if everything works."""
        return all(step.problem is None for step in self.steps)

    def __str__(self) -> str:
        steps = (
            f"ok      {step.name}"
            if step.problem is None
            else f"FAILED  {step.name}: {step.problem}"
            for step in self.steps
        )
        return "\n".join([*steps, *(f"advice  {one}" for one in self.advice)])


def check(
    spark: SparkSession,
    path: str | Store,
    *,
    storage_options: Mapping[str, object] | None = None,
) -> SetUpCheck:
    """Write, read and commit to a store through Spark, and say what is wrong with the set-up.

        print(check(spark, "s3://bucket/store"))

    It creates two topics, a group and a transactional id, all named ``txnlog-check-...``, and
    removes them again, which takes a maintainer's rights (docs/DEPLOYMENT.md). It tries a write, a
    read, a stream (from Spark 4.2 on), and a transaction that reads, writes and moves the group, on
    the executors as well.

    Args:
        spark: the session whose executors must reach the store.
        path: the store's folder or URL, or an open store.
        storage_options: for the filesystem, as ``txnlog.open`` takes them.
    """
    steps: list[CheckStep] = []

    def succeeds(name: str, step: Callable[[], None]) -> bool:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is wrong
            steps.append(CheckStep(name, _problem(error)))
            return False
        steps.append(CheckStep(name))
        return True

    opened: list[_Round] = []

    def open_here() -> None:
        options = dict(storage_options or {})
        store = path if isinstance(path, Store) else open_store(path, storage_options=options)
        opened.append(_Round(spark, store, options))

    if not succeeds("this process opens the store", open_here):
        return SetUpCheck(tuple(steps))
    [tried] = opened
    rest: tuple[tuple[str, Callable[[], None]], ...] = (
        ("Spark's workers have txnlog", partial(register, spark)),
        ("each worker opens the same store with the same txnlog", tried.ask_workers),
        ("topics are created", tried.create),
        ("a DataFrame is written", tried.write),
        ("and read", tried.read),
        *([("and by a stream", tried.stream)] if reads_streams() else []),
        ("a transaction reads, writes and moves a group's offsets", tried.run_transaction),
    )
    all(succeeds(name, step) for name, step in rest)
    if tried.has_created:
        succeeds("all of it is removed again", tried.remove)
    found = SetUpCheck(tuple(steps))
    return replace(found, advice=tuple(_advice(spark, tried.options))) if found.ok else found


def _advice(spark: SparkSession, options: Mapping[str, str]) -> Iterator[str]:
    if spark.conf.get(BATCH_BYTES, None) is None:
        yield (
            f"set {BATCH_BYTES} to {UNBOUNDED} if rows are smaller than 10 kB: writes outside "
            "of transactions are up to twice as fast (docs/SPARK.md, Tuning a write)"
        )
    shown = [n for n, value in options.items() if _NOT_SEEN_AS_SECRET.search(f"{n} {value}")]
    if shown and spark.conf.get(_REDACTION, None) is None:
        yield (
            f"set {_REDACTION} to (?i)url|^storage[.] for the driver: Spark "
            f"shows {', '.join(sorted(shown))} in plain text in the plans of SQL views, and so in "
            "the event log (docs/SPARK.md, Credentials)"
        )


def _problem(error: Exception) -> str:
    """The message of an error of ours, which Spark puts behind a traceback."""
    if isinstance(error, TxnlogError):
        return f"{type(error).__name__}: {error}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("txnlog.errors.")]
    if ours:
        return ours[0].removeprefix("txnlog.errors.")
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


class _Round:
    """The steps, on topics of its own."""

    def __init__(
        self, spark: SparkSession, store: Store, storage_options: Mapping[str, object]
    ) -> None:
        self._spark = spark
        self._store = store
        self._storage_options = storage_options  # secrets among them
        self.options = store_options(store, storage_options)
        self._name = f"txnlog-check-{store.logs.clock.token()}"
        self._topics = (f"{self._name}-in", f"{self._name}-out")
        self.has_created = False

    @property
    def _tasks(self) -> int:
        if not hasattr(self._spark, "_jsparkSession"):
            return _TASKS
        return min(max(self._spark.sparkContext.defaultParallelism, 2), _MOST_TASKS)

    def ask_workers(self) -> None:
        """Raises InvalidOption: one has another txnlog or Python, or finds another store."""
        rows = self._spark.range(0, self._tasks, 1, self._tasks)
        ask = _Worker(self._store)
        found = {tuple(row) for row in rows.mapInArrow(ask, _WORKER).collect()}
        here = f"{sys.version_info.major}.{sys.version_info.minor}"
        for host, python, version, store_id, error in sorted(found, key=str):
            if error:
                raise InvalidOption(
                    f"a worker on {host} cannot open {self._store.url}: {error}. It needs the same "
                    "path or URL, and the same rights, as this process"
                )
            if store_id != self._store.store_id:
                raise InvalidOption(
                    f"a worker on {host} finds another store at {self._store.url}: each machine "
                    "has a folder of its own there; give a path or URL that all of them share"
                )
            if (python, version) != (here, __version__):
                raise InvalidOption(
                    f"a worker on {host} runs txnlog {version} in Python {python}, this process "
                    f"{__version__} in Python {here}: install the same on all of them, and set "
                    "PYSPARK_PYTHON"
                )

    def create(self) -> None:
        self.has_created = True
        for topic in self._topics:
            self._store.topics.create(topic, partitions=2)

    def write(self) -> None:
        rows = self._spark.range(0, RECORDS, 1, self._tasks)
        frame = rows.selectExpr("string(id) AS key", "string(id) AS value")
        options = {**self.options, "topic": self._topics[0]}
        frame.write.format("txnlog").options(**options).mode("append").save()

    def read(self) -> None:
        options = {**self.options, "subscribe": self._topics[0]}
        found = self._spark.read.format("txnlog").options(**options).load()
        self._expect(found.selectExpr("sum(int(string(value)))").collect()[0][0])

    def stream(self) -> None:
        options = {**self.options, "subscribe": self._topics[0], "startingOffsets": "earliest"}
        frame = self._spark.readStream.format("txnlog").options(**options).load()
        # Nothing is written, so Spark needs no place for a checkpoint.
        query = frame.writeStream.format("noop").trigger(availableNow=True).start()
        try:
            query.awaitTermination(_STREAM_S)
        finally:
            query.stop()
        found = sum(progress["numInputRows"] for progress in query.recentProgress)
        if found != RECORDS:
            raise InvalidOption(f"{RECORDS} records were written, and a stream has read {found}")

    def run_transaction(self) -> None:
        source, target = self._topics
        with transaction(
            self._spark,
            self._store,
            transactional_id=self._name,
            group_id=self._name,
            storage_options=self._storage_options,
        ) as txn:
            txn.write(txn.read(source).drop("partition"), topic=target)
        values = self._store.scan(target, columns=["value"]).to_arrow().column("value")
        self._expect(sum(map(int, values.to_pylist())))
        if self._store.groups.describe(self._name).lag:
            raise InvalidOption("the transaction is committed, but its group has not moved")

    def remove(self) -> None:
        """Remove the topics, the group and the transactional id, as far as they exist.

        Raises the first error, after all the removals were tried.
        """
        errors = []
        there = self._store.topics.list()
        for topic in self._topics:
            if topic in there:
                errors += _tried(partial(self._store.topics.delete, topic))
        if self._name in self._store.groups.list():
            errors += _tried(partial(self._store.groups.delete, self._name))
        errors += _tried(self._remove_id)
        if errors:
            raise errors[0]

    def _remove_id(self) -> None:
        """Remove the id's log at once: no other process knows the id."""
        transactions, clock = self._store.logs.transactions, self._store.logs.clock
        since = transactions.now()
        head = transactions.head(self._name)
        if head is None or head.state.status not in IDLE:
            return
        reason = "the check of the set-up has ended"
        dead = expire(head.state, now_ms=clock.now_ms(), nonce=clock.token(), reason=reason)
        if transactions.put(head.number + 1, dead, since):
            ended = transactions.head(self._name)
            assert ended is not None
            transactions.remove(ended)

    def _expect(self, total: int | None) -> None:
        expected = RECORDS * (RECORDS - 1) // 2
        if total != expected:
            raise InvalidOption(
                f"{RECORDS} records were written, but others were read: their values add up to "
                f"{total}, not {expected}"
            )


def _tried(step: Callable[[], None]) -> list[TxnlogError]:
    try:
        step()
    except TxnlogError as error:
        return [error]
    return []


class _Worker:
    """Tells what runs a task, and which store it finds."""

    def __init__(self, store: Store) -> None:
        self._address = store.storage.address()

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            store_id = error = ""
            try:
                opened = open_at(self._address)
                opened.storage.list_names("")  # of each root, where there are several
                store_id = opened.store_id
            except TxnlogError as failed:
                error = f"{type(failed).__name__}: {failed}"
            said = {
                "host": platform.node(),
                "python": f"{sys.version_info.major}.{sys.version_info.minor}",
                "version": __version__,
                "store": store_id,
                "error": error,
            }
            yield pa.RecordBatch.from_pylist([said])
