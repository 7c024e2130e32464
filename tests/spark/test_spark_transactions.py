"""transaction(...) and the options-only form: all or nothing, once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import txnlog
from tests.spark.spark_helpers import (
    data_files,
    fill,
    load,
    numbers,
    placed_files,
    save,
    stored,
    values,
)
from txnlog import Store, TopicPartition
from txnlog.clock import SystemClock
from txnlog.errors import (
    CommitFailed,
    CommitStateUnknown,
    CorruptEntry,
    GroupNotEmpty,
    IllegalState,
    InvalidOption,
    InvalidTxnState,
    ProducerFenced,
    StorageError,
)
from txnlog.spark import SparkTransaction, transaction
from txnlog.spark.batch.commit import put_staged, read_staged
from txnlog.storage.counting import CountingStorage
from txnlog.store import attach


@pytest.fixture
def topics(store: Store) -> Store:
    """Topics in (3 partitions), out (2), sums (1); 100 numbers are in ``in``."""
    for topic, partitions in (("in", 3), ("out", 2), ("sums", 1)):
        store.topics.create(topic, partitions=partitions)
    fill(store, "in", 0, 100)
    return store


def etl(txn: SparkTransaction) -> int:
    """Copy what is new to ``out`` and its sum to ``sums``; how much it was."""
    new = txn.read("in")
    if txn.consumed_records:
        txn.write(new.drop("partition"), topic="out")
        number = sf.col("value").cast("string").cast("long")
        txn.write(new.agg(sf.sum(number).cast("string").alias("value")), topic="sums")
    return txn.consumed_records


def begin(spark: SparkSession, store: Store, name: str = "etl", **more: Any) -> SparkTransaction:
    return transaction(spark, store.url, transactional_id=name, group_id="g", **more)


def send_and_fail(block: SparkTransaction) -> None:
    with block as txn:
        txn.send("sums", value="never")
        raise ZeroDivisionError


def leftovers(store: Store) -> list[str]:
    """Staged files, and segment files that no entry names."""
    staged = [path.name for path in Path(store.url).glob("staging/*")]
    return staged + sorted({*data_files(store)} - {*placed_files(store)})


def test_everything_is_committed_at_once(spark: SparkSession, topics: Store) -> None:
    """Inside the block nothing shows; after it all outputs and the offsets do."""
    with begin(spark, topics) as txn:
        assert etl(txn) == 100
        assert stored(topics, "out") == []
        assert "g" not in topics.groups.list()
        assert topics.topics.describe("out").entries == 1
        with pytest.raises(IllegalState):
            _ = txn.result
    assert stored(topics, "out") == list(range(100))
    assert stored(topics, "sums") == [sum(range(100))]
    assert topics.groups.describe("g").lag == 0
    assert txn.result.written_records == 101
    assert sum(len(span) for span in txn.result.consumed.values()) == 100
    assert txn.result.written[TopicPartition("sums", 0)] == [range(1)]
    assert topics.transactions.describe("etl").status == "CompleteCommit"
    assert leftovers(topics) == []


def test_a_loop_goes_on_where_the_last_one_stopped(spark: SparkSession, topics: Store) -> None:
    """Batches of at most max_records until nothing is new; then nothing is committed."""
    batches = []
    while True:
        with begin(spark, topics, max_records=60) as txn:
            batches.append(etl(txn))
        if not batches[-1]:
            break
    assert batches == [60, 40, 0]
    assert stored(topics, "out") == list(range(100))
    assert sum(stored(topics, "sums")) == sum(range(100))
    assert topics.groups.describe("g").lag == 0
    assert txn.result.written == {}
    assert topics.transactions.describe("etl").number == 2


def test_a_group_that_consumers_share_is_left_to_them(spark: SparkSession, topics: Store) -> None:
    """A job is not a member: it may move the group when its consumers have left."""
    with topics.consumer("in", group_id="g", auto_offset_reset="earliest") as consumer:
        assert len(consumer.poll()) == 100
        with pytest.raises(GroupNotEmpty), begin(spark, topics) as txn:
            etl(txn)
        assert stored(topics, "out") == []
    with begin(spark, topics) as txn:
        assert etl(txn) == 100
    assert stored(topics, "out") == list(range(100))


def test_reads_are_pinned(spark: SparkSession, topics: Store) -> None:
    """Records that arrive while the block runs are neither read nor skipped."""
    with begin(spark, topics) as txn:
        new = txn.read("in")
        fill(topics, "in", 100, 150)
        assert new.count() == 100
        txn.write(new.drop("partition"), topic="out")
    assert topics.groups.describe("g").lag == 50
    with begin(spark, topics) as txn:
        assert etl(txn) == 50
    assert stored(topics, "out") == list(range(150))


def test_topics_given_together_are_one_consistent_cut(spark: SparkSession, store: Store) -> None:
    """A transaction that is visible in one topic and held back in the other is left out."""
    for topic in ("a", "b"):
        store.topics.create(topic)
    blocker = store.producer(transactional_id="blocker")
    blocker.init_transactions()
    blocker.begin_transaction()
    blocker.send("b", b"0")
    blocker.flush()
    pair = store.producer(transactional_id="pair")
    pair.init_transactions()
    with pair.transaction():
        pair.send("a", b"1")
        pair.send("b", b"1")
    with begin(spark, store) as txn:
        assert txn.read("a", "b").count() == 0
    blocker.commit_transaction()
    with begin(spark, store) as txn:
        assert values(txn.read("a", "b")) == [0, 1, 1]


def test_records_of_the_driver_are_committed_with_the_data(
    spark: SparkSession, topics: Store
) -> None:
    """Records of send() and send_batch() follow the DataFrames, with them or not at all."""
    with begin(spark, topics) as txn:
        txn.write(txn.read("in").drop("partition"), topic="out")
        txn.send("out", value="done", key="k", partition=1)
        txn.send_batch("sums", pa.table({"value": ["a", "b"]}))
    assert txn.result.written_records == 103
    last = topics.scan("out").to_arrow().to_pylist()[-1]
    assert (last["value"], last["partition"]) == (b"done", 1)
    with pytest.raises(ZeroDivisionError):
        send_and_fail(begin(spark, topics))
    assert topics.scan("sums").record_count == 2
    assert data_files(topics) == placed_files(topics)


def test_an_exception_commits_nothing_and_cleans_up(spark: SparkSession, topics: Store) -> None:
    """Whatever leaves the block, also Ctrl-C, undoes the writes and deletes their files."""
    before = data_files(topics)

    def fail(error: BaseException) -> None:
        with begin(spark, topics) as txn:
            etl(txn)
            assert len(data_files(topics)) > len(before)
            raise error

    for error in (ValueError("mine"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            fail(error)
        assert data_files(topics) == before
        assert leftovers(topics) == []
    assert stored(topics, "out") == []
    assert "g" not in topics.groups.list()
    with begin(spark, topics) as txn:
        assert etl(txn) == 100
    assert stored(topics, "out") == list(range(100))


class InterruptedAfter(CountingStorage):
    """Ctrl-C comes right after the one create of a name that ends in ``last``."""

    last = "never"

    def put_if_absent(self, name: str, data: bytes) -> bool:
        created = super().put_if_absent(name, data)
        if name.endswith(self.last):
            self.last = "never"
            raise KeyboardInterrupt
        return created


def test_an_interrupt_after_the_decision_hides_no_commit(
    spark: SparkSession, topics: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """The interrupt goes on, and the block tells what was committed nevertheless."""
    storage = InterruptedAfter(topics.storage)
    txn = transaction(spark, attach(storage), transactional_id="etl", group_id="g")

    def copy() -> None:
        with txn:
            assert etl(txn) == 100
            storage.last = "transactions/etl/00000000000000000002.json"

    with pytest.raises(KeyboardInterrupt):
        copy()
    assert storage.last == "never"
    assert txn.result.written_records == 101
    assert sum(len(span) for span in txn.result.consumed.values()) == 100
    assert "(epoch 0) is committed: the decision had been put" in caplog.text
    assert stored(topics, "out") == list(range(100))
    assert leftovers(topics) == []


@pytest.mark.condition(22)
def test_a_failed_write_leaves_only_abort(spark: SparkSession, topics: Store) -> None:
    """Code that swallows a write's error cannot commit the rest without it."""
    bad = numbers(spark, 0, 5).withColumn("colour", sf.lit("red"))

    def swallow() -> None:
        with begin(spark, topics) as txn:
            txn.write(txn.read("in").drop("partition"), topic="out")
            with pytest.raises(PySparkException, match="'colour'"):
                txn.write(bad, topic="sums")
            with pytest.raises(InvalidTxnState):
                txn.write(numbers(spark, 0, 5), topic="sums")

    with pytest.raises(InvalidTxnState, match="nothing was committed"):
        swallow()
    assert stored(topics, "out") == []
    assert leftovers(topics) == []


def test_misuse_is_explained(spark: SparkSession, topics: Store) -> None:
    """Reading a topic twice, using a block before or after its time, bad arguments."""
    with pytest.raises(InvalidTxnState, match="use it in a with statement"):
        begin(spark, topics).read("in")
    txn = begin(spark, topics)
    with pytest.raises(InvalidOption, match="read twice"), txn:
        txn.read("in", "in")
    with pytest.raises(InvalidTxnState, match="make a new one"):
        txn.read("in")
    with pytest.raises(IllegalState), txn:
        pass
    with pytest.raises(InvalidOption, match="max_records"):
        begin(spark, topics, max_records=0)
    with pytest.raises(InvalidOption, match="this process only"):
        transaction(spark, txnlog.open("memory://x", create=True), transactional_id="etl")


@pytest.mark.condition(35)
def test_two_jobs_with_one_group_and_the_same_records(spark: SparkSession, topics: Store) -> None:
    """Of two jobs that consumed the same records exactly one commits."""

    def race() -> None:
        with begin(spark, topics, "one") as first:
            etl(first)
            with begin(spark, topics, "two") as second:
                etl(second)
            assert stored(topics, "out") == list(range(100))

    with pytest.raises(CommitFailed, match="group 'g' has moved"):
        race()
    assert stored(topics, "out") == list(range(100))
    assert stored(topics, "sums") == [sum(range(100))]
    assert topics.transactions.describe("one").status == "CompleteAbort"
    assert topics.topics.describe("out").open_transactions == ()


@pytest.mark.condition(28)
def test_two_jobs_with_one_transactional_id(spark: SparkSession, topics: Store) -> None:
    """The older instance is fenced, and what it uploaded is deleted."""

    def race() -> None:
        with begin(spark, topics) as older:
            etl(older)
            with begin(spark, topics) as newer:
                etl(newer)

    with pytest.raises(ProducerFenced) as caught:
        race()
    assert "another job, or another run of this one, has taken over" in str(caught.value)
    assert "transactional id 'etl'" in str(caught.value)
    assert "init_transactions" not in str(caught.value)
    assert stored(topics, "out") == list(range(100))
    assert topics.groups.describe("g").lag == 0
    assert leftovers(topics) == []


def test_a_topic_that_is_read_whole_is_not_consumed(spark: SparkSession, topics: Store) -> None:
    """It is there in every run, also what is committed behind somebody's open transaction."""
    holder = topics.producer(transactional_id="slow")
    holder.init_transactions()
    holder.begin_transaction()
    holder.send("sums", b"-1")
    holder.flush()
    fill(topics, "sums", 0, 3)
    assert stored(topics, "sums") == []
    for run in range(2):
        with begin(spark, topics) as txn:
            new = txn.read("in")
            assert values(txn.read_whole("sums", columns="value")) == [0, 1, 2]
            txn.write(new.select("value"), topic="out")
            assert txn.consumed_records == (0 if run else 100)
        assert {where.topic for where in txn.result.consumed} == (set() if run else {"in"})
    with pytest.raises(InvalidOption, match=r"read\('in'\) after read_whole\('sums'\)"):
        _read_too_late(begin(spark, topics))


def _read_too_late(block: SparkTransaction) -> None:
    with block as txn:
        txn.read_whole("sums")
        txn.read("in")


def test_without_a_group_nothing_is_moved(spark: SparkSession, topics: Store) -> None:
    """A transaction may only write, or read from where it says."""
    with transaction(spark, topics, transactional_id="etl") as txn:
        recent = txn.read("in", starting_offsets={"in": {0: -1, 1: -1, 2: 0}}, columns=["value"])
        txn.write(recent, topic="out")
        txn.write(numbers(spark, 500, 510), topic="sums")
    assert 0 < len(stored(topics, "out")) < 100
    assert stored(topics, "sums") == list(range(500, 510))
    assert topics.groups.list() == []
    assert txn.result.consumed == {}


def test_a_read_that_each_run_repeats_says_so(
    spark: SparkSession, topics: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless a group, or where it begins, is given: then that is meant."""
    with transaction(spark, topics, transactional_id="etl") as txn:
        txn.read("in")
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("read('in') begins at the start, and so will the next")
    caplog.clear()
    with transaction(spark, topics, transactional_id="etl") as txn:
        txn.read("in", starting_offsets="earliest")
        txn.read_whole("sums")
    with transaction(spark, topics, transactional_id="etl", group_id="g") as txn:
        txn.read("in")
    assert caplog.records == []


class DecisionLost(CountingStorage):
    """The decision is put, and the response to it is lost, as are later attempts to read back."""

    lost = False

    def put_if_absent(self, name: str, data: bytes) -> bool:
        done = super().put_if_absent(name, data)
        if b'"PrepareCommit"' in data:
            self.lost = True
        if self.lost:
            raise StorageError("the response was lost")
        return done

    def get(self, name: str) -> bytes:
        if self.lost:
            raise StorageError("the storage is away")
        return super().get(name)


def test_an_unknown_outcome_is_settled_by_the_next_run(spark: SparkSession, topics: Store) -> None:
    """Hazard 2: nothing is deleted, and the rerun finds that it was committed."""
    failing = attach(DecisionLost(topics.storage), clock=SystemClock())
    with (
        pytest.raises(CommitStateUnknown),
        transaction(spark, failing, transactional_id="etl", group_id="g") as txn,
    ):
        etl(txn)
    with begin(spark, topics) as txn:
        assert etl(txn) == 0
    assert stored(topics, "out") == list(range(100))
    assert topics.groups.describe("g").lag == 0


KILLED = """
import os, signal, sys
from pyspark.sql import SparkSession
from tests.spark.test_spark_transactions import etl
from txnlog.clock import SystemClock
from txnlog.spark import transaction
from txnlog.storage import open_storage
from txnlog.storage.counting import CountingStorage
from txnlog.store import attach

class Killing(CountingStorage):
    def put_if_absent(self, name, data):
        decision = b'"PrepareCommit"' in data
        if decision and sys.argv[2] == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = super().put_if_absent(name, data)
        if decision:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1")
    .getOrCreate()
)
store = attach(Killing(open_storage(sys.argv[1])), clock=SystemClock())
with transaction(spark, store, transactional_id="etl", group_id="g") as txn:
    etl(txn)
"""


@pytest.mark.slow
@pytest.mark.condition(48)
@pytest.mark.parametrize(("moment", "left"), [("before", 100), ("after", 0)])
def test_a_driver_killed_around_the_decision(
    spark: SparkSession, topics: Store, moment: str, left: int
) -> None:
    """SIGKILL just before and after the decision; the rerun finishes the work."""
    command = [sys.executable, "-c", KILLED, topics.url, moment]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    with begin(spark, topics) as txn:
        assert etl(txn) == left
    assert stored(topics, "out") == list(range(100))
    assert stored(topics, "sums") == [sum(range(100))]
    assert topics.groups.describe("g").lag == 0
    assert topics.topics.describe("out").open_transactions == ()


# -- options only --------------------------------------------------------------------------------


def consume(spark: SparkSession, store: Store, **more: object) -> DataFrame:
    return load(spark, store, "in", group_id="g", transactional_id="etl", **more)


def test_options_alone_move_the_offsets_with_the_write(spark: SparkSession, topics: Store) -> None:
    """A transactional.id on read and write makes one transaction, again and again."""
    for start in (0, 100):
        new = consume(spark, topics).drop("partition")
        assert new.count() == 100
        assert topics.transactions.describe("etl").status == "Ongoing"
        save(new, topics, "out", transactional_id="etl")
        assert topics.groups.describe("g").lag == 0
        fill(topics, "in", start + 100, start + 200)
    assert stored(topics, "out") == list(range(200))
    assert topics.transactions.describe("etl").status == "CompleteCommit"


def test_options_alone_with_nothing_new(spark: SparkSession, topics: Store) -> None:
    """An empty run ends its transaction and leaves the outputs as they are."""
    for _ in range(2):
        save(consume(spark, topics).drop("partition"), topics, "out", transactional_id="etl")
    assert stored(topics, "out") == list(range(100))
    assert topics.topics.describe("out").entries == 2
    assert topics.transactions.describe("etl").status == "CompleteCommit"


def test_options_alone_several_topics(spark: SparkSession, topics: Store) -> None:
    """One write with a topic column goes to several topics, with the offsets."""
    topic = sf.when(sf.col("offset") < 10, "out").otherwise("sums").alias("topic")
    new = consume(spark, topics, columns="value,offset")
    save(new.select("value", topic), topics, transactional_id="etl")
    assert sorted(stored(topics, "out") + stored(topics, "sums")) == list(range(100))
    assert topics.groups.describe("g").lag == 0


def test_a_second_write_without_a_read_is_refused(spark: SparkSession, topics: Store) -> None:
    """Data never goes out without the offsets that it was read with."""
    new = consume(spark, topics).drop("partition")
    save(new, topics, "out", transactional_id="etl")
    with pytest.raises(PySparkException, match="committed by another write"):
        save(new, topics, "sums", transactional_id="etl")
    assert stored(topics, "sums") == []


def test_a_read_that_timed_out_cannot_be_written(spark: SparkSession, topics: Store) -> None:
    """Once somebody has ended the transaction of a read, its write commits nothing."""
    new = consume(spark, topics).drop("partition")
    settlement, transactions = topics.logs.settlement, topics.logs.transactions
    # As a reader does that finds the transaction past its timeout.
    since = transactions.now()
    aborted = settlement.abort_for_another(transactions.describe("etl"), since)
    assert aborted is not None
    settlement.finish(aborted, since)
    with pytest.raises(PySparkException, match="it was aborted, or"):
        save(new, topics, "out", transactional_id="etl")
    assert stored(topics, "out") == []
    assert "g" not in topics.groups.list()


@pytest.mark.more
@pytest.mark.condition(28)
def test_a_write_never_commits_the_offsets_of_another_read(
    spark: SparkSession, topics: Store
) -> None:
    """Two jobs with one id and different ranges: the older one's write is refused."""
    older = consume(spark, topics, maxRecords=30).drop("partition")
    newer = consume(spark, topics).drop("partition")
    with pytest.raises(PySparkException, match=r"ProducerFenced.*was replaced"):
        save(older, topics, "out", transactional_id="etl")
    save(newer, topics, "out", transactional_id="etl")
    assert stored(topics, "out") == list(range(100))
    assert topics.groups.describe("g").lag == 0
    with topics.producer(transactional_id="etl") as other:
        last = consume(spark, topics).drop("partition")
        other.init_transactions()
        with pytest.raises(PySparkException, match="was replaced"):
            save(
                load(spark, topics, "in").join(last, "offset").select(last["value"]), topics, "out"
            )


def test_staged_uploads_are_checked(topics: Store) -> None:
    """Hazard 8: a damaged staged file is refused, never half of it used."""
    put_staged(topics.storage, "staging/x-000000.json", {})
    path = Path(topics.url, "staging", "x-000000.json")
    assert json.loads(path.read_text())["segments"] == {}
    path.write_text(path.read_text()[:-5])
    with pytest.raises(CorruptEntry, match=r"staging/x-000000\.json"):
        read_staged(topics.storage, "staging/x-000000.json")
