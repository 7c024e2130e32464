"""A store that goes from a local disk to another filesystem and back, by standbys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import txnlog
from tests.support.steps import values
from txnlog.errors import IllegalState, StorageError
from txnlog.names import TopicPartition
from txnlog.replication import Follower, Promotion, Standby
from txnlog.store import Store


def transfer(store: Store, *sent: str) -> None:
    """A transaction over two topics and a group."""
    with store.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with producer.transaction():
            for value in sent:
                producer.send("a", value.encode())
                producer.send("b", value.encode())
            end = store.topics.describe("a").partitions[0].last_stable_offset + len(sent)
            producer.send_offsets_to_transaction({TopicPartition("a", 0): end}, "g")


def follow(store: Store, url: str, options: dict[str, Any]) -> Store:
    """Two rounds, one by one process each; what shows is what there was."""
    for number in range(2):
        transfer(store, f"{url.partition(':')[0]} {number}")
        standby = Follower(store, url, storage_options=options)
        done = standby.follow()
        assert (done.round, done.lost) == (number, ())
        assert standby.sweep() == 0
    copy = txnlog.open(url, storage_options=options)
    for topic in ("a", "b"):
        assert values(copy, topic) == values(store, topic)
    assert copy.groups.describe("g").offsets == store.groups.describe("g").offsets
    assert not [one for one in copy.examine(with_probe=False) if one.state == "damage"]
    with pytest.raises(StorageError, match="read only"):
        copy.topics.create("c")
    return copy


def promote(copy: Store, url: str, options: dict[str, Any], source_options: Any) -> Store:
    done: Promotion = Standby(copy).promote(source_options)
    assert (done.missing, done.why_unknown, done.unfinished) == ({}, "", ())
    return txnlog.open(url, storage_options=options)


def there_and_back(folder: Path, url: str, options: dict[str, Any]) -> None:
    """From ``folder`` to ``url``, and to ``folder`` again; transactions go on each time."""
    here = txnlog.open(str(folder / "store"), create=True)
    for topic in ("a", "b"):
        here.topics.create(topic)
    copy = follow(here, url, options)
    late = Follower(here, url, storage_options=options)
    there = promote(copy, url, options, None)
    with pytest.raises(IllegalState, match="was promoted"):
        late.follow()
    transfer(there, "there")
    copy = follow(there, str(folder / "back"), {})
    back = promote(copy, str(folder / "back"), {}, {there.url: options})
    transfer(back, "back")
    assert len(values(back, "a")) == 2 + 1 + 2 + 1
    assert values(back, "a") == values(back, "b")
    assert not [one for one in back.examine() if one.state == "damage"]
