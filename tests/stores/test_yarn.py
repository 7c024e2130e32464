"""A real YARN over HDFS: a job that is submitted as DEPLOYMENT.md says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pyspark
import pytest

import txnlog
from tests.packaging.environments import build, environment, spark_submit
from tests.stores.servers import CannotStart
from tests.stores.servers.hdfs_cluster import run_cluster
from tests.stores.yarn_job import RECORDS
from tests.support.checkout import ROOT
from tests.support.documents import blocks_of

_SMALL = {
    "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent}/jars/*",
    "spark.driver.memory": "700m",
    "spark.executor.memory": "512m",
    "spark.executor.instances": "1",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


def documented() -> list[str]:
    """The options of the page's command."""
    (block,) = (
        block
        for block in blocks_of(ROOT / "docs" / "DEPLOYMENT.md")
        if block.heading == "YARN" and "spark-submit" in block.text
    )
    return re.findall(r"--(?:master|deploy-mode|conf) \S+", block.text)


def test_a_driver_that_dies_is_started_again_by_yarn(tmp_path: Path) -> None:
    """The environment comes along as an archive; the second driver fences the first one."""
    (tmp_path / "built").mkdir()
    python = environment(tmp_path / "home", build(tmp_path / "built", symlinks=False))
    archive = shutil.make_archive(str(tmp_path / "environment"), "gztar", python.parents[1])
    clients, server = tmp_path / "clients", tmp_path / "server"
    server.mkdir()
    try:
        with run_cluster(server, 3, None, f"yarn.clients={clients}") as cluster:
            url = f"hdfs://127.0.0.1:{cluster.rpc_port}/store"
            store = txnlog.open(url, create=True)
            for topic in ("in", "out", "checked"):
                store.topics.create(topic, partitions=2)
            with store.producer() as producer:
                for number in range(RECORDS):
                    producer.send("in", b"%d" % number)
            done = spark_submit(
                python,
                *(word for option in documented() for word in option.split(" ")),
                *(f"--conf={name}={value}" for name, value in _SMALL.items()),
                *("--archives", f"{archive}#environment"),
                *(str(Path(__file__).with_name("yarn_job.py")), url),
                cwd=tmp_path,
                variables={"HADOOP_CONF_DIR": str(clients)},
            )
            assert done.returncode == 0, done.stderr[-6000:]
            values = store.scan("out").to_arrow().column("value").to_pylist()
            assert sorted(map(int, values)) == list(range(RECORDS))
            assert store.groups.describe("g").lag == 0
            [said] = store.scan("checked").to_arrow().column("value").to_pylist()
            assert b"ok      Spark's workers have txnlog" in said
            assert b"ok      and by a stream" in said
            assert b"FAILED" not in said
            left = [name for name, _ in store.storage.list_all("topics/out/data")]
            placed = {segment.paths.log for segment in store.topics.segments("out")}
            assert set(left) > placed, "the first driver had uploaded nothing"
    except CannotStart as why:
        pytest.skip(f"no cluster can be started: {why}")
