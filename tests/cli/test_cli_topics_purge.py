"""``txnlog topics purge``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txnlog
from tests.support.cli.cli_command import Finished, cli
from txnlog.replication import open_replicas

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


@pytest.fixture
def told(own_store: Path) -> Path:
    """A store with a topic of three people, and a typed one."""
    store = txnlog.open(str(own_store))
    store.topics.create("said")
    store.topics.create("people", schema=SCHEMA, key=["id"])
    with store.producer() as producer:
        for name in ("ann", "bob", "ann", "cy"):
            producer.send("said", "a word", name)
        producer.send_batch("people", [{"id": n, "name": f"n{n}"} for n in range(4)])
    return own_store


def rows(done: Finished) -> list[dict[str, Any]]:
    assert done.code == 0, done
    found: list[dict[str, Any]] = json.loads(done.out)
    return found


def test_a_person_is_deleted(told: Path) -> None:
    """A dry run counts, then it asks; what is left to do is said each time."""
    purge = ("topics", "purge", "said", "--keys", "-", "--store", told, "-o", "json")
    (plan,) = rows(cli(*purge, "--dry-run", stdin=b"ann\n"))
    assert (plan["record_count"], plan["purged_bytes"]) == (2, None)
    refused = cli(*purge, stdin=b"ann\n")
    assert refused.code == 2
    assert "--yes" in refused.err
    done = cli(*purge, "--yes", stdin=b"ann\n")
    (found,) = rows(done)
    assert (found["topic"], found["partition"], found["record_count"]) == ("said", 0, 2)
    assert "may hold such records: 1;" in done.err
    keys = txnlog.open(str(told)).scan("said").to_arrow()["key"].to_pylist()
    assert keys == [b"bob", b"cy"]
    nobody = cli(*purge, "--yes", stdin=b"nobody\n")
    assert rows(nobody) == []
    assert "records: 1;" in nobody.err


def test_what_is_damaged_is_named(told: Path) -> None:
    """The rest is purged; the person is not said to be gone."""
    data = told / "topics/said/data"
    before = {*data.rglob("*.log")}
    with txnlog.open(str(told)).producer() as producer:
        producer.send("said", "a word", "dan")
    (path,) = {*data.rglob("*.log")} - before
    path.write_bytes(path.read_bytes()[:-9])
    purge = ("topics", "purge", "said", "--store", told, "--yes", "-o", "json", "--keys", "-")
    for keys, count in ((b"ann\n", 1), (b"nobody\n", 0)):
        done = cli(*purge, stdin=keys)
        assert (done.code, len(json.loads(done.out))) == (3, count)
        assert "cannot be read" in done.err
        assert "purge again when it is restored" in done.err
        assert "no file of the topic" not in done.err


def test_what_roots_had_is_named(tmp_path: Path) -> None:
    """Of a store with replicas, until it is forgotten."""
    urls = [str(tmp_path / root) for root in "ab"]
    replicas = open_replicas(urls, controller=str(tmp_path / "control"), create=True)
    replicas.store.topics.create("said")
    with replicas.store.producer() as producer:
        producer.send("said", "a word", "ann")
    replicas.remove("r1")
    replicas.add(urls[1])
    purge = ("topics", "purge", "said", "--keys", "-", "--store", urls[0], "-o", "json", "--yes")
    assert "may hold such records: r1-0; `txnlog replicas forget`" in cli(*purge, stdin=b"ann").err
    assert cli("replicas", "forget", "--store", urls[0], "--yes").code == 0
    assert "replicas" not in cli(*purge, stdin=b"ann").err


def test_keys_in_files(told: Path, tmp_path: Path) -> None:
    """As records that delete, as a table of the key's columns, and what cannot be read."""
    purge = ("topics", "purge", "people", "--store", told, "--yes", "-o", "json", "--keys")
    lines, table = tmp_path / "keys.jsonl", tmp_path / "keys.csv"
    lines.write_text('{"id": 1, "_deleted": true}\n')
    table.write_text("id\n2\n3\n")
    assert rows(cli(*purge, lines))[0]["record_count"] == 1
    assert sum(part["record_count"] for part in rows(cli(*purge, table))) == 2
    assert txnlog.open(str(told)).scan("people").to_arrow()["id"].to_pylist() == [0]
    table.write_text("name\nn0\n")
    for keys, why in ((table, "id"), (tmp_path / "nowhere", "nowhere"), (tmp_path, "directory")):
        failed = cli(*purge, keys)
        assert failed.code in (1, 2), keys
        assert why in failed.err
    as_text = tmp_path / "keys.txt"
    as_text.write_text("0\n")
    assert "lines" in cli(*purge, as_text).err


@pytest.mark.parametrize(
    ("line", "count"),
    [('{"key": "ann"}', 2), ('{"offset": 1, "key": {"hex": "626f62"}, "value": null}', 1)],
)
def test_a_line_need_name_no_more_than_the_key(
    told: Path, tmp_path: Path, line: str, count: int
) -> None:
    keys = tmp_path / "keys.jsonl"
    keys.write_text(line + "\n")
    purge = ("topics", "purge", "said", "--keys", keys, "--store", told, "--yes", "-o", "json")
    assert rows(cli(*purge))[0]["record_count"] == count
    for wrong in ('{"id": 1}', '{"value": "ann"}'):
        keys.write_text(wrong + "\n")
        refused = cli(*purge)
        assert refused.code == 1
        assert "key" in refused.err
        assert "--value-is-line" not in refused.err


@pytest.mark.parametrize("topic", ["said", "people"])
def test_no_keys(told: Path, tmp_path: Path, topic: str) -> None:
    """An empty file, of whatever form, is refused: what should have written it may have failed."""
    for ending in ("jsonl", "csv", *(["txt"] if topic == "said" else [])):
        keys = tmp_path / f"keys.{ending}"
        for content in ("", "\n", *(["id\n"] if (topic, ending) == ("people", "csv") else [])):
            keys.write_text(content)
            done = cli("topics", "purge", topic, "--keys", keys, "--store", told, "--yes")
            assert done.code == 2
            assert "has no keys" in done.err


def test_lines_that_are_not_what_they_seem(told: Path, tmp_path: Path) -> None:
    """An empty line is no key, nor do editors' marks belong to one; as JSON lines all are keys."""
    with txnlog.open(str(told)).producer() as producer:
        producer.send("said", "a word", "")
    purge = ("topics", "purge", "said", "--store", told, "--yes", "-o", "json", "--keys", "-")
    for lines, why in ((b"ann\r\n", "carriage return"), (b"\xef\xbb\xbfann\n", "byte order mark")):
        refused = cli(*purge, stdin=lines)
        assert refused.code == 2
        assert why in refused.err
    assert rows(cli(*purge, stdin=b"\nann\n\n"))[0]["record_count"] == 2
    keys = txnlog.open(str(told)).scan("said").to_arrow()["key"].to_pylist()
    assert keys == [b"bob", b"cy", b""]
    assert rows(cli(*purge, "-i", "jsonl", stdin=b'{"key": ""}\n'))[0]["record_count"] == 1


def test_a_published_table_is_named(told: Path, tmp_path: Path) -> None:
    """Nothing is found any more, and the table may show it nevertheless."""
    store = txnlog.open(str(told))
    place = f"delta:{tmp_path}/table"
    store.topics.alter("people", config={"table.publish": place})
    purge = ("topics", "purge", "people", "--store", told, "--yes", "--keys", "-", "-i", "jsonl")
    for number in (1, 1000):
        done = cli(*purge, stdin=b'{"id": %d}' % number)
        assert f"published as {place}, which shows such records until" in done.err
    assert store.maintenance.purge("people", [{"id": 1}], dry_run=True).published == place
    assert "published as" not in cli(*purge[:2], "said", *purge[3:], stdin=b'{"key": "ann"}').err


def test_the_keys_of_a_topic(told: Path) -> None:
    """Which keeps them, unless it is the topic that is purged."""
    store = txnlog.open(str(told))
    store.topics.create("gone")
    with store.producer() as producer:
        producer.send("gone", None, "ann")
        producer.send("gone", "no key")
    gone = ("--keys-of", "gone", "--store", told, "-o", "json")
    (plan,) = rows(cli("topics", "purge", "said", *gone, "--dry-run"))
    assert (plan["record_count"], plan["purged_bytes"]) == (2, None)
    refused = cli("topics", "purge", "said", *gone)
    assert refused.code == 2
    assert "delete all records of all keys of topic gone from topic said" in refused.err
    for topic, count, left in (("said", 2, [b"bob", b"cy"]), ("gone", 1, [None])):
        assert rows(cli("topics", "purge", topic, *gone, "--yes"))[0]["record_count"] == count
        assert store.scan(topic).to_arrow()["key"].to_pylist() == left


def test_a_topic_of_other_keys(told: Path) -> None:
    """Or of none: nothing is guessed from columns, which may have the name of a key."""
    store = txnlog.open(str(told))
    store.topics.create("keyless", schema=SCHEMA)
    for topic, options, why in (
        ("said", ("--keys-of", "nowhere"), "topic 'nowhere' does not exist"),
        ("said", ("--keys-of", "people"), "people: its key is id, and that of said is key: name"),
        ("people", ("--keys-of", "keyless"), "keyless: its key is none, and that of people is id"),
        ("keyless", ("--keys-of", "keyless"), "that of keyless is none"),
        ("said", ("--keys-of", "said", "-i", "jsonl"), "--input is of --keys FILE"),
        ("said", ("--keys-of", "said", "--keys", "-"), "give either --keys FILE or --keys-of TOP"),
        ("said", (), "give either --keys FILE or --keys-of TOPIC"),
    ):
        refused = cli("topics", "purge", topic, *options, "--store", told, "--yes")
        assert refused.code in (1, 2)
        assert why in " ".join(refused.err.split()), refused.err
    assert store.scan("said").record_count == 4


def test_too_many_keys(told: Path, tmp_path: Path) -> None:
    """They are not all read first."""
    keys = tmp_path / "keys.txt"
    keys.write_bytes((b"k" * 1_000_000 + b"\n") * 70)
    done = cli("topics", "purge", "said", "--keys", keys, "--store", told, "--yes")
    assert done.code == 2
    assert "more than 64 MiB of keys" in done.err
