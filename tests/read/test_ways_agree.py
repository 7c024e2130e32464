"""Every way of reading shows the same of a topic, whatever it has lived through, by a seed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.read.keyed_worlds import KEYS, World, newest, read
from tests.support.read.ways import Follower, Ways
from tests.support.tiers import more


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(4), *more(range(4, 120))])
@pytest.mark.parametrize("is_typed", [False, True], ids=["plain", "typed"])
def test_every_way_shows_the_same(seed: int, tmp_path: Path, *, is_typed: bool) -> None:
    """Also of a copy by way of Kafka's folders, which has no typed topics."""
    rng = random.Random(seed)
    world = World(rng, is_typed, stray_rate=rng.choice([0, 0.2]))
    for step in range(40):
        world.step()
        if step % 4 == 3:
            settled = world.holder is None
            Ways(world.store, "t", world.columns, rng).check(is_settled=settled)
    if not is_typed and world.holder is None:
        world.store.kafka.export_topic("t", str(tmp_path), keep_offsets=True)
        folders = sorted(str(path) for path in tmp_path.iterdir() if path.is_dir())
        world.store.topics.create("copy", partitions=world.partitions + 1)
        world.store.kafka.import_topic("copy", folders)
        world.clock.time_ms += 1000
        copy = Ways(world.store, "copy", world.columns, rng)
        copy.check(is_settled=True)
        assert copy.rows == read(world.store.scan("t", columns=world.columns))


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", [*range(6), *more(range(6, 120))])
@pytest.mark.parametrize("is_typed", [False, True], ids=["plain", "typed"])
def test_consumers_read_on_when_files_go_that_they_were_about_to_read(
    seed: int, *, is_typed: bool
) -> None:
    """Deleted, merged and compacted records' files go at once; no poll fails, nothing is missed."""
    rng = random.Random(seed)
    world = World(rng, is_typed, stray_rate=rng.choice([0, 0.2]))
    config = {"file.delete.delay.ms": "0", "retention.ms": "-1"}
    world.store.topics.alter("t", config=config)
    followers = [
        Follower(world.store, "t", rng=random.Random(seed), as_batches=as_batches)
        for as_batches in (False, True)
    ]
    for _ in range(50):
        world.step()
        if rng.random() < 0.5:
            world.store.maintain("t")
        for follower in followers:
            for _ in range(rng.randrange(3)):
                follower.poll()
    for follower in followers:
        follower.check()


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(6), *more(range(6, 120))])
@pytest.mark.parametrize("is_typed", [False, True], ids=["plain", "typed"])
def test_topics_are_read_together_beside_a_long_transaction(seed: int, *, is_typed: bool) -> None:
    """Whatever is compacted, purged or deleted of one behind that transaction in the other.

    How long replaced files stay changes, too.
    """
    rng = random.Random(seed)
    world = World(rng, is_typed, stray_rate=rng.choice([0, 0.2]))
    store = world.store
    config = {"file.delete.delay.ms": rng.choice([0, 600_000]), "retention.ms": -1}
    store.topics.alter("t", config=config)
    store.topics.create("other")
    followers = [
        Follower(store, "t", "other", rng=random.Random(seed), as_batches=as_batches)
        for as_batches in (False, True)
    ]
    holding, both = (store.producer(transactional_id=name) for name in ("holding", "both"))
    for producer in (holding, both):
        producer.init_transactions()

    def hold() -> None:
        holding.begin_transaction()
        holding.send("other", b"open")
        holding.flush()

    hold()
    for _ in range(50):
        action = rng.random()
        if action < 0.3:
            both.begin_transaction()
            both.send("other", b"both")
            world.send(both)
            both.commit_transaction()
        elif action < 0.4:
            name, n = key = rng.choice(KEYS)
            purged = {"name": name, "n": n} if is_typed else {"key": f"{name}/{n}".encode()}
            store.maintenance.purge("t", [purged])
            world.visible = [record for record in world.visible if record.sent.key != key]
        elif action < 0.6:
            store.maintain("t")
        elif action < 0.63:
            holding.abort_transaction()
            hold()
        elif action < 0.7:
            store.topics.alter("t", config={"file.delete.delay.ms": rng.choice([0, 600_000])})
        world.look()
        world.step()
        snapshot = store.snapshot(["t", "other"])
        rows = read(snapshot.scan("t", columns=world.columns, latest=True))
        if snapshot.is_atomic:
            ends = snapshot.end_offsets("t")
            shown = [one for one in world.visible if one.offset < ends[one.partition]]
            assert rows == world.rows(newest(shown))
        for follower in followers:
            for _ in range(rng.randrange(3)):
                follower.poll()
    holding.abort_transaction()
    for follower in followers:
        follower.check()
