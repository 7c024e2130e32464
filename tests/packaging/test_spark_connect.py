"""Spark Connect: a client that has no JVM of its own to reach into, and a server without txnlog."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import txnlog
from tests.packaging.environments import STRING_REDACTION, clean_variables

# In the process that has built the wheel.
pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.set_up,
    pytest.mark.xdist_group("packaging"),
]

JOB = Path(__file__).parent / "jobs" / "connect_job.py"
STREAMS_JOB = JOB.with_name("connect_streams_job.py")
SHOWN, HIDDEN = "the/secret+that+connect+shows", "the/secret+that+is+hidden"


def run_client(
    python: Path, job: Path, *arguments: str, cwd: Path
) -> subprocess.CompletedProcess[str]:
    """Run a client, which starts its server."""
    done = subprocess.run(
        [str(python), str(job), *arguments],
        cwd=cwd,
        # The server takes a free port instead of 15002 when Spark's own tests run.
        env=clean_variables(python, SPARK_TESTING="1"),
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,  # of which a quiet machine needs the tenth part
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done


@pytest.fixture(scope="module")
def connected(
    wheel: Path,
    bare_python: Path,
    s3_options: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """The result of a client's job; its store is in ``root``."""
    home = tmp_path_factory.mktemp("connect")
    root, s3_root, events = str(home / "store"), "s3://test/connect", home / "events"
    events.mkdir()
    package = home / "txnlog.zip"
    shutil.copy(wheel, package)
    store = txnlog.open(s3_root, create=True, storage_options=s3_options)
    store.topics.create("in")
    with store.producer() as producer:
        producer.send("in", b"1")
    storage = {
        "endpoint_url": s3_options["endpoint_url"],
        "client_kwargs": json.dumps({"region_name": "us-east-1"}),
        "key": "AKIACONNECT",
    }
    settings = {
        "root": root,
        "events": events.as_uri(),
        "s3_root": s3_root,
        "shown": {**storage, "secret": SHOWN},
        "hidden": {**storage, "secret": HIDDEN, "token": f"token of {HIDDEN}"},
        "regex": STRING_REDACTION,
    }
    (home / "settings.json").write_text(json.dumps(settings))
    done = run_client(bare_python, JOB, str(package), str(home / "settings.json"), cwd=home)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    found["texts"]["log"] = done.stderr
    for path in events.rglob("events*"):
        if path.is_file():
            found["texts"][f"event log {path.name}"] = path.read_text()
    return {**found, "root": root}


def test_it_is_connect(connected: dict[str, Any]) -> None:
    """The session is a client's, in which nothing of the JVM can be reached."""
    assert connected["session"] == "pyspark.sql.connect.session"
    assert "JVM_ATTRIBUTE_NOT_SUPPORTED" in connected["context"]


def test_a_session_that_was_not_registered_says_so(connected: dict[str, Any]) -> None:
    """The server has no txnlog of its own before the session brings it."""
    assert "DATA_SOURCE_NOT_FOUND" in connected["before"]


def test_every_part_works_through_connect(connected: dict[str, Any]) -> None:
    """Reads, writes, transactions of both kinds, catch_up, the shuffle, SQL views."""
    expected = {"read": 100, "transaction": 101, "catch_up": [2, 100], "segments": 3, "lag": 0}
    assert {name: connected[name] for name in expected} == expected
    store = txnlog.open(connected["root"])
    for topic, numbers in (("in", 100), ("caught-up", 100), ("shuffled", 100)):
        values = store.scan(topic, columns=["value"]).to_arrow().column("value").to_pylist()
        assert sorted(map(int, values)) == list(range(numbers))
    values = store.scan("out", columns=["value"]).to_arrow().column("value").to_pylist()
    assert set(map(int, values)) == set(range(102))
    assert len(values) == 103


def test_a_write_that_forgets_the_id_is_refused_through_connect(connected: dict[str, Any]) -> None:
    """As in a classic session; the test above tells that nothing of it was written."""
    assert len(connected["forgotten"]) == 2
    for said in connected["forgotten"]:
        assert "were read with transactional.id 'forgetful', but it names none" in said
        assert "was aborted" in said
    assert connected["forgotten_state"] == "CompleteAbort"


def test_a_block_keeps_what_it_has_read_through_connect(connected: dict[str, Any]) -> None:
    """Written beside it, or by two writes that differ by chance: nothing of it is there."""
    assert "were read in transaction(...) with transactional_id 'beside'" in connected["beside"]
    assert "can no longer commit" in connected["block"] or "fenced" in connected["block"].lower()
    assert "random() need not give the same values" in connected["by_chance"]
    store = txnlog.open(connected["root"])
    assert {"chance", "beside"} & {*store.groups.list()} == set()


def test_what_is_pinned_through_connect(connected: dict[str, Any]) -> None:
    """As docs/SPARK.md says: the first action pins, for as long as the server remembers."""
    assert connected["pinning"] == {
        "loaded": [2, 2, 4],
        "ended": [1, 1, 1],
        "transaction": [1, 1, 1],
        "read": [1, 1, 1],
        "whole": [1, 1, 1],
    }


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("pyspark.sql.streaming.datasource") is None,
    reason="reading a stream needs PySpark 4.2: 4.1 has no admission control",
)
def test_streams_through_connect(python: Path, tmp_path: Path) -> None:
    """A stream copies all once; foreach_batch, which needs the query's name, is refused."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    for topic in ("in", "out"):
        store.topics.create(topic)
    with store.producer() as producer:
        for number in range(100):
            producer.send("in", b"%d" % number)
    done = run_client(python, STREAMS_JOB, str(tmp_path), cwd=tmp_path)
    values = store.scan("out", columns=["value"]).to_arrow().column("value").to_pylist()
    assert list(map(int, values)) == list(range(100))
    assert "or on Spark Connect, which does not name the query" in done.stdout


def test_errors_arrive_with_their_text(connected: dict[str, Any]) -> None:
    """What happened and what to do is in the client's exception."""
    assert "UnknownTopicOrPartition" in connected["error"]
    assert "'nowhere'" in connected["error"]


def test_connect_shows_options_unless_told_otherwise(connected: dict[str, Any]) -> None:
    """What docs/SPARK.md warns of, and that the setting it gives puts an end to it."""
    texts = connected["texts"]
    assert [where for where, text in texts.items() if HIDDEN in text] == []
    showing = {where.split(" ")[0] for where, text in texts.items() if SHOWN in text}
    assert showing == {"ui", "event"}
    assert "plan hidden" in texts
