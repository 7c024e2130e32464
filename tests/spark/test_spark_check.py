"""``check(spark, path)`` tries a whole round, says what is wrong, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from tests.packaging.environments import OPTIONS_REDACTION
from tests.spark.stream_helpers import READS_STREAMS
from txnlog import Store
from txnlog.admin.groups import GroupAdmin
from txnlog.spark import CheckStep, SetUpCheck, check, registration
from txnlog.spark.registration import _archive_on_path, _take_this_python
from txnlog.spark.setup_check import _advice, _problem


def test_a_set_up_that_works_is_found_to(spark: SparkSession, store: Store) -> None:
    """Each step is told; topics, group and transactional id are gone afterwards."""
    store.topics.create("mine")
    found = check(spark, store.url)
    assert found.ok, str(found)
    assert len(found.steps) == 8 + READS_STREAMS
    assert str(found).count("\nok      ") == 7 + READS_STREAMS
    assert (store.topics.list(), store.groups.list(), [*store.transactions.list()]) == (
        ["mine"],
        [],
        [],
    )
    assert [*Path(store.url).glob("staging/*")] == []


def test_advice_is_for_those_who_have_not_decided(spark: SparkSession, store: Store) -> None:
    """Spark measures each batch after each of its rows unless it is told not to."""
    name = "spark.sql.execution.arrow.maxBytesPerBatch"
    spark.conf.unset(name)
    [advice] = check(spark, store).advice
    assert name in advice
    spark.conf.set(name, (1 << 31) - 1)
    try:
        found = check(spark, store)
    finally:
        spark.conf.unset(name)
    assert (found.ok, found.advice) == (True, ())


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("storage.account_key", "hush"),
        ("storage.connection_string", "AccountName=a;AccountKey=hush"),
        ("storage.passphrase", "hush"),
        ("storage.s3_additional_kwargs", '{"SSECustomerKey":"hush"}'),
    ],
    ids=["azure", "azure-string", "sftp", "sse-c"],
)
def test_credentials_that_spark_shows_are_told_of_until_they_are_hidden(
    spark: SparkSession, option: str, value: str
) -> None:
    """In the plan that makes a view, which goes into the event log."""
    name = "spark.sql.redaction.options.regex"
    given = f"(path '/s', subscribe 't', `{option}` '{value}')"
    statement = f"EXPLAIN EXTENDED CREATE TEMPORARY VIEW v USING txnlog OPTIONS {given}"

    def looked() -> tuple[bool, list[str]]:
        [[shown]] = spark.sql(statement).collect()
        advice = [one for one in _advice(spark, {option: value}) if name in one]
        return "hush" in shown, advice

    shown, [advice] = looked()
    assert shown
    assert (OPTIONS_REDACTION in advice, f"shows {option} in plain text" in advice) == (True, True)
    spark.conf.set(name, OPTIONS_REDACTION)
    try:
        assert looked() == (False, [])
    finally:
        spark.conf.unset(name)


def test_what_is_wrong_is_said(spark: SparkSession, tmp_path: Path) -> None:
    """The first thing that fails is the last that is tried, and nothing is raised."""
    found = check(spark, str(tmp_path / "nowhere"))
    assert not found.ok
    [step] = found.steps
    assert step.name == "this process opens the store"
    assert step.problem is not None
    assert step.problem.startswith("StoreNotFound: ")


def test_what_was_sent_along_is_named_to_what_is_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The zip file goes before what the user has set, and only while the source is registered."""
    session = cast("SparkSession", Session("spark://host:7077"))
    environment = session.sparkContext.environment
    with _archive_on_path(session):
        assert environment == {"PYTHONPATH": "/theirs", "A": "b"}, "no file was sent"
    archive = tmp_path / "txnlog.zip"
    archive.touch()
    inside = archive / "txnlog" / "spark" / "registration.py"
    monkeypatch.setattr(registration, "__file__", str(inside))
    with _archive_on_path(session):
        assert environment == {"PYTHONPATH": f"{archive}{os.pathsep}/theirs", "A": "b"}
    assert environment == {"PYTHONPATH": "/theirs", "A": "b"}
    del environment["PYTHONPATH"]
    with _archive_on_path(session):
        assert environment == {"PYTHONPATH": str(archive), "A": "b"}
    assert environment == {"A": "b"}


class Session:
    """What is asked of a session to find which Python its workers are."""

    def __init__(self, master: str, **settings: str) -> None:
        self._jsparkSession = object()
        environment = {"PYTHONPATH": "/theirs", "A": "b"}
        self.sparkContext = SimpleNamespace(
            master=master, pythonExec="python3", environment=environment
        )
        self.conf = settings


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,4]"])
def test_workers_of_this_machine_are_this_python_unless_another_is_named(
    master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a variable or as a setting; what is set to nothing names none."""
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    session = Session(master)
    _take_this_python(cast("SparkSession", session))
    assert session.sparkContext.pythonExec == sys.executable
    named = Session(master, **{"spark.pyspark.python": "/opt/python"})
    _take_this_python(cast("SparkSession", named))
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    told = Session(master)
    _take_this_python(cast("SparkSession", told))
    assert {named.sparkContext.pythonExec, told.sparkContext.pythonExec} == {"python3"}


@pytest.mark.parametrize("master", ["spark://a:7077", "yarn", "local-cluster[1,2,1024]", "k8s://a"])
def test_what_a_cluster_runs_is_left_alone(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machines need not have a Python where this one has its own."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    session = Session(master)
    _take_this_python(cast("SparkSession", session))
    assert session.sparkContext.pythonExec == "python3"


def test_a_python_that_lacks_what_is_needed_has_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may see txnlog on its path: Spark is not to find a format there that fails in use."""
    assert "DefaultSource" in runpy.run_module("pyspark_txnlog")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name != "msgspec" and found(name))
    assert "DefaultSource" not in runpy.run_module("pyspark_txnlog")


@pytest.mark.more
def test_what_fails_halfway_is_removed_too(
    spark: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that cannot be moved, say: the topics go all the same."""
    monkeypatch.setattr(GroupAdmin, "describe", lambda *_: 1 / 0)
    found = check(spark, store)
    assert [step.problem is None for step in found.steps] == [
        *[True] * (6 + READS_STREAMS),
        False,
        True,
    ]
    assert "ZeroDivisionError" in str(found)
    assert (store.topics.list(), store.groups.list(), [*store.transactions.list()]) == ([], [], [])


def test_of_sparks_pages_of_traceback_the_line_that_counts_is_shown() -> None:
    """Our message if there is one, else what Spark says first."""
    trace = "An exception was thrown\n  File x\ntxnlog.errors.StorageError: no rights to put a/b\n"
    assert _problem(RuntimeError(trace)) == "StorageError: no rights to put a/b"
    assert _problem(RuntimeError("Job aborted\n at y")) == "RuntimeError: Job aborted"
    found = SetUpCheck((CheckStep("one"), CheckStep("two", "it broke")))
    assert (found.ok, str(found)) == (False, "ok      one\nFAILED  two: it broke")
    found = SetUpCheck((CheckStep("one"),), ("set it",))
    assert (found.ok, str(found)) == (True, "ok      one\nadvice  set it")
