"""What one root has damaged is read from another, by every way of reading, by a seed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import txnlog
from tests.support.read.keyed_worlds import World, read
from tests.support.read.ways import Ways
from tests.support.replication.replica_folders import FIRST
from tests.support.tiers import more
from txnlog.replication import open_replicas
from txnlog.testing import VirtualClock


def _damage(path: Path, rng: random.Random) -> None:
    """A bit, a piece, or the end of a file."""
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    kind = rng.randrange(3)
    if kind == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        data[at : at + 50] = bytes(len(data[at : at + 50]))
    else:
        del data[at:]
    path.write_bytes(data)


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", [*range(3), *more(range(3, 60))])
@pytest.mark.parametrize("is_typed", [False, True], ids=["plain", "typed"])
def test_damage_at_the_leader_changes_nothing(seed: int, tmp_path: Path, *, is_typed: bool) -> None:
    rng = random.Random(seed)

    def make(clock: VirtualClock) -> txnlog.Store:
        roots = [str(tmp_path / name) for name in ("a", "b")]
        control = str(tmp_path / "control")
        return open_replicas(roots, controller=control, create=True, clock=clock).store

    world = World(rng, is_typed, stray_rate=0.1, make=make)
    for _ in range(20):
        world.step()
    expected = read(world.store.scan("t", columns=world.columns))
    files = sorted(path for path in (tmp_path / FIRST).glob("topics/t/data/*/*") if path.is_file())
    chosen = rng.sample(files, min(len(files), rng.randint(1, 4)))
    for path in chosen:
        if path.stat().st_size:
            _damage(path, rng)
    found = txnlog.open(str(tmp_path / "control"), clock=world.clock)
    ways = Ways(found, "t", world.columns, rng)
    assert ways.rows == expected
    ways.check(is_settled=world.holder is None)
