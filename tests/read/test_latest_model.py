"""``latest=True`` through a topic's whole life, against a dict over what was sent, by seed.

After each thing that happens the answer is checked as it is now, and as it was at tokens and times;
by what compaction has done, where that can be used, and by all keys.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.support.read.keyed_worlds import World

STEPS = 24


def run(seed: int, *, is_typed: bool, stray_rate: float) -> Counter[str]:
    """What was done, by kind."""
    world = World(random.Random(seed), is_typed, stray_rate)
    done: Counter[str] = Counter()
    for _ in range(STEPS):
        done[world.step()] += 1
        world.check()
        world.check_moments(1)
        # Not a topic that nothing happens to.
        places = {(r.sent.key, r.partition) for r in world.visible if r.sent.key}
        done["keys in two partitions"] += len(places) > len({key for key, _ in places})
    world.check_moments(8)
    done["by what compaction has done"] += world.by_compaction[True]
    return done


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each segment that is compacted has an entry of its own."""
    monkeypatch.setattr("txnlog.admin.compaction.compact.DEFAULT_GROUP_BYTES", 1)


@pytest.mark.few(1)
@pytest.mark.parametrize("is_typed", [False, True], ids=["plain", "typed"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.more) for n in (2, 3, 4))])
def test_the_newest_of_each_key_is_what_a_dict_keeps(seed: int, is_typed: bool) -> None:
    done = run(seed, is_typed=is_typed, stray_rate=0.4)
    assert done["compact"]
    assert done["commit"]
    assert done["keys in two partitions"]


@pytest.mark.few(1)
@pytest.mark.parametrize("is_typed", [False, True], ids=["plain", "typed"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.more) for n in (2, 3))])
def test_where_keys_are_in_one_partition_compaction_has_done_it(seed: int, is_typed: bool) -> None:
    """Until partitions are added: then keys are in two."""
    done = run(seed, is_typed=is_typed, stray_rate=0.01)
    assert done["by what compaction has done"]


@pytest.mark.slow
@pytest.mark.parametrize("is_typed", [False, True], ids=["plain", "typed"])
@pytest.mark.parametrize("stray_rate", [0.4, 0.01])
def test_many_lives(stray_rate: float, is_typed: bool) -> None:
    done: Counter[str] = Counter()
    for seed in range(100, 140):
        done += run(seed, is_typed=is_typed, stray_rate=stray_rate)
    assert min(done.values()) > 20
