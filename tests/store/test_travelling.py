"""What is sent to other processes: it works there like here, or says what to send instead."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import txnlog
from tests.support.log.settling import settle_early
from tests.support.steps import append, begin_with
from txnlog.store import Store


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """With records in manifests, beyond them, and in an open transaction."""
    settle_early(monkeypatch)
    store = txnlog.open(str(tmp_path / "store"), create=True)
    store.topics.create("t", partitions=2)
    for number in range(20):
        append(store, b"%d" % number)
    begin_with(store, "open", b"undecided")
    return store


def sent(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


@pytest.mark.parametrize(
    "look",
    [
        lambda store: (store, lambda here: here.scan("t").to_arrow()),
        lambda store: (store.scan("t"), lambda here: here.to_arrow()),
        lambda store: (
            store.scan("t", filter=pc.field("offset") > 3, columns=["offset"]),
            lambda here: here.to_arrow(),
        ),
        lambda store: (
            store.changes("t", since="earliest", pre_images=True),
            lambda here: here.to_arrow(),
        ),
        lambda store: (store.topics, lambda here: here.describe("t")),
        lambda store: (store.groups, lambda here: here.list()),
        lambda store: (store.transactions, lambda here: here.describe("open").status),
        lambda store: (store.maintenance, lambda here: here.purge("t", [], dry_run=True)),
        lambda store: (store.schemas, lambda here: here.list()),
        lambda store: (store.kafka, lambda _: True),
        lambda store: (store.tables, lambda _: True),
    ],
    ids=[
        *("store", "scan", "filtered", "changes", "topics", "groups", "transactions"),
        *("maintenance", "schemas", "kafka", "tables"),
    ],
)
def test_it_works_where_it_arrives(
    on_disk: Store, look: Callable[[Store], tuple[Any, Callable[[Any], object]]]
) -> None:
    thing, ask = look(on_disk)
    assert ask(sent(thing)) == ask(thing)


@pytest.mark.parametrize("level", ["read_committed", "snapshot", "read_uncommitted"])
def test_a_snapshot_shows_the_same_where_it_arrives(
    on_disk: Store, level: txnlog.IsolationLevel
) -> None:
    """Whatever is appended meanwhile."""
    snapshot = on_disk.snapshot("t", isolation_level=level)
    expected = snapshot.scan("t").to_arrow()
    data = pickle.dumps(snapshot)
    append(on_disk, b"later")
    there = pickle.loads(data)
    assert repr(there) == repr(snapshot)
    assert there.scan("t").to_arrow() == expected
    assert there.dataset("t").count_rows() == len(expected)


@pytest.mark.parametrize(
    ("make", "instead"),
    [
        (lambda store: store.topics.describe_all(), r"send \[\*found\]"),
        (lambda store: store.consumer("t"), "send the store"),
        (lambda store: store.consumer("t", group_id="g"), "send the store"),
        (lambda store: store.producer(), "send the store"),
        (lambda store: store.producer(transactional_id="x"), "send the store"),
    ],
    ids=["found", "consumer", "member", "producer", "transactional"],
)
def test_what_stays_says_what_to_send(
    on_disk: Store, make: Callable[[Store], object], instead: str
) -> None:
    with pytest.raises(TypeError, match=instead):
        pickle.dumps(make(on_disk))
