"""Whether the Spark session of a block still runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STOPPED: Final = (
    "the SparkSession was stopped inside this transaction's block, so nothing was committed; stop "
    "it after the block"
)


def is_stopped(spark: SparkSession) -> bool:
    """Spark Connect tells; elsewhere a stopped context has let go of its JVM's half."""
    told: bool | None = getattr(spark, "is_stopped", None)
    return getattr(spark.sparkContext, "_jsc", None) is None if told is None else told
