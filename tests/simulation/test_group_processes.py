"""Real workers of one group, killed and stopped at random moments."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import txnlog
from txnlog.results import GroupDescription, GroupOffset
from txnlog.store import Store

pytestmark = pytest.mark.rule("M3", "hazard 12")

WORKER = "tests.support.groups.group_worker"


class Workers:
    """The processes of a group."""

    def __init__(self, store: Store, folder: Path, mode: str, count: int) -> None:
        self._store, self._folder, self._mode = store, folder, mode
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.begun = 0
        for _ in range(count):
            self.begin()

    def begin(self) -> None:
        name = f"w{self.begun}"
        self.begun += 1
        notes = self._folder / f"{name}.notes"
        with (self._folder / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", WORKER, self._store.url, self._mode, name, str(notes)],
                stderr=log,
            )

    def disturb(self, chance: random.Random) -> None:
        """Kill one and begin another, or stop one for longer than its session."""
        name = chance.choice([*self._running])
        victim = self._running[name]
        if chance.random() < 0.5:
            victim.kill()
            victim.wait()
            del self._running[name]
            self.begin()
        else:
            victim.send_signal(signal.SIGSTOP)
            time.sleep(chance.uniform(0.1, 4))
            victim.send_signal(signal.SIGCONT)

    def end(self) -> None:
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        for process in self._running.values():
            # One that has only just begun has no handler yet, and has not joined either.
            assert process.wait(60) in (0, -signal.SIGTERM)

    def abandon(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def noted(self) -> Counter[int]:
        lines = (path.read_bytes().split() for path in self._folder.glob("*.notes"))
        return Counter(int(line) for some in lines for line in some)


def run_workers(
    folder: Path, mode: str, *, workers: int, partitions: int, records: int, disturbances: int
) -> None:
    """Feed a topic while workers read it and are disturbed; all must come out."""
    store = txnlog.open(str(folder / "store"), create=True)
    store.topics.create("in", partitions=partitions)
    store.topics.create("out", partitions=2)
    chance = random.Random(f"{mode}-{workers}")
    group = Workers(store, folder, mode, workers)
    try:
        each = records // (disturbances + 1)
        for number in range(disturbances + 1):
            values = range(number * each, (number + 1) * each)
            with store.producer(partitioner="round_robin") as producer:
                producer.send_batch("in", pa.record_batch({"value": [b"%d" % v for v in values]}))
            if number < disturbances:
                group.disturb(chance)
        total = each * (disturbances + 1)
        deadline_s = time.monotonic() + 120
        while sum(at.offset or 0 for at in offsets_of(store)) < total:
            assert time.monotonic() < deadline_s, [*offsets_of(store)]
            time.sleep(0.2)
        group.end()
    except BaseException:
        group.abandon()
        raise
    if mode == "transactions":
        values = store.scan("out").to_arrow()["value"].to_pylist()
        assert Counter(int(value) for value in values) == Counter(range(total))
    else:
        assert {*group.noted()} == {*range(total)}
    assert store.storage.list_names("groups/g/members") == []
    assert [found for found in store.examine() if found.rule] == []


def offsets_of(store: Store) -> Iterator[GroupOffset]:
    for described in store.groups.describe_all():
        if isinstance(described, GroupDescription):
            yield from described.offsets


@pytest.mark.more
@pytest.mark.parametrize("mode", ["commits", "transactions"])
def test_three_workers_are_disturbed(tmp_path: Path, mode: str) -> None:
    """Each record comes out: in transactions exactly once."""
    run_workers(tmp_path, mode, workers=3, partitions=6, records=4_000, disturbances=2)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["commits", "transactions"])
def test_eight_workers_are_disturbed(tmp_path: Path, mode: str) -> None:
    """16 partitions, 200,000 records, SIGKILL, SIGSTOP and SIGCONT."""
    run_workers(tmp_path, mode, workers=8, partitions=16, records=200_000, disturbances=20)
