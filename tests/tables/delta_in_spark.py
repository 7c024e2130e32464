"""A job for Spark with Delta's jars: reads versions of a table into files of Arrow.

Arguments: the jars, separated by commas; the table; a folder for the rows. The last line on stdout
is JSON. It knows nothing of txnlog.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession


def main(jars: str, table: str, folder: Path) -> None:
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .config("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        .getOrCreate()
    )
    history = spark.sql(f"DESCRIBE HISTORY delta.`{table}`").select("version").collect()
    versions = sorted(row.version for row in history)
    for version in versions:
        rows = spark.read.format("delta").option("versionAsOf", version).load(table).toArrow()
        with pa.ipc.new_file(str(folder / f"{version}.arrow"), rows.schema) as writer:
            writer.write_table(rows)
    newest = spark.read.format("delta").load(table)
    one = newest.where("carrier = 'c7'")
    spark.sql(f"VACUUM delta.`{table}` RETAIN 0 HOURS")
    spark.catalog.clearCache()
    said = {
        "versions": versions,
        "files": len(newest.inputFiles()),
        "files_of_one": len(one.inputFiles()),
        "rows_of_one": one.count(),
        "rows_after_vacuum": spark.read.format("delta").load(table).count(),
    }
    sys.stdout.write(f"{json.dumps(said)}\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
