"""For a client of Spark Connect: everything of txnlog, on a server of its own in local mode.

    connect_job.py ZIP SETTINGS

txnlog is imported from the zip file, and reaches the server as an artifact. Settings are a JSON
file: ``root`` of a store to make, ``events`` for the event log, ``s3_root`` of a store with a topic
``in``, its ``shown`` and its ``hidden`` storage options, and the ``regex`` that hides the latter.
Prints one line of JSON: what each step returned, and the ``texts`` that Spark shows.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from pathlib import Path
from random import random
from typing import Any

sys.path.insert(0, sys.argv[1])

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

import txnlog
from txnlog.spark import (
    SparkTransaction,
    catch_up,
    read,
    register,
    shuffle_by_partition,
    transaction,
)


def load(spark: SparkSession, root: str, topic: str, **options: str) -> DataFrame:
    return spark.read.format("txnlog").options(path=root, subscribe=topic, **options).load()


def save(frame: DataFrame, root: str, topic: str, **options: str) -> None:
    frame.write.format("txnlog").options(path=root, topic=topic, **options).mode("append").save()


def error_of(call: Any) -> str:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it says is wanted
        return str(error)
    return "no error"


def everything(spark: SparkSession, root: str) -> dict[str, Any]:
    """Each part once, on a local store."""
    store = txnlog.open(root, create=True)
    for topic, partitions in (("in", 2), ("out", 1), ("caught-up", 1), ("shuffled", 3)):
        store.topics.create(topic, partitions=partitions)
    rows = spark.range(0, 100, 1, 4).selectExpr("string(id) as key", "string(id) as value")
    save(rows, root, "in")
    done: dict[str, Any] = {"read": load(spark, root, "in").count()}

    with transaction(spark, store, transactional_id="etl", group_id="etl") as txn:
        txn.write(txn.read("in").drop("partition"), topic="out")
        txn.send("out", b"100")
    done["transaction"] = txn.result.written_records

    def step(txn: SparkTransaction) -> None:
        txn.write(txn.read("in").drop("partition"), topic="caught-up")

    caught_up = catch_up(
        spark, root, step, max_records=60, transactional_id="copy", group_id="copy"
    )
    done["catch_up"] = [caught_up.transactions, caught_up.written_records]

    save(shuffle_by_partition(rows, store, "shuffled"), root, "shuffled")
    done["segments"] = len(store.topics.segments("shuffled"))

    for view, topic in (("input", "in"), ("output", "out")):
        options = f"path '{root}', subscribe '{topic}'"
        spark.sql(f"CREATE TEMPORARY VIEW {view} USING txnlog OPTIONS ({options})")
    spark.sql("INSERT INTO output (value) SELECT CAST('101' AS BINARY) FROM input LIMIT 1")

    ids = {"group.id": "options", "transactional.id": "options"}
    new = load(spark, root, "in", **ids).drop("partition")
    save(new.limit(1), root, "out", **{"transactional.id": "options"})
    done["lag"] = store.groups.describe("options").lag

    # The same without the id on the write: rows as they are, and such that were made of them.
    forgetful = {"group.id": "forgetful", "transactional.id": "forgetful"}
    done["forgotten"] = []
    for column in ("value", "string(offset) AS value"):
        rows = load(spark, root, "in", **forgetful).selectExpr(column)
        done["forgotten"].append(error_of(lambda rows=rows: save(rows, root, "out")))
    done["forgotten_state"] = store.transactions.describe("forgetful").status

    # Inside a block a write of its own is refused, and two of what need not be the same twice.
    def beside() -> None:
        with transaction(spark, store, transactional_id="beside", group_id="beside") as txn:
            rows = txn.read("in").selectExpr("string(offset) AS value")
            done["beside"] = error_of(lambda: save(rows, root, "out"))

    def by_chance() -> None:
        with transaction(spark, store, transactional_id="chance", group_id="chance") as txn:
            drawn = udf(random, "double").asNondeterministic()
            rows = txn.read("in").drop("partition").withColumn("r", drawn())
            for half in ("r < 0.5", "r >= 0.5"):
                txn.write(rows.where(half).drop("r"), topic="out")

    done["block"] = error_of(beside)
    done["by_chance"] = error_of(by_chance)

    done["error"] = error_of(lambda: load(spark, root, "nowhere").count())
    return {**done, "pinning": pinned(spark, store)}


def pinned(spark: SparkSession, store: txnlog.Store) -> dict[str, list[int]]:
    """How many records frames have: after one and two more, then without the server's plans."""
    store.topics.create("growing")
    store.topics.create("held")
    holder = store.producer(transactional_id="holder")
    holder.init_transactions()
    holder.begin_transaction()
    holder.send("held", b"1")
    holder.flush()

    def append() -> None:
        with store.producer() as producer:
            for topic in ("growing", "held"):
                producer.send(topic, b"1")

    append()
    loaded = load(spark, store.url, "growing")
    ended = load(spark, store.url, "growing", endingOffsets='{"growing": {"0": 1}}')
    with transaction(spark, store, transactional_id="pin", group_id="pin") as txn:
        frames = {"loaded": loaded, "ended": ended, "transaction": txn.read("growing")}
        frames |= {"read": read(spark, store, "growing"), "whole": txn.read_whole("held")}
        holder.commit_transaction()  # of what lies before the end of the whole
        store.topics.alter("held", partitions=2)
        counts: dict[str, list[int]] = {name: [] for name in frames}
        for cached in ("true", "true", "false"):
            append()
            spark.conf.set("spark.connect.session.planCache.enabled", cached)
            for name, frame in frames.items():
                counts[name].append(frame.count())
    spark.conf.unset("spark.connect.session.planCache.enabled")
    return counts


def texts_of_options(spark: SparkSession, settings: dict[str, Any]) -> dict[str, str]:
    """What explain says of a read with options, run without and then with the setting."""
    plans = {}
    for name in ("shown", "hidden"):
        if name == "hidden":
            spark.conf.set("spark.sql.redaction.string.regex", settings["regex"])
        storage: dict[str, str] = settings[name]
        options = {f"storage.{key}": value for key, value in storage.items()}
        frame = load(spark, settings["s3_root"], "in", **options)
        frame.count()
        save(frame.select("value"), settings["s3_root"], "in", **options)
        root = settings["s3_root"]
        with transaction(spark, root, transactional_id=name, storage_options=storage) as txn:
            txn.write(frame.select("value"), topic="in")
        plans[f"plan {name}"] = frame._explain_string(extended=True)  # type: ignore[operator]
    return plans


def pages() -> dict[str, str]:
    """The pages of the server's UI that show statements and descriptions."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context  # the server's: it is in this process
    assert context is not None
    ui, api = context.uiWebUrl, f"/api/v1/applications/{context.applicationId}"

    def page(path: str) -> str:
        with urllib.request.urlopen(f"{ui}{path}") as answer:
            return str(answer.read().decode())

    connect = page("/connect/")
    sessions = sorted(set(re.findall(r"/connect/session/\?id=[^\"]+", connect)))
    found = {f"ui {path}": page(path.replace("&amp;", "&")) for path in sessions}
    for path in (f"{api}/sql?details=true&planDescription=true&length=1000", f"{api}/stages"):
        found[f"ui {path}"] = page(path)
    found["ui /connect/"] = connect
    return found


def main(package: str, settings: dict[str, Any]) -> None:
    builder = SparkSession.builder.remote("local[2]")
    for key, value in {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": settings["events"],
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.authenticate.socketTimeout": "5m",  # of a worker that starts when it is busy
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    before = error_of(lambda: load(spark, settings["root"], "in").count())
    spark.addArtifacts(package, pyfile=True)
    register(spark)
    register(spark)
    done = {
        "session": type(spark).__module__,
        "context": error_of(lambda: spark.sparkContext),
        "before": before,
        **everything(spark, settings["root"]),
    }
    texts = {**texts_of_options(spark, settings), **pages()}
    spark.stop()  # the server too, which it has started
    print(json.dumps({**done, "texts": texts}))


main(sys.argv[1], json.loads(Path(sys.argv[2]).read_text()))
