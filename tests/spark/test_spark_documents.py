"""The code of documents that need Spark runs as it stands, block by block."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.stream_helpers import reads_streams
from tests.support.checkout import ROOT
from tests.support.documents import SPARK_DOCUMENTS, Runner, blocks_of

pytestmark = pytest.mark.more

READING_STREAMS = ("docs/SPARK.md",)


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(name, marks=reads_streams) if name in READING_STREAMS else name
        for name in SPARK_DOCUMENTS
    ],
)
def test_the_code_of_a_document_runs(
    spark: SparkSession, document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, in one session, as a reader pastes it; what is shown as output is what comes."""
    # The session is that of all tests: one that is created is this one.
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda _: spark)
    runner = Runner(tmp_path, {"__name__": "__main__", "spark": spark}, sql=spark.sql)
    try:
        runner.run(blocks_of(ROOT / document))
    finally:
        for query in spark.streams.active:
            query.stop()
