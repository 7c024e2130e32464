"""Archives the classes that Spark loads: JVMs of the tests start in a third of the time.

    python archive_spark_classes.py ARCHIVE

Runs a small job with what the tests use of Spark, and lets the JVM write at its end what it has
loaded (CDS, class data sharing). An archive belongs to one Java and one classpath: a JVM that it
does not fit goes without. Nothing but time is lost if it cannot be made.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType


class Reader(DataSourceReader):
    """Two partitions."""

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(2)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, str]]:
        yield f"{partition.value}", "value"


class Writer(DataSourceWriter):
    """Takes rows and keeps none."""

    def write(self, iterator: Iterator[object]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class StreamWriter(DataSourceStreamWriter):
    """The same for each micro-batch."""

    write = Writer.write

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """There is nothing to commit."""


class Source(DataSource):
    """A data source in Python, as txnlog's is."""

    @classmethod
    def name(cls) -> str:
        return "archived"

    def schema(self) -> str:
        return "key string, value string"

    def reader(self, schema: StructType) -> Reader:  # noqa: ARG002 - Spark's signature
        return Reader()

    def writer(self, schema: StructType, overwrite: bool) -> Writer:  # noqa: ARG002
        return Writer()

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: ARG002, N802
        return StreamWriter()


def run_job(spark: SparkSession, checkpoint: Path) -> None:
    """A little of everything: what is loaded here is archived."""
    spark.dataSource.register(Source)
    read = spark.read.format("archived").load()
    read.write.format("archived").mode("append").save()
    numbers = spark.range(0, 100, 1, 2).select(
        sf.col("id").cast("string").alias("key"), (sf.col("id") % 7).alias("number")
    )
    numbers.groupBy("number").agg(sf.count("key"), sf.sum("number"), sf.max("key")).collect()
    numbers.join(read, "key", "left").orderBy("key").dropDuplicates(["number"]).toArrow()
    numbers.mapInArrow(lambda batches: batches, numbers.schema).repartition(2, "key").collect()
    numbers.selectExpr("to_json(struct(*)) as value").selectExpr(
        "from_json(value, 'key string, number long') as row", "cast(value as binary) as value"
    ).cache().count()
    numbers.createOrReplaceTempView("numbers")
    spark.sql("select number, count(*) over (partition by number) from numbers limit 3").collect()
    spark.createDataFrame([("a", 1)], "key string, number int").union(numbers).collect()
    stream = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
    writer = stream.select(sf.col("value").cast("string").alias("key")).writeStream
    writer = writer.format("archived").option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def archive(target: Path) -> None:
    """Write the archive, whole or not at all."""
    made = target.with_suffix(".part")
    os.environ["SPARK_SUBMIT_OPTS"] = (
        f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -XX:ArchiveClassesAtExit={made}"
    )
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.log.level", "OFF")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    jvm = spark.sparkContext._gateway.proc  # noqa: SLF001 - nobody else knows when it has ended
    with tempfile.TemporaryDirectory() as folder:
        run_job(spark, Path(folder))
        spark.stop()
    jvm.stdin.close()
    jvm.wait()
    made.replace(target)


if __name__ == "__main__":
    archive(Path(sys.argv[1]))
