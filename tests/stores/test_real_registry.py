"""A registry of its own make, Apicurio's, with Confluent's client and Apicurio's serializers.

Values go both ways: what they have registered and framed is read, and what is written here they
read.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
import pytest

import txnlog
from tests.stores.servers import (
    CannotStart,
    building,
    cache_folder,
    free_port,
    run_tool,
    running,
)
from tests.support.cli.cli_command import cli
from txnlog.values import SchemaRegistry, ValueReader, ValueWriter

APICURIO = "2.6.13.Final"
"""The last one that Java 17 runs."""
CLIENT = "2.16.1"
SCRIPT = Path(__file__).with_name("registry_client.py")
SERDES = Path(__file__).with_name("ApicurioSerdes.java")
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>txnlog.tests</groupId><artifactId>serdes</artifactId><version>1</version>
  <dependencies>{}</dependencies>
</project>
"""
SERDE = """<dependency><groupId>io.apicurio</groupId>
  <artifactId>apicurio-registry-serdes-{}-serde</artifactId><version>{}</version></dependency>"""
Values = dict[str, list[bytes]]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a registry's API is that speaks as Confluent's."""
    port = free_port()
    server = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    settings = {"QUARKUS_HTTP_HOST": "127.0.0.1", "QUARKUS_HTTP_PORT": str(port)}
    try:
        command = ["java", "-Xmx512m", "-jar", _fetch_registry()]
        folder = tmp_path_factory.mktemp("registry")
        with running(command, folder, ready=partial(_answers, server), env=settings):
            yield server
    except CannotStart as why:
        pytest.skip(f"Apicurio cannot be started: {why}")


def _answers(server: str) -> bool:
    with urlopen(f"{server}/subjects", timeout=1) as answer:
        return bool(answer.status == 200)


def _fetch_registry() -> Path:
    """The jar that runs, from Maven Central."""
    name = "apicurio-registry-app"
    folder = cache_folder() / f"{name}-{APICURIO}"
    jar = folder / f"{name}-{APICURIO}-runner.jar"
    if not jar.exists():
        with building():
            what = f"-Dartifact=io.apicurio:{name}:{APICURIO}:tar.gz:all"
            where = f"-DoutputDirectory={folder}"
            run_tool(["mvn", "--quiet", "--batch-mode", "dependency:copy", what, where])
            archive = folder / f"{name}-{APICURIO}-all.tar.gz"
            with tarfile.open(archive) as packed:
                packed.extractall(folder, filter="data")
            archive.unlink()
    return jar


@pytest.fixture(scope="module")
def client() -> Path:
    """The folder with Confluent's client and what its serializers need."""
    folder = cache_folder() / f"confluent-kafka-{CLIENT}-py{sys.version_info[1]}"
    done = folder / "done"
    if not done.exists():
        what = f"confluent-kafka[avro,json,protobuf]=={CLIENT}"
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        with building():
            try:
                run_tool([*pip, "--upgrade", "--target", folder, what])
            except CannotStart as why:
                pytest.skip(f"Confluent's client cannot be had: {why}")
            done.touch()
    return folder


def run_client(client: Path, verb: str, url: str, given: object = None) -> dict[str, list[object]]:
    """What the client prints."""
    done = subprocess.run(
        [sys.executable, "-P", str(SCRIPT), verb, url],
        input=json.dumps(given),
        env={"PYTHONPATH": str(client), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[object]] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def values(client: Path, url: str) -> Values:
    """What the client has registered and framed."""
    found = run_client(client, "write", url)
    return {topic: [bytes.fromhex(str(v)) for v in several] for topic, several in found.items()}


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("avro", [(1, None), (2, "é")]),
        ("json", [(1, "é"), (2, None)]),
        ("protobuf", [(1, {"name": "é"}), (2, None), (None, None)]),
    ],
)
def test_values_of_confluents_client(
    url: str, values: Values, tmp_path: Path, kind: str, rows: list[tuple[object, object]]
) -> None:
    """By the newest schema of the subject; an id that is unknown there is a dead letter."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    store.topics.create(kind)
    with store.producer() as producer:
        for value in (*values[kind], b"\0\0\0\x7f\xff\0"):
            producer.send(kind, value)
    reader = ValueReader(SchemaRegistry(url), kind, subject=f"{kind}-value")
    table = pa.Table.from_batches(reader.read(store.scan(kind).to_batches()))
    assert {"id", "note"} <= {*table.column_names} or kind == "protobuf"
    second = "item" if kind == "protobuf" else "note"
    found = [*zip(table["id"].to_pylist(), table[second].to_pylist(), strict=True)]
    assert found == [*rows, (None, None)]
    errors = table["_error"].to_pylist()
    assert "schema 32767 is unknown" in errors[-1]
    late = ["is a made.Late, not a made.Order"] if kind == "protobuf" else []
    for error, reason in zip([e for e in errors[:-1] if e], late, strict=True):
        assert reason in error
    shown = cli(
        *("records", "read", kind, "--value-format", kind, "--registry", url, "-o", "jsonl"),
        *("--store", store.url, "-n", "1"),
    )
    assert json.loads(json.loads(shown.out)["value"])["id"] == 1


@pytest.mark.parametrize("kind", ["avro", "json", "protobuf"])
def test_confluents_client_reads_what_is_written_here(
    client: Path, url: str, values: Values, kind: str
) -> None:
    """Under the schemas that it has registered itself."""
    assert values
    writer = ValueWriter(SchemaRegistry(url), kind, subject=f"{kind}-value")
    row: dict[str, object] = {"id": 7}
    row |= {"item": {"name": "ü"}} if kind == "protobuf" else {"note": "ü"}
    row |= {"at": datetime.fromtimestamp(0, UTC)} if kind == "avro" else {}
    written = {kind: [writer(row).hex()]}
    (found,) = run_client(client, "read", url, written)[kind]
    assert isinstance(found, dict)
    shown = {"id": "7", "item": {"name": "ü"}} if kind == "protobuf" else {"id": 7, "note": "ü"}
    assert {name: found[name] for name in shown} == shown


def test_the_text_of_a_proto_and_its_references(url: str, values: Values) -> None:
    """As the registry keeps it, which knows no descriptors."""
    assert values
    schemas = SchemaRegistry(url)
    assert "message Order" in schemas.version("text-value").text
    value = ValueWriter(schemas, "protobuf", subject="text-value")({"id": 1, "item": {"name": "x"}})
    found = ValueReader(SchemaRegistry(url), "protobuf", subject="text-value")(value)
    assert found == {"id": 1, "item": {"name": "x"}, "at": None}


@pytest.fixture(scope="module")
def serdes() -> Path:
    """The folder with Apicurio's serializers and what they need, from Maven Central."""
    folder = cache_folder() / f"apicurio-serdes-{APICURIO}"
    done = folder / "done"
    if not done.exists():
        with building():
            folder.mkdir(parents=True, exist_ok=True)
            needed = "".join(SERDE.format(kind, APICURIO) for kind in ("avro", "protobuf"))
            (folder / "pom.xml").write_text(POM.format(needed))
            what = ["dependency:copy-dependencies", "-DoutputDirectory=jars"]
            try:
                run_tool(["mvn", "--quiet", "--batch-mode", *what], cwd=folder)
            except CannotStart as why:
                pytest.skip(f"Apicurio's serializers cannot be had: {why}")
            done.touch()
    return folder / "jars"


def run_serdes(serdes: Path, url: str, *words: str) -> list[str]:
    """What ApicurioSerdes prints."""
    command = ["java", "-Xmx256m", "-cp", f"{serdes}/*", str(SERDES), own_api(url), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def own_api(url: str) -> str:
    return url.replace("ccompat/v7", "registry/v2")


def test_values_of_apicurios_serializers(
    values: Values, serdes: Path, url: str, tmp_path: Path
) -> None:
    """Global ids of eight bytes, and of four: other schemas may have them as ids of contents."""
    assert values  # these have both kinds of ids already, so they differ
    found: dict[tuple[str, str], list[bytes]] = {}
    for line in run_serdes(serdes, url):
        topic, way, framed = line.split()
        found.setdefault((topic, way), []).append(bytes.fromhex(framed))
    schemas = SchemaRegistry(own_api(url))
    for way, id_bytes in (("eight", 8), ("four", 4)):
        ids = []
        for topic in ("first", "second"):
            reader = ValueReader(schemas, "avro", subject=f"{topic}-value", id_bytes=id_bytes)
            value = found[topic, way][0]
            assert len(value) == 1 + id_bytes + 1
            assert reader(value) == {"id": 7}
            ids.append(int.from_bytes(value[1:-1], "big"))
        assert ids[0] != ids[1]  # one content, two versions
        wide: dict[str, Any] = {"subject": "proto-value", "id_bytes": id_bytes}
        for chosen, other in (("Order", "Late"), ("Late", "Order")):
            reader = ValueReader(schemas, "protobuf", **wide, message=f"made.{chosen}")
            decoded = reader.decode(pa.array(found["proto", way]))
            assert decoded.columns.column("x").drop_null().to_pylist() == [5]
            reason = decoded.errors.drop_null()[0].as_py()
            assert f"is a made.{other}, not a made.{chosen}" in reason
    store = txnlog.open(str(tmp_path / "store"), create=True)
    store.topics.create("second")
    with store.producer() as producer:
        producer.send("second", found["second", "eight"][0])
    shown = cli(
        *("records", "read", "second", "--value-format", "avro", "--id-bytes", 8, "-o", "jsonl"),
        *("--registry", own_api(url), "--store", store.url),
    )
    assert json.loads(shown.out)["value"] == '{"id":7}', shown.err


def test_apicurios_deserializers_read_what_is_written_here(serdes: Path, url: str) -> None:
    """Under the schemas that they have registered themselves."""
    assert run_serdes(serdes, url)
    schemas = SchemaRegistry(own_api(url))
    avro = ValueWriter(schemas, "avro", subject="second-value", id_bytes=8)
    late = ValueWriter(schemas, "protobuf", subject="proto-value", message="made.Late", id_bytes=8)
    (read,) = run_serdes(serdes, url, "second", avro({"id": 9}).hex())
    assert read == 'read {"id": 9}'
    (read,) = run_serdes(serdes, url, "proto", late({"x": 9}).hex())
    assert read == "read Late x: 9"
