"""Every way of reading shows the same of a topic, whatever it has lived through, by a seed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.read.keyed_worlds import World, read
from tests.support.read.ways import Follower, Ways
from tests.support.tiers import more


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
        Follower(world.store, "t", random.Random(seed), as_batches=as_batches)
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
