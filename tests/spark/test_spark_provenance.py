"""What was read with a transactional.id is not written without it; nobody else notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

import txnlog
from tests.spark.spark_helpers import data_files, dotted, fill, load, numbers, save, stored
from txnlog import Store
from txnlog.errors import InvalidTxnState, ProducerFenced
from txnlog.spark import transaction
from txnlog.spark.batch import provenance
from txnlog.spark.batch.provenance import CommitScope, Origin
from txnlog.state.transaction import TransactionRef
from txnlog.storage import open_storage, server_storage


@pytest.fixture
def topics(store: Store) -> Store:
    """Topics in (2 partitions), out and other; 20 numbers are in ``in``."""
    for topic, partitions in (("in", 2), ("out", 2), ("other", 1)):
        store.topics.create(topic, partitions=partitions)
    fill(store, "in", 0, 20)
    return store


def consume(spark: SparkSession, store: Store, name: str = "etl", **more: object) -> DataFrame:
    frame = load(spark, store, "in", group_id=name, transactional_id=name, **more)
    return frame.drop("partition")


def status(store: Store, name: str = "etl") -> str:
    return store.transactions.describe(name).status


def count(store: Store, topic: str) -> int:
    return int(store.scan(topic).to_arrow().num_rows)


def staged(store: Store) -> list[str]:
    return sorted(path.name for path in Path(store.url).glob("staging/*"))


def unchanged(new: DataFrame) -> DataFrame:
    return new


def computed(new: DataFrame) -> DataFrame:
    return new.select(sf.upper(sf.col("value").cast("string")).alias("value"))


def aggregated(new: DataFrame) -> DataFrame:
    return new.groupBy(sf.length("key").alias("n")).agg(sf.max(computed_value()).alias("value"))


def computed_value() -> Column:
    return sf.concat(sf.col("value").cast("string"), sf.lit("!"))


def broadcast(new: DataFrame) -> DataFrame:
    few = sf.broadcast(new.select(computed_value().alias("value")))
    return new.sparkSession.range(2).crossJoin(few).select("value")


def in_a_subquery(new: DataFrame) -> DataFrame:
    new.createOrReplaceTempView("read_with_an_id")
    return new.sparkSession.sql(
        "SELECT (SELECT string(count(*)) FROM read_with_an_id) AS value FROM range(2)"
    )


def through_an_rdd(new: DataFrame) -> DataFrame:
    return new.sparkSession.createDataFrame(new.select("value").rdd, "value binary")


def cached(new: DataFrame) -> DataFrame:
    kept = new.cache()
    kept.count()
    return kept.where("value is not null").withColumn("timestamp", sf.current_timestamp())


def more(*values: object) -> list[Any]:
    """Values that are for `make test-more`."""
    return [pytest.param(value, marks=pytest.mark.more) for value in values]


def more_pairs(*values: tuple[object, ...]) -> list[Any]:
    """The same for several arguments."""
    return [pytest.param(*value, marks=pytest.mark.more) for value in values]


def soak(*values: object) -> list[Any]:
    """Values that are for `make soak`: much like those of the other tiers."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


MISTAKES = [
    unchanged,
    through_an_rdd,
    *more(computed, in_a_subquery, cached),
    *soak(aggregated, broadcast),
]


@pytest.mark.parametrize("made", MISTAKES)
def test_a_write_that_forgets_the_id_is_refused(
    spark: SparkSession, topics: Store, made: Callable[[DataFrame], DataFrame]
) -> None:
    """Whatever was made of the rows, none is written plainly; with the id they all are."""
    frame = made(consume(spark, topics)).drop("n")
    with pytest.raises(PySparkException) as caught:
        save(frame, topics, "out")
    said = str(caught.value)
    assert "were read with transactional.id 'etl', but it names none" in said
    assert "Nothing was written, and transaction 1 of 'etl' (epoch 0) was aborted" in said
    assert '.option("transactional.id", "etl")' in said
    assert (stored(topics, "out"), status(topics)) == ([], "CompleteAbort")
    assert "etl" not in topics.groups.list()
    assert {*data_files(topics)} == {f"{s.name}.log" for s in topics.topics.segments("in")}
    spark.catalog.clearCache()
    new = consume(spark, topics)
    assert staged(topics) == []
    save(made(new).drop("n"), topics, "out", transactional_id="etl")
    spark.catalog.clearCache()
    assert (status(topics), topics.groups.describe("etl").lag) == ("CompleteCommit", 0)
    assert count(topics, "out") > 0
    # What filled the cache was no write.
    assert len(staged(topics)) == (1 if made is cached else 0)


def test_sql_that_forgets_the_id_is_refused(spark: SparkSession, topics: Store) -> None:
    """INSERT INTO a plain view from one that has a transactional.id."""
    consume(spark, topics).createOrReplaceTempView("source")
    options = f"path '{topics.url}', subscribe 'out'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW target USING txnlog OPTIONS ({options})")
    with pytest.raises(PySparkException, match="it names none"):
        spark.sql("INSERT INTO target (value) SELECT value FROM source")
    assert (stored(topics, "out"), status(topics)) == ([], "CompleteAbort")


def test_an_empty_read_is_refused_too(spark: SparkSession, topics: Store) -> None:
    """The mistake shows in the first run, also where nothing is new yet."""
    save(consume(spark, topics), topics, "out", transactional_id="etl")
    with pytest.raises(PySparkException, match="it names none"):
        save(computed(consume(spark, topics)), topics, "out")


def test_other_writes_go_on_while_a_transaction_is_open(spark: SparkSession, topics: Store) -> None:
    """In the same session, only rows read with the id need it."""
    new = consume(spark, topics)
    assert new.count() == 20
    save(numbers(spark, 0, 5), topics, "other")
    save(load(spark, topics, "in").drop("partition"), topics, "other")
    assert (count(topics, "other"), status(topics)) == (25, "Ongoing")
    save(new, topics, "out", transactional_id="etl")
    assert stored(topics, "out") == list(range(20))
    assert topics.groups.describe("etl").lag == 0


def test_a_write_of_other_rows_does_not_move_the_offsets_of_a_read(
    spark: SparkSession, topics: Store
) -> None:
    """The id belongs to the write of what was read, which may have no rows left."""
    new = consume(spark, topics)
    with pytest.raises(PySparkException, match=r"come from the read with transactional\.id 'etl'"):
        save(numbers(spark, 0, 5), topics, "other", transactional_id="etl")
    assert (count(topics, "other"), status(topics)) == (0, "Ongoing")
    assert {*data_files(topics)} == {f"{s.name}.log" for s in topics.topics.segments("in")}
    save(new.where("false"), topics, "out", transactional_id="etl")
    assert (status(topics), topics.groups.describe("etl").lag) == ("CompleteCommit", 0)


def test_rows_may_go_out_without_offsets_if_the_write_says_so(
    spark: SparkSession, topics: Store
) -> None:
    """Option outsideTransaction writes some rows apart, and the transaction goes on."""
    new = consume(spark, topics)
    save(new.limit(3), topics, "other", outsideTransaction=True)
    assert (count(topics, "other"), status(topics)) == (3, "Ongoing")
    save(new, topics, "out", transactional_id="etl")
    assert (stored(topics, "out"), status(topics)) == (list(range(20)), "CompleteCommit")


@pytest.mark.parametrize("made", [computed, *more(unchanged)])
def test_a_plain_write_after_the_commit_is_refused(
    spark: SparkSession, topics: Store, made: Callable[[DataFrame], DataFrame]
) -> None:
    """Records that go out after their offsets have moved are lost if the job dies between."""
    new = consume(spark, topics)
    save(new, topics, "out", transactional_id="etl")
    with pytest.raises(PySparkException, match=r"transaction 1 of 'etl' .* is CompleteCommit"):
        save(made(new), topics, "other")
    assert (stored(topics, "other"), status(topics)) == ([], "CompleteCommit")


@pytest.mark.parametrize("made", [computed, *soak(unchanged)])
def test_another_id_is_no_better(
    spark: SparkSession, topics: Store, made: Callable[[DataFrame], DataFrame]
) -> None:
    """A write commits the offsets of its own read only, so it writes no other one's rows."""
    new, mine = made(consume(spark, topics)), consume(spark, topics, "mine")
    with pytest.raises(PySparkException, match=r"it has transactional\.id 'stranger'"):
        save(new, topics, "out", transactional_id="stranger")
    both = made(consume(spark, topics)).select("value").union(mine.select("value"))
    with pytest.raises(PySparkException, match="it commits transaction 1 of 'mine'"):
        save(both, topics, "out", transactional_id="mine")
    assert (stored(topics, "out"), status(topics)) == ([], "CompleteAbort")
    assert topics.groups.list() == []


@pytest.mark.parametrize("made", [computed, *soak(unchanged)])
def test_a_block_does_not_take_them(
    spark: SparkSession, topics: Store, made: Callable[[DataFrame], DataFrame]
) -> None:
    """A transaction(...) moves the offsets of its own reads, so it writes no others' rows."""
    new = made(consume(spark, topics))
    with (
        pytest.raises(PySparkException, match=r"its own transaction only.*txn\.read"),
        transaction(spark, topics, transactional_id="block") as txn,
    ):
        txn.write(new, topic="out")
    assert (stored(topics, "out"), status(topics)) == ([], "CompleteAbort")
    assert {*data_files(topics)} == {f"{s.name}.log" for s in topics.topics.segments("in")}


def largest_by_parity(new: DataFrame) -> DataFrame:
    """No column is one of the read's any more: only a task's note tells."""
    return new.groupBy(sf.col("n") % 2).agg(sf.max("n").alias("n")).select("n")


def few_of_one_task(new: DataFrame) -> DataFrame:
    """Of the tasks of the read only those are run that have the first rows."""
    return new.select((sf.col("n") + 1).alias("n")).coalesce(1).limit(3)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("native", "made"),
    [
        (True, largest_by_parity),
        (True, few_of_one_task),
        (False, computed),
        *more_pairs((True, unchanged), (False, unchanged)),
    ],
)
def test_a_plain_write_inside_a_block_is_refused(
    spark: SparkSession, topics: Store, native: bool, made: Callable[[DataFrame], DataFrame]
) -> None:
    """It would go out beside the transaction, and again when the block is run once more."""
    schema = pa.schema([("n", pa.int64())])
    for topic in ("typed", "sums"):
        topics.topics.create(topic, schema=schema)
    with topics.producer() as producer:
        producer.send_batch("typed", pa.record_batch({"n": [*range(20)]}, schema=schema))
    topic, target = ("typed", "sums") if native else ("in", "other")

    def beside(**given: str) -> None:
        """Whoever catches the error and goes on commits nothing."""
        with transaction(spark, topics, transactional_id="etl", group_id="etl") as txn:
            new = made(txn.read(topic, native=native).drop("partition"))
            with pytest.raises(PySparkException) as caught:
                save(new, topics, target, **given)
            said = str(caught.value)
            assert "were read in transaction(...) with transactional_id 'etl', but it " in said
            assert "the block can only be aborted. Inside the block write with txn.write" in said
            assert 'option("outsideTransaction", "true")' in said

    for given in ({}, {"transactional_id": "etl"}):
        with pytest.raises(ProducerFenced):
            beside(**given)
        assert (count(topics, target), "etl" in topics.groups.list()) == (0, False)
    with transaction(spark, topics, transactional_id="etl", group_id="etl") as txn:
        new = made(txn.read(topic, native=native).drop("partition"))
        save(new, topics, target, outsideTransaction=True)
        txn.write(new, topic=target)
    assert count(topics, target) == 2 * txn.result.written_records > 0
    # The other one's note stays until the next read.
    assert (topics.groups.describe("etl").lag, len(staged(topics))) == (0, 1)
    with pytest.raises(PySparkException, match=r"the block is over \(transaction 1 of 'etl'"):
        save(made(new), topics, target)
    assert count(topics, target) == 2 * txn.result.written_records


@pytest.mark.more
def test_what_is_looked_up_in_a_block_stays_in_it(spark: SparkSession, topics: Store) -> None:
    """read_whole too; and another block does not take its rows."""

    def beside() -> None:
        with transaction(spark, topics, transactional_id="etl", group_id="etl") as txn:
            whole = computed(txn.read_whole("in"))
            assert whole.count() == 20
            with pytest.raises(PySparkException, match="but it names none"):
                save(whole, topics, "other")
            with (
                pytest.raises(PySparkException, match="its own transaction only"),
                transaction(spark, topics, transactional_id="mine") as mine,
            ):
                mine.write(whole, topic="other")
            txn.write(whole, topic="out")

    with pytest.raises(ProducerFenced):
        beside()
    assert (stored(topics, "out"), stored(topics, "other")) == ([], [])
    with transaction(spark, topics, transactional_id="etl", group_id="etl") as txn:
        txn.write(txn.read("in").drop("partition"), topic="out")
        assert staged(topics) == [name for name in staged(topics) if name.endswith(".json")]
    assert stored(topics, "out") == list(range(20))


@pytest.mark.parametrize("given", [{}, *more({"transactional_id": "etl"})])
def test_another_store_is_out_of_reach(
    spark: SparkSession, topics: Store, tmp_path: Path, given: dict[str, str]
) -> None:
    """A write cannot move offsets in another store, whichever id it names."""
    elsewhere = txnlog.open(str(tmp_path / "elsewhere"), create=True)
    elsewhere.topics.create("out")
    with pytest.raises(PySparkException, match=r"from another store with transactional\.id"):
        save(consume(spark, topics), elsewhere, "out", **given)
    assert stored(elsewhere, "out") == []
    save(consume(spark, topics), elsewhere, "out", outsideTransaction=True)
    assert stored(elsewhere, "out") == list(range(20))


@pytest.mark.more
def test_what_a_file_remembers_of_a_read_is_over_with_it(
    spark: SparkSession, topics: Store, tmp_path: Path
) -> None:
    """Spark keeps a column's metadata in Parquet; a later job that reads it is free."""
    new, parquet = consume(spark, topics), str(tmp_path / "copy")
    new.write.parquet(parquet)
    save(new, topics, "out", transactional_id="etl")
    copy = spark.read.parquet(parquet)
    assert copy.schema["value"].metadata == new.schema["value"].metadata != {}
    save(copy, topics, "other")
    assert stored(topics, "other") == list(range(20))


@pytest.mark.more
def test_a_stream_does_not_take_them(spark: SparkSession, topics: Store, tmp_path: Path) -> None:
    """A batch that is joined with such a read fails, and nothing of it is written."""
    pytest.importorskip("pyspark.sql.streaming.datasource")
    static = computed(consume(spark, topics)).select(sf.col("value").alias("word"))
    stream = (
        spark.readStream.format("txnlog")
        .options(path=topics.url, subscribe="in", startingOffsets="earliest")
        .load()
        .join(static, sf.col("value").cast("string") == sf.col("word"))
        .select("word", "key")
        .withColumnRenamed("word", "value")
    )
    options = dotted({"path": topics.url, "topic": "out", "checkpointLocation": tmp_path / "c"})
    query = stream.writeStream.format("txnlog").options(**options).trigger(availableNow=True)
    with pytest.raises(PySparkException, match=r"were read with transactional\.id 'etl'"):
        query.start().awaitTermination()
    assert (stored(topics, "out"), status(topics)) == ([], "CompleteAbort")


def test_notes_do_not_pile_up(spark: SparkSession, topics: Store) -> None:
    """Each action leaves one small file at most, and the next read deletes them."""
    for _ in range(3):
        new = consume(spark, topics)
        assert staged(topics) == []
        for _ in range(2):
            assert new.count() == 20
        assert len(staged(topics)) == 2
    other = consume(spark, topics, "other")
    other.count()
    assert len(staged(topics)) == 3
    assert new.count() == 20


def test_a_schema_of_the_users_own_hides_nothing(spark: SparkSession, topics: Store) -> None:
    """.schema(...) leaves the columns without a word of the read; its tasks still tell."""
    plain = load(spark, topics, "in").schema
    given = {"path": topics.url, "subscribe": "in", "group.id": "etl", "transactional.id": "etl"}
    new = spark.read.format("txnlog").schema(plain).options(**given).load().drop("partition")
    with pytest.raises(PySparkException, match="it names none"):
        save(new, topics, "out")
    assert stored(topics, "out") == []


@pytest.mark.parametrize("newest_first", [True, False])
def test_a_note_hides_none_of_an_earlier_transaction(
    topics: Store, monkeypatch: pytest.MonkeyPatch, newest_first: bool
) -> None:
    """One execution may have rows of two blocks of an id, and commits the offsets of one."""
    monkeypatch.setattr(provenance, "current_execution", lambda: "1-7")
    blocks = [TransactionRef("etl", number, 2, number) for number in (1, 2)]
    for block in reversed(blocks) if newest_first else blocks:
        origin = Origin(topics.store_id, block, 3, in_block=True)
        provenance.leave_note(topics.storage, origin)
    scope = CommitScope(in_block=True, block=blocks[-1])
    with pytest.raises(InvalidTxnState, match="its own transaction only"):
        provenance.check_rows(topics, ["1-7"], scope)
    assert staged(topics) == []


@pytest.mark.s3
def test_a_note_costs_one_request(
    s3_options: dict[str, object], s3_requests: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of Spark's workers is new to the server, which who began the transaction has checked."""
    storage = open_storage("s3://test/notes", s3_options)
    monkeypatch.setattr(server_storage, "_CHECKS", {})
    monkeypatch.setattr(provenance, "current_execution", lambda: f"{uuid4()}-7")
    begun = len(s3_requests)
    provenance.leave_note(storage, Origin("store", TransactionRef("etl", 1, 2, 0), 3))
    assert [request.method for request in s3_requests[begun:]] == ["PUT"]


def test_a_worker_that_leaves_a_note_is_used_again() -> None:
    """Spark ends one that does not read all that it is sent: each block started another."""
    batches = iter([pa.record_batch({"id": [0]})])
    origin = Origin("store", TransactionRef("etl", 1, 2, 0), 3)
    storage = open_storage(f"memory://{uuid4().hex}")
    assert [*provenance.leave_note_alone(storage, origin, batches)] == []
    assert [*batches] == []
