"""For spark-submit: reads, writes and transactions on S3, and every text that Spark shows of them.

    s3_job.py SETTINGS

Settings are a JSON file: ``root`` of a store with the topics ``in`` and ``out``, the ``storage``
options of several runs by name, ``only_read``, the names of those that do no more, ``hidden``, the
names of those that run with the setting ``regex``, ``streamed``, of those with a stream too, and
``checkpoints``, a folder for those of streams.
Prints one line of JSON: ``counts`` and ``texts``, by name.
"""

from __future__ import annotations

import io
import json
import sys
import urllib.request
from contextlib import redirect_stdout
from pathlib import Path
from traceback import format_exc
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import txnlog
from txnlog.spark import transaction

TEXTS: dict[str, str] = {}
PLANS = ("simple", "extended", "formatted", "cost")


def read(spark: SparkSession, root: str, storage: dict[str, str], **options: str) -> DataFrame:
    given = {"path": root, **options, **{f"storage.{k}": v for k, v in storage.items()}}
    return spark.read.format("txnlog").options(**given).load()


def plans(name: str, frame: DataFrame) -> None:
    """What Spark says of a frame when it is asked."""
    shown = io.StringIO()
    with redirect_stdout(shown):
        for mode in PLANS:
            frame.explain(mode)
    execution = frame._jdf.queryExecution()
    TEXTS[name] = "\n".join(
        (shown.getvalue(), execution.toString(), execution.logical().toString(), repr(frame))
    )


def error(name: str, call: Any) -> None:
    try:
        call()
    except Exception:  # noqa: BLE001 - whatever it says is wanted
        TEXTS[f"error {name}"] = format_exc()


def run(spark: SparkSession, root: str, name: str, storage: dict[str, str]) -> int:
    """All ways to a store: DataFrames, a transaction, SQL. How many records ``out`` has got."""
    options = {f"storage.{k}": v for k, v in storage.items()}
    rows = spark.range(0, 10, 1, 2).selectExpr("string(id) as value")
    rows.write.format("txnlog").options(path=root, topic="in", **options).mode("append").save()
    plans(f"plan {name}", read(spark, root, storage, subscribe="in"))
    with transaction(
        spark, root, transactional_id=name, group_id=name, storage_options=storage
    ) as txn:
        txn.write(txn.read("in").drop("partition"), topic="out")
    listed = ", ".join(f"`{key}` '{value}'" for key, value in options.items())
    view = f"CREATE TEMPORARY VIEW v_{name} USING txnlog OPTIONS (path '{root}', {listed}"
    spark.sql(f"{view}, subscribe 'in')")
    spark.sql(f"INSERT INTO v_{name} (value) SELECT CAST('10' AS BINARY)")
    plans(f"view {name}", spark.sql(f"SELECT * FROM v_{name}"))
    described = spark.sql(f"DESCRIBE EXTENDED v_{name}").collect()
    explained = spark.sql(f"EXPLAIN EXTENDED INSERT INTO v_{name} (value) SELECT X'31'").collect()
    TEXTS[f"sql {name}"] = "\n".join(map(str, described + explained))
    return txn.result.written_records


def stream(spark: SparkSession, root: str, storage: dict[str, str], checkpoint: str) -> None:
    """A query from topic to topic, which ends when it has read what there is."""
    options = {"path": root, **{f"storage.{k}": v for k, v in storage.items()}}
    frame = spark.readStream.format("txnlog").options(subscribe="in", **options).load()
    writer = frame.select("value").writeStream.format("txnlog").options(topic="out", **options)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    TEXTS[f"progress {Path(checkpoint).name}"] = json.dumps(
        [json.loads(progress.json) for progress in query.recentProgress]
    )


def main(settings: dict[str, Any]) -> None:
    spark = SparkSession.builder.getOrCreate()
    root, runs = settings["root"], settings["storage"]
    counts = {}
    for name, storage in runs.items():
        if name in settings["hidden"]:
            spark.conf.set("spark.sql.redaction.options.regex", settings["regex"])
        if name in settings["only_read"]:
            frame = read(spark, root, storage, subscribe="in")
            counts[name] = frame.count()
            plans(f"plan {name}", frame)
            continue
        counts[name] = run(spark, root, name, storage)
        if name in settings["streamed"]:
            stream(spark, root, storage, f"{settings['checkpoints']}/{name}")
        absent = root.replace("s3://test/", "s3://absent/")
        error(f"bucket {name}", lambda s=storage, a=absent: read(spark, a, s, subscribe="in"))
        error(f"topic {name}", lambda s=storage: read(spark, root, s, subscribe="nowhere"))
        error(f"option {name}", lambda s=storage: read(spark, root, s, subscribe="in", **s))
    # A segment goes missing: the last error is that of a task.
    some = runs[settings["hidden"][0]]
    frame = read(spark, root, some, subscribe="out")
    store = txnlog.open(root, storage_options=some)
    store.storage.delete([name for name, _ in store.storage.list_all("topics/out/data")])
    error("task", frame.collect)
    ui, application = spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId
    assert ui is not None
    api = f"/api/v1/applications/{application}"
    sql = f"{api}/sql?details=true&planDescription=true&length=1000"
    executions = len(json.loads(page(ui, sql)))
    pages = [f"/SQL/execution/?id={number}" for number in range(executions)]
    for path in (sql, f"{api}/environment", f"{api}/jobs", f"{api}/stages", "/SQL/", *pages):
        TEXTS[f"ui {path}"] = page(ui, path)
    spark.stop()
    print(json.dumps({"counts": counts, "texts": TEXTS}))


def page(ui: str, path: str) -> str:
    with urllib.request.urlopen(ui + path) as answer:
        return str(answer.read().decode())


main(json.loads(Path(sys.argv[1]).read_text()))
