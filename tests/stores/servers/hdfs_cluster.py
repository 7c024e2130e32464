"""An HDFS of one process: Hadoop's own NameNode, DataNodes and KDC, as Maven Central has them."""

from __future__ import annotations

import getpass
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.stores.servers import building, cache_folder, free_port, run_tool, running

VERSION = "3.4.2"

_LAUNCHER = Path(__file__).with_name("HdfsCluster.java")
_HEAP = "700m"
_PATIENCE_S = 180.0
"""On a busy machine a JVM takes a minute until all servers in it answer."""
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>txnlog</groupId><artifactId>test-stores</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.hadoop</groupId>
    <artifactId>hadoop-minicluster</artifactId><version>{VERSION}</version>
  </dependency><dependency>
    <groupId>org.apache.hadoop</groupId>
    <artifactId>hadoop-minikdc</artifactId><version>{VERSION}</version>
  </dependency></dependencies>
</project>
"""
_LOGGING = """log4j.rootLogger=WARN,out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %c: %m%n
"""


@dataclass(frozen=True)
class HdfsCluster:
    """A cluster that runs, and the ports of its NameNode."""

    rpc_port: int
    http_port: int
    user: str
    """Whom the cluster belongs to."""
    process: subprocess.Popen[bytes]


@contextmanager
def run_cluster(
    folder: Path, datanodes: int, ports: tuple[int, int] | None = None, *settings: str
) -> Iterator[HdfsCluster]:
    """Run a cluster with its files below ``folder``; one that has been there goes on.

    Args:
        folder: of its own.
        datanodes: how many; each file is kept by all of them.
        ports: of the NameNode, for RPC and HTTP.
        settings: Hadoop's, as "name=value".
    """
    jars = _download()
    classes = _compile(jars)
    rpc_port, http_port = ports or (free_port(), free_port())
    (folder / "log4j.properties").write_text(_LOGGING)
    log = folder / "server.log"
    begin = log.stat().st_size if log.exists() else 0
    command: list[object] = ["java", f"-Xmx{_HEAP}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += ["--add-opens=java.base/java.lang=ALL-UNNAMED"]  # YARN's pages need it
    command += ["-Djava.net.preferIPv4Stack=true", "-cp", f"{folder}:{classes}:{jars}/*"]
    command += [_LAUNCHER.stem, folder / "cluster", rpc_port, http_port, datanodes]
    command += [f"dfs.replication={datanodes}", *settings]
    with running(
        command,
        folder,
        ready=lambda: b"\nready" in b"\n" + log.read_bytes()[begin:],
        patience_s=_PATIENCE_S,
    ) as made:
        yield HdfsCluster(rpc_port, http_port, getpass.getuser(), made)


def _download() -> Path:
    folder = cache_folder() / f"hadoop-{VERSION}"
    done = folder / "done"
    if not done.exists():
        with building():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "pom.xml").write_text(_POM)
            goal = "dependency:copy-dependencies"
            what = ["-DoutputDirectory=jars", "-DincludeScope=runtime"]
            run_tool(["mvn", "--quiet", "--batch-mode", goal, *what], cwd=folder)
            done.touch()
    return folder / "jars"


def _compile(jars: Path) -> Path:
    """The folder of the launcher's classes: to compile them takes longer than to start it."""
    folder = cache_folder() / f"hdfs-cluster-{zlib.crc32(_LAUNCHER.read_bytes()):08x}"
    done = folder / "done"
    if not done.exists():
        with building():
            run_tool(["javac", "--release", 17, "-cp", f"{jars}/*", "-d", folder, _LAUNCHER])
            done.touch()
    return folder
