"""Stores that are open, and options as txnlog.open takes them: how Spark's tasks come by both."""

from __future__ import annotations

import io
import itertools
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import txnlog
from tests.spark.spark_helpers import load, save, stored, values
from txnlog import Store
from txnlog.errors import InvalidOption
from txnlog.spark import SparkTransaction, catch_up, shuffle_by_partition, transaction
from txnlog.spark.options.read_options import parse_read
from txnlog.spark.options.store_options import store_options

SECRET, NESTED = "the/secret+of+the+store", "the/nested+secret+of+the+store"
_NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the options may tell who we are."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


def filled(url: str, **given: Any) -> Store:
    store = txnlog.open(url, create=True, **given)
    for topic in ("in", "out"):
        store.topics.create(topic, partitions=2)
    with store.producer() as producer:
        for number in range(20):
            producer.send("in", b"%d" % number)
    return store


def shown(frame: DataFrame) -> str:
    """What Spark says of a frame when it is asked."""
    text = io.StringIO()
    with redirect_stdout(text):
        for mode in ("simple", "extended", "formatted", "cost"):
            frame.explain(mode)
    execution = frame._jdf.queryExecution()
    parts = (text.getvalue(), execution.toString(), execution.logical().toString(), repr(frame))
    return "\n".join(parts)


def redacted(spark: SparkSession, options: dict[str, str]) -> str:
    """What Spark makes of a relation's options before it shows them on a page or in a log."""
    conf = spark._jsparkSession.sessionState().conf()
    assert spark._jvm is not None
    found: str = conf.redactOptions(spark._jvm.PythonUtils.toScalaMap(options)).toString()
    return found


def copy(txn: SparkTransaction) -> DataFrame:
    new = txn.read("in")
    txn.write(new.drop("partition"), topic="out")
    return new


def s3_given(s3_options: dict[str, Any], kind: str) -> dict[str, Any]:
    """Storage options of the S3 server as ``txnlog.open`` takes them."""
    endpoint = s3_options["endpoint_url"]
    if kind == "plain":
        return {**s3_options, "secret": SECRET}
    client = {"region_name": "us-east-1", "endpoint_url": endpoint}
    client |= {"aws_access_key_id": "AKIANESTED", "aws_secret_access_key": NESTED}
    return {"client_kwargs": client, "config_kwargs": {"max_pool_connections": 5}, "use_ssl": False}


@pytest.mark.more
@pytest.mark.parametrize("kind", ["plain", "nested"])
def test_an_open_store_on_s3_is_open_in_tasks_too(
    spark: SparkSession, s3_options: dict[str, Any], s3_requests: list[Any], kind: str
) -> None:
    """What the store was opened with reaches the tasks, and shows nowhere in the plan.

    The server was checked here, when the store was made: no task does it again.
    """
    given = s3_given(s3_options, kind)
    store = filled(f"s3://test/open-{next(_NUMBERS)}", storage_options=given)
    since = len(s3_requests)
    with transaction(spark, store, transactional_id="etl", group_id="g") as txn:
        plan = shown(copy(txn))
    assert not [request for request in s3_requests[since:] if "/.probe/" in request.path]
    assert stored(store, "out") == list(range(20))
    pages = redacted(spark, store_options(store))
    assert s3_options["endpoint_url"] not in plan
    assert "s3://test/open-" in pages
    assert [secret for secret in (SECRET, NESTED) if secret in plan + pages] == []


@pytest.mark.more
def test_nested_options_are_taken_wherever_options_are(
    spark: SparkSession, s3_options: dict[str, Any]
) -> None:
    """With a URL too, in a block, in catch_up and in the shuffle."""
    url, given = f"s3://test/nested-{next(_NUMBERS)}", s3_given(s3_options, "nested")
    store = filled(url, storage_options=given)
    with transaction(
        spark, url, transactional_id="etl", group_id="g", storage_options=given
    ) as txn:
        copy(txn)

    def copy_again(txn: SparkTransaction) -> None:
        copy(txn)

    names: dict[str, Any] = {"transactional_id": "again", "group_id": "again"}
    done = catch_up(spark, url, copy_again, storage_options=given, **names)
    assert (done.transactions, done.written_records) == (1, 20)
    with transaction(spark, url, transactional_id="shuffled", storage_options=given) as txn:
        rows = spark.range(20).selectExpr("string(id) as value")
        txn.write(shuffle_by_partition(rows, url, "out", storage_options=given), topic="out")
    assert stored(store, "out") == sorted([*range(20)] * 3)


@pytest.mark.more
def test_a_single_writers_store_is_open_in_tasks_too(spark: SparkSession, tmp_path: Path) -> None:
    """The tasks get unsafe_single_writer, and options that are no text, with names in any case."""
    options = {"Level": 7, "password": "hunter2hunter2"}
    store = filled(f"disk://{tmp_path}/store", storage_options=options, unsafe_single_writer=True)
    with transaction(spark, store, transactional_id="etl", group_id="g") as txn:
        plan = shown(copy(txn))
    assert "hunter2" not in plan
    assert stored(store, "out") == list(range(20))
    given = store_options(store)
    assert given["unsafeSingleWriter"] == "true"
    assert values(load(spark, store, "out", **given)) == list(range(20))
    new = load(spark, store, "in", group_id="o", transactional_id="o", **given)
    save(new.drop("partition"), store, "out", transactional_id="o", **given)
    assert stored(store, "out") == sorted([*range(20)] * 2)


# -- without a JVM ---------------------------------------------------------------------------------


@pytest.mark.more
def test_options_come_back_as_they_were_given(s3_options: dict[str, Any]) -> None:
    """Types, and names in upper case, which Spark would change."""
    url = f"s3://test/types-{next(_NUMBERS)}"
    given = {**s3_options, "default_fill_cache": False, "max_concurrency": 3, "SSEKeyId": "k"}
    txnlog.open(url, create=True, storage_options=s3_options)
    store = txnlog.open(url, storage_options=s3_options)
    options = store_options(store, given)
    assert options["path"] == url
    assert all(isinstance(value, str) for value in options.values())
    by_spark = {name.lower(): value for name, value in options.items()}
    assert parse_read({**by_spark, "subscribe": "a"}).address.options == given


@pytest.mark.parametrize("value", [object(), b"bytes", {1: 2}, float("nan"), {"a": {SECRET}}])
def test_what_cannot_travel_is_named(s3_options: dict[str, Any], value: object) -> None:
    """An error before any job, with the option's name and never its value."""
    store = txnlog.open("s3://test/kinds", create=True, storage_options=s3_options)
    with pytest.raises(InvalidOption, match="storage option session is of a kind") as caught:
        store_options(store, {"session": value})
    assert SECRET not in str(caught.value)


def test_a_password_in_the_url_is_refused(tmp_path: Path) -> None:
    """Spark shows the path of a read to everybody."""
    options = {"Level": 7, "password": "hunter2hunter2"}
    plain = txnlog.open(
        f"disk://{tmp_path}/s", create=True, storage_options=options, unsafe_single_writer=True
    )
    url = f"disk://user:hunter2hunter2@host{tmp_path}/s"
    plain.storage._given = url  # type: ignore[attr-defined]  # as after opening it, if this filesystem knew of users
    plain.storage.url = f"disk://host{tmp_path}/s"
    with pytest.raises(InvalidOption, match="holds credentials, which Spark would show") as caught:
        store_options(plain)
    assert "hunter2" not in str(caught.value)


def test_secrets_of_the_typed_option_show_in_no_message() -> None:
    """What travels as JSON is as secret as the rest."""
    given = {"path": "/s", "subscribe": "a", "storage.json": json.dumps({"client": SECRET})}
    with pytest.raises(InvalidOption) as caught:
        parse_read({**given, "colour": "red"})
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(parse_read(given))
    with pytest.raises(InvalidOption, match=r"storage\.json is set by txnlog") as caught:
        parse_read({**given, "storage.json": SECRET})
    assert SECRET not in str(caught.value)
