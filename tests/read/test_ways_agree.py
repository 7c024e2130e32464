"""Every way of reading shows the same of a topic, whatever it has lived through, by a seed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.read.keyed_worlds import World, read
from tests.support.read.ways import Ways
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
