"""Records one by one beside confluent-kafka, with a broker of Kafka's on the same machine.

The broker is Kafka's own from Maven Central, fetched once into the user's cache. Sending alone is
also measured beside librdkafka's mock cluster, in a process of its own, which needs neither Java
nor a download. If something cannot be measured here, the report says so.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_VERSION = "3.9.1"
_VALUE = b"v" * 100
_TOPIC = "read"
_PATIENCE_S = 60.0
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>txnlog</groupId><artifactId>broker</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.kafka</groupId>
    <artifactId>kafka_2.13</artifactId><version>{_VERSION}</version>
  </dependency></dependencies>
</project>
"""


class CannotStartError(Exception):
    """There is no broker; the message says why."""


def measure(
    folder: Path, count: int, repetitions: int, ours: Mapping[str, Callable[[], object]]
) -> list[str]:
    """Lines of Markdown.

    Args:
        folder: for the broker's files.
        count: how many records.
        repetitions: how many alternating runs.
        ours: txnlog's calls, by the names that they have in Kafka's client: send, iterate, poll.
    """
    try:
        import confluent_kafka
    except ImportError:
        return ["Not measured beside confluent-kafka: it is not installed."]
    try:
        with broker(folder) as (servers, process):
            client = _Client(servers, count)
            theirs = {"send": client.send, "iterate": client.iterate, "poll": client.poll}
            return [
                f"Beside confluent-kafka {confluent_kafka.__version__}, with Kafka {_VERSION} on",
                f"the same machine: {count:,} records of 16 + 100 bytes, one partition, without",
                f"compression, median of {repetitions} alternating runs. CPU time is the",
                "client's; the last column is the broker's.",
                "",
                "| what | client | records/s | records a CPU second | broker, CPU s |",
                "|---|---|---|---|---|",
                *_lines(ours, theirs, process, count, repetitions),
            ]
    except CannotStartError as error:
        return [f"Not measured beside confluent-kafka: {error}"]


def measure_sends(
    count: int, repetitions: int, ours: Mapping[str, Callable[[], object]]
) -> list[str]:
    """Lines of Markdown: records a CPU second of ways to send, to those of confluent-kafka.

    Args:
        count: how many records each sends.
        repetitions: how many alternating runs.
        ours: txnlog's ways, by what the table calls them.
    """
    try:
        import confluent_kafka
    except ImportError:
        return ["Not measured beside confluent-kafka: it is not installed."]
    with _mock_cluster() as servers:
        theirs = "`produce` and `flush` of confluent-kafka"
        client = _Client(servers, count, fills=False)
        used = _cpu_of({**ours, theirs: client.send}, repetitions)
    lines = [
        f"Beside confluent-kafka {confluent_kafka.__version__} with its mock cluster in a process",
        f"of its own: {count:,} records of 16 + 100 bytes, one partition, the least of",
        f"{repetitions} alternating runs. CPU time is that of the process that sends, with all of",
        "its threads.",
        "",
        "| what | records a CPU second | to confluent-kafka's |",
        "|---|---|---|",
    ]
    for what, cpu_s in used.items():
        lines.append(f"| {what} | {count / cpu_s / 1e3:,.0f} k | {used[theirs] / cpu_s:.2f} |")
    return lines


def _cpu_of(runs: Mapping[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """The least CPU seconds of this process alone; one turn before the first is not counted.

    The least, because a busy neighbour on the same core makes each take longer, and none shorter.
    """
    used: dict[str, list[float]] = {what: [] for what in runs}
    for turn in range(repetitions + 1):
        for what, run in runs.items():
            begun_s = time.process_time()
            run()
            if turn:
                used[what].append(time.process_time() - begun_s)
    return {what: min(seconds) for what, seconds in used.items()}


@contextmanager
def _mock_cluster() -> Iterator[str]:
    """The address of a cluster of one broker in memory."""
    with subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def _serve_mock_cluster() -> None:
    from confluent_kafka import Producer

    cluster = Producer({"bootstrap.servers": "localhost", "test.mock.num.brokers": 1})
    brokers = cluster.list_topics(timeout=_PATIENCE_S).brokers.values()
    print(",".join(f"{broker.host}:{broker.port}" for broker in brokers), flush=True)
    sys.stdin.read()


def _lines(
    ours: Mapping[str, Callable[[], object]],
    theirs: Mapping[str, Callable[[], object]],
    broker: int,
    count: int,
    repetitions: int,
) -> Iterator[str]:
    for what in theirs:
        taken: dict[str, list[tuple[float, float, float]]] = {"txnlog": [], "confluent-kafka": []}
        for turn in range(repetitions + 1):
            for client, run in (("txnlog", ours[what]), ("confluent-kafka", theirs[what])):
                begun = time.perf_counter(), time.process_time(), _cpu_s(broker)
                run()
                ended = time.perf_counter(), time.process_time(), _cpu_s(broker)
                if turn:
                    elapsed, used, beside = (b - a for a, b in zip(begun, ended, strict=True))
                    taken[client].append((elapsed, used, beside))
        for client, runs in taken.items():
            elapsed, used, beside = map(statistics.median, zip(*runs, strict=True))
            rates = " | ".join(f"{count / seconds / 1e3:,.0f} k" for seconds in (elapsed, used))
            beside_s = f"{beside:.2f}" if client != "txnlog" else "none"
            yield f"| {what} | {client} | {rates} | {beside_s} |"


class _Client:
    """The same calls of confluent-kafka, with that many records."""

    def __init__(self, servers: str, count: int, *, fills: bool = True) -> None:
        self._servers = servers
        self._keys = [b"%016d" % number for number in range(count)]
        self._count = count
        if fills:
            self._send(_TOPIC)

    def send(self) -> None:
        self._send("sent")

    def _send(self, topic: str) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self._servers, "linger.ms": 5, "acks": "all"})
        produce = producer.produce
        for key in self._keys:
            while True:
                try:
                    produce(topic, _VALUE, key)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(_PATIENCE_S) == 0

    def _consumer(self) -> object:
        from confluent_kafka import Consumer

        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": uuid.uuid4().hex,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition

        consumer.assign([TopicPartition(_TOPIC, 0, OFFSET_BEGINNING)])
        return consumer

    def iterate(self) -> None:
        consumer = self._consumer()
        left = self._count
        while left:
            message = consumer.poll(_PATIENCE_S)  # type: ignore[attr-defined]
            assert message is not None, "the broker is silent"
            message.key(), message.value(), message.offset()
            left -= 1
        consumer.close()  # type: ignore[attr-defined]

    def poll(self) -> None:
        consumer = self._consumer()
        left = self._count
        while left:
            messages = consumer.consume(min(left, 10_000), _PATIENCE_S)  # type: ignore[attr-defined]
            assert messages, "the broker is silent"
            for message in messages:
                message.key(), message.value(), message.offset()
            left -= len(messages)
        consumer.close()  # type: ignore[attr-defined]


@contextmanager
def broker(folder: Path) -> Iterator[tuple[str, int]]:
    """A broker that is its own controller: its address, and its process."""
    jars = _fetch()
    port, control = _free_port(), _free_port()
    settings = folder / "server.properties"
    settings.write_text(
        f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{control}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}
controller.listener.names=CONTROLLER
log.dirs={folder / "broker"}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""
    )
    java = ["java", "-Xmx512m", "-cp", f"{jars}/*"]
    formatted = subprocess.run(
        [
            *java,
            "kafka.tools.StorageTool",
            "format",
            "-t",
            "MkU3OEVBNTcwNTJENDM2Qk",
            "-c",
            settings,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if formatted.returncode:
        raise CannotStartError(f"the broker's folder: {formatted.stderr.strip()[-300:]}")
    with (folder / "broker.log").open("wb") as log:
        process = subprocess.Popen([*java, "kafka.Kafka", settings], stdout=log, stderr=log)
    try:
        _wait_for(port, process)
        yield f"127.0.0.1:{port}", process.pid
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until_s:
        if process.poll() is not None:
            raise CannotStartError(f"the broker ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise CannotStartError(f"the broker does not answer within {_PATIENCE_S:.0f} s")


def _fetch() -> Path:
    """The folder with the broker's jars."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise CannotStartError(f"{tool} is not installed")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "txnlog-benchmarks" / f"kafka-{_VERSION}"
    done = folder / "done"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pom.xml").write_text(_POM)
        goal = ["dependency:copy-dependencies", "-DoutputDirectory=jars", "-DincludeScope=runtime"]
        fetched = subprocess.run(
            ["mvn", "--quiet", "--batch-mode", *goal],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if fetched.returncode:
            raise CannotStartError(f"Kafka could not be fetched: {fetched.stdout.strip()[-300:]}")
        done.touch()
    return folder / "jars"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    _serve_mock_cluster()
