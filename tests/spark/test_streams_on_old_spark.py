"""What streams can do on the oldest Spark: they can be written, and not read."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.spark_helpers import fill, stored
from tests.spark.stream_helpers import READS_STREAMS, run, sink, stream
from txnlog import Store


def test_a_stream_of_files_is_written(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    """On every version each batch is there once, and the next run goes on."""
    store.topics.create("out")
    files = tmp_path / "files"
    files.mkdir()
    for count in (1, 2):
        (files / f"{count}.txt").write_text(f"{count}\n")
        run(sink(spark.readStream.text(str(files)), store, "out"))
        assert stored(store, "out") == list(range(1, count + 1))


@pytest.mark.skipif(READS_STREAMS, reason="this PySpark reads streams")
def test_reading_a_stream_says_what_it_needs(spark: SparkSession, store: Store) -> None:
    """The query fails with the version that is needed, and writes nothing."""
    for topic in ("in", "out"):
        store.topics.create(topic)
    fill(store, "in", 0, 10)
    with pytest.raises(PySparkException, match=r"needs PySpark 4\.2 or newer"):
        run(sink(stream(spark, store, "in").drop("partition"), store, "out"))
    assert stored(store, "out") == []
