"""spark-submit: with the wheel installed on every machine, and with the wheel sent along."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import txnlog
from tests.packaging.environments import OPTIONS_REDACTION, clean_variables, run, spark_submit
from tests.spark.stream_helpers import READS_STREAMS, reads_streams

# In the process that has built the wheel.
pytestmark = [pytest.mark.spark, pytest.mark.more, pytest.mark.xdist_group("packaging")]

JOBS = Path(__file__).parent / "jobs"


def said(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The line of JSON that a job has printed."""
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    last: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return last


@pytest.mark.slow
@pytest.mark.set_up
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[1,2,1024]"])
def test_py_files_are_enough_where_the_dependencies_are(
    wheel: Path, bare_python: Path, tmp_path: Path, master: str
) -> None:
    """Workers, also an executor's, read, shuffle and write with what was sent to them."""
    for name in ("txnlog", "pyspark_txnlog"):
        code = f"import importlib.util; print(importlib.util.find_spec({name!r}))"
        assert run(bare_python, "-I", "-c", code, cwd=tmp_path).strip() == "None"
    sent = tmp_path / "txnlog.zip"
    shutil.copy(wheel, sent)
    job = [str(JOBS / "py_files_job.py"), str(tmp_path / "store")]
    cluster = ["--master", master, "--conf", "spark.ui.enabled=false"]
    done = said(spark_submit(bare_python, *cluster, "--py-files", str(sent), *job, cwd=tmp_path))
    assert (done["committed"], done["read"]) == (100, 100)
    assert done["driver"] == f"{sent}/txnlog/__init__.py"
    [at_work] = done["workers"]
    assert at_work.endswith("txnlog.zip/txnlog/__init__.py")
    assert not at_work.startswith(str(sent))
    values = txnlog.open(str(tmp_path / "store")).scan("out").to_arrow().column("value")
    assert sorted(map(int, values.to_pylist())) == list(range(100))


@reads_streams
@pytest.mark.slow
@pytest.mark.set_up
def test_a_stream_has_what_was_sent_along(wheel: Path, bare_python: Path, tmp_path: Path) -> None:
    """Also in the process beside the driver that plans it, which Spark gives no files."""
    sent = tmp_path / "txnlog.zip"
    shutil.copy(wheel, sent)
    job = [str(JOBS / "py_files_stream_job.py"), str(tmp_path / "store"), str(tmp_path / "query")]
    cluster = ["--master", "local-cluster[1,2,1024]", "--conf", "spark.ui.enabled=false"]
    done = said(spark_submit(bare_python, *cluster, "--py-files", str(sent), *job, cwd=tmp_path))
    assert done["copied"] == 100
    assert "ok      and by a stream" in done["check"]
    assert "FAILED" not in done["check"]


@reads_streams
@pytest.mark.slow
@pytest.mark.set_up
def test_an_archive_brings_an_environment_along(
    python: Path, bare_python: Path, tmp_path: Path
) -> None:
    """Its Python is named by a path that only executors have, as docs/DEPLOYMENT.md says."""
    archive = shutil.make_archive(str(tmp_path / "environment"), "gztar", python.parents[1])
    cluster = ["--master", "local-cluster[1,2,1024]", "--conf", "spark.ui.enabled=false"]
    job = [str(JOBS / "py_files_stream_job.py"), str(tmp_path / "store"), str(tmp_path / "query")]
    arguments = [*cluster, "--archives", f"{archive}#environment", *job]
    variables = {
        "PYSPARK_PYTHON": "./environment/bin/python",
        "PYSPARK_DRIVER_PYTHON": str(python),
    }
    done = said(spark_submit(bare_python, *arguments, cwd=tmp_path, variables=variables))
    assert not (tmp_path / "environment").exists()
    assert done["copied"] == 100
    assert "ok      Spark's workers have txnlog" in done["check"]
    assert "ok      and by a stream" in done["check"]
    assert "FAILED" not in done["check"]


def test_workers_without_txnlog_are_told_of_before_a_job_runs(
    python: Path, bare_python: Path, tmp_path: Path
) -> None:
    """One line names their Python and what to set; Spark's task did not fail with a traceback."""
    local = ["--master", "local[1]", "--conf", "spark.ui.enabled=false"]
    job = [str(JOBS / "py_files_job.py"), str(tmp_path / "store")]
    variables = {"PYSPARK_DRIVER_PYTHON": str(python), "PYSPARK_PYTHON": str(bare_python)}
    done = spark_submit(python, *local, *job, cwd=tmp_path, variables=variables)
    assert done.returncode == 1
    said = f"InvalidOption: Spark's workers run {str(bare_python)!r}, which has no txnlog: set "
    assert said + "PYSPARK_PYTHON" in done.stdout
    assert "Lost task" not in done.stderr


def run_unactivated(python: Path, other: Path, folder: Path, job: str) -> Any:
    """``venv/bin/python job.py``: the python3 on PATH is another, and no variable names one."""
    variables = clean_variables(python, PATH=f"{other.parent}{os.pathsep}{os.environ['PATH']}")
    del variables["PYSPARK_PYTHON"]
    done = subprocess.run(
        [str(python), str(JOBS / job), str(folder / "store")],
        cwd=folder,
        env={**variables, "PYSPARK_SUBMIT_ARGS": "--master local[1] pyspark-shell"},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    return said(done)


def test_a_python_that_was_not_activated_runs_the_workers_too(
    python: Path, bare_python: Path, tmp_path: Path
) -> None:
    """The one on PATH has no txnlog."""
    found = run_unactivated(python, bare_python, tmp_path, "py_files_job.py")
    assert (found["committed"], found["read"]) == (100, 100)
    assert found["workers"] == [found["driver"]]


def test_maintenance_has_it_run_the_workers_too(
    python: Path, bare_python: Path, tmp_path: Path
) -> None:
    """Its tasks are functions: none of them goes through the data source."""
    assert run_unactivated(python, bare_python, tmp_path, "maintain_job.py") == ["Merge"]


@pytest.mark.slow
def test_a_wheel_in_py_files_is_refused_with_the_way_out(
    wheel: Path, bare_python: Path, tmp_path: Path
) -> None:
    """Spark takes it and its workers ignore it, so it is said before any job runs."""
    local = ["--master", "local[1]", "--conf", "spark.ui.enabled=false", "--py-files", str(wheel)]
    job = [str(JOBS / "py_files_job.py"), str(tmp_path / "store")]
    done = spark_submit(bare_python, *local, *job, cwd=tmp_path)
    assert done.returncode == 1
    # Spark prints a job's errors where it prints its output.
    assert f"InvalidOption: --py-files {wheel.name}: Spark's workers do not look" in done.stdout
    assert "--py-files txnlog.zip" in done.stdout


# -- S3, with the wheel installed ------------------------------------------------------------------


@pytest.fixture(scope="module")
def secrets() -> dict[str, str]:
    """What must never show, by what it is."""
    return {
        "secret": "the/secret+of+the+options",
        "token": "the-token-of-the-options",
        "password": "the-password-of-the-options",
        "nested secret": "the-nested-secret-of-the-options",
        "hidden key": "AKIAHIDDENHIDDEN",
        "hidden secret": "another/secret+of+the+options",
        "environment": "the/secret+of+the+environment",
    }


@pytest.fixture(scope="module")
def on_s3(
    python: Path,
    secrets: dict[str, str],
    s3_options: dict[str, Any],
    s3_requests: list[Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """One job on S3, run with each kind of credentials: its counts, texts and requests."""
    root, home = "s3://test/spark-submit", tmp_path_factory.mktemp("s3-job")
    store = txnlog.open(root, create=True, storage_options=s3_options)
    store.topics.create("in")
    store.topics.create("out")
    endpoint = {"endpoint_url": s3_options["endpoint_url"]}
    region = json.dumps({"region_name": "us-east-1"})
    nested = {"region_name": "us-east-1", "aws_access_key_id": "AKIANESTEDNESTED"}
    nested["aws_secret_access_key"] = secrets["nested secret"]
    runs = {
        "options": {
            "key": "AKIAOPTIONSOPTIO",
            "secret": secrets["secret"],
            "token": secrets["token"],
            "client_kwargs": region,
        },
        "aliases": {
            "username": "AKIAALIASESALIAS",
            "password": secrets["password"],
            "client_kwargs": region,
        },
        "nested": {"client_kwargs": json.dumps(nested)},
        "environment": {"client_kwargs": region},
        "hidden": {
            "key": secrets["hidden key"],
            "secret": secrets["hidden secret"],
            "client_kwargs": region,
        },
    }
    settings = {
        "root": root,
        "storage": {name: {**endpoint, **storage} for name, storage in runs.items()},
        "only_read": ["aliases", "nested"],
        "hidden": ["hidden"],
        "streamed": ["options"] if READS_STREAMS else [],
        "checkpoints": str(home / "checkpoints"),
        "regex": OPTIONS_REDACTION,
    }
    (home / "settings.json").write_text(json.dumps(settings))
    events = home / "events"
    events.mkdir()
    configuration = {
        "spark.log.level": "INFO",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.sql.shuffle.partitions": "2",
    }
    confs = [part for key, value in configuration.items() for part in ("--conf", f"{key}={value}")]
    before = len(s3_requests)
    done = spark_submit(
        python,
        *("--master", "local[2]", *confs),
        *(str(JOBS / "s3_job.py"), str(home / "settings.json")),
        cwd=home,
        variables={
            "AWS_ACCESS_KEY_ID": "AKIAENVIRONMENTS",
            "AWS_SECRET_ACCESS_KEY": secrets["environment"],
            "AWS_EC2_METADATA_DISABLED": "true",
        },
    )
    found = said(done)
    found["texts"]["log"] = done.stderr
    for path in events.rglob("events*"):
        if path.is_file():
            found["texts"][f"event log {path.name}"] = path.read_text()
    for path in sorted((home / "checkpoints").rglob("*")):
        if path.is_file():
            where = f"checkpoint {path.relative_to(home / 'checkpoints')}"
            found["texts"][where] = path.read_bytes().decode(errors="replace")
    for name, _ in store.storage.list_all(""):
        found["texts"][f"object {name}"] = store.storage.get(name).decode(errors="replace")
    return {**found, "requests": s3_requests[before:]}


def test_the_installed_wheel_is_found_and_works_on_s3(on_s3: dict[str, Any]) -> None:
    """With no call to register, in DataFrames, a transaction and SQL; a whole run adds 11."""
    assert on_s3["counts"] == {
        "options": 10,
        "aliases": 11,
        "nested": 11,
        "environment": 21,
        "hidden": 32,
    }


def test_credentials_reach_driver_and_tasks(on_s3: dict[str, Any]) -> None:
    """Logs and data are put with the credentials given, or those of the environment."""
    puts = [request for request in on_s3["requests"] if request.method == "PUT"]
    for folder in ("/topics/in/data/", "/topics/in/log/", "/transactions/"):
        keys = {request.key_id for request in puts if folder in request.path}
        assert keys == {"AKIAOPTIONSOPTIO", "AKIAENVIRONMENTS", "AKIAHIDDENHIDDEN"}
    keys = {r.key_id for r in on_s3["requests"] if r.method == "GET" and ".log" in r.path}
    assert {"AKIAALIASESALIAS", "AKIANESTEDNESTED"} < keys


def test_no_secret_is_in_anything_that_a_job_leaves(
    on_s3: dict[str, Any], secrets: dict[str, str]
) -> None:
    """Plans, pages, logs, errors, checkpoints of streams, and the store's own files."""
    texts = on_s3["texts"]
    leaks = [
        (what, where)
        for where, text in texts.items()
        for what, secret in secrets.items()
        if secret in text
    ]
    assert leaks == []
    # The looking is not a formality: the texts are there, and show what docs/SPARK.md says they
    # show.
    of_streams = ("progress", "checkpoint options/offsets", "checkpoint options/commits")
    kinds = (
        *("plan", "view", "sql", "error", "ui /api", "ui /SQL/execution", "log", "event log"),
        *("object topics", *(of_streams if READS_STREAMS else ())),
    )
    assert [kind for kind in kinds if not any(where.startswith(kind) for where in texts)] == []
    left = ("checkpoint", "object")
    assert all(len(text) > 100 for where, text in texts.items() if not where.startswith(left))
    offsets = [text for where, text in texts.items() if where == "checkpoint options/offsets/0"]
    assert not READS_STREAMS or '"in"' in offsets[0]
    shown = {where.split(" ")[0] for where, text in texts.items() if "AKIAOPTIONSOPTIO" in text}
    assert shown == {"ui", "event"}
    assert "CorruptRecord" in texts["error task"] or "ObjectNotFound" in texts["error task"]
    assert "The specified bucket does not exist" in texts["error bucket options"]
