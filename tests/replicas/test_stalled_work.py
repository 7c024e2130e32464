"""Whatever else is done while roots stall: one is put out, and all end when nobody answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import txnlog
from tests.replicas.stalled_roots import LAG_MS, REQUESTS, Gate, end_at_a_pause
from tests.support.log.proposing import Losing
from tests.support.replication.replica_folders import FIRST, SECOND, make, reopened, values
from tests.support.steps import another, upload
from tests.support.tiers import more
from txnlog.results import MaintenanceFailure

T0 = txnlog.TopicPartition("t", 0)
SETTINGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01}


@dataclass
class Work:
    """A store with four records in topic ``t``, and what was made of it before roots stall."""

    store: txnlog.Store
    folder: Path
    until_the_end: ExitStack
    made: Any = None

    def consumer(self) -> txnlog.Consumer:
        how = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
        consumer = self.store.consumer("t", group_id="g", **how)  # type: ignore[arg-type]
        return self.until_the_end.enter_context(consumer)


Step = Callable[[Work], object]
Sees = Callable[[txnlog.Store], object]


def nothing(_: Work) -> None: ...


def consume(work: Work) -> None:
    work.made = work.consumer()
    assert len(work.made.poll()) == 4


def compacted(work: Work) -> None:
    work.store.topics.alter("t", config=SETTINGS)


class Watched(Losing):
    """Knows whether somebody else was faster indeed: roots may fail him, too."""

    lost = False

    def be_faster(self, store: txnlog.Store, name: str) -> None:
        super().be_faster(store, name)
        self.lost = self.rule is None


def prepare_proposal(work: Work) -> None:
    storage = Watched(work.store)
    process = another(work.store, storage)
    work.made = storage, process.logs.topic("t"), upload(work.store, b"late")


def propose(work: Work) -> None:
    """Somebody else is faster, so that it proposes its append, and looks again."""
    _, log, segments = work.made
    log.place(segments)


def proposed(work: Work) -> list[str]:
    faster = ["faster"] if work.made[0].lost else []
    return ["1", "2", "3", "4", *faster, "late"]


def beat(work: Work) -> None:
    work.store.logs.clock.sleep(4)  # its time has come
    work.made.poll()


def maintain(work: Work) -> None:
    """A part that a root has failed is told, and done by a later run."""
    for _ in range(5):
        if not any(isinstance(one, MaintenanceFailure) for one in work.store.maintain()):
            return
    raise AssertionError("parts of maintenance fail for ever")


def committed(store: txnlog.Store) -> object:
    found = store.consumer(group_id="g").committed(T0)
    return found and found.offset


def partitions(topic: str) -> Sees:
    def see(store: txnlog.Store) -> object:
        return topic in store.topics.list() and len(store.topics.describe(topic).partitions)

    return see


def starts(store: txnlog.Store) -> object:
    return store.consumer().beginning_offsets([T0])[T0]


def segment_count(store: txnlog.Store) -> int:
    return len([*store.topics.segments("t")])


STEPS: dict[str, tuple[Step, Step, Sees, object]] = {
    "propose an append": (
        prepare_proposal,
        propose,
        values,
        proposed,
    ),
    "join a group": (nothing, consume, committed, None),
    "join others in a group": (consume, lambda work: work.consumer().poll(), committed, None),
    "beat": (consume, beat, committed, None),
    "commit offsets": (consume, lambda work: work.made.commit(), committed, 4),
    "leave a group": (consume, lambda work: work.made.close(), committed, None),
    "reset offsets": (
        nothing,
        lambda work: work.store.groups.reset_offsets("g", ["t"], to=1),
        committed,
        1,
    ),
    "create a topic": (
        nothing,
        lambda work: work.store.topics.create("u", partitions=2),
        partitions("u"),
        2,
    ),
    "alter a topic": (
        nothing,
        lambda work: work.store.topics.alter("t", partitions=2),
        partitions("t"),
        2,
    ),
    "delete records": (
        nothing,
        lambda work: work.store.topics.delete_records({T0: 2}),
        starts,
        2,
    ),
    "delete a topic": (nothing, lambda work: work.store.topics.delete("t"), partitions("t"), False),
    "merge": (nothing, lambda work: work.store.maintenance.merge("t"), segment_count, 1),
    "compact": (compacted, lambda work: work.store.maintenance.compact("t"), values, ["4"]),
    "maintain": (compacted, maintain, values, ["4"]),
}
"""What is done before roots stall, what then, and what is seen of it later."""
OFTEN = ("propose an append", "join a group", "commit offsets", "create a topic", "merge")
ROOTS = {"a": (FIRST,), "b": (SECOND,), "all": (FIRST, SECOND)}


def run(
    folder: Path, patch: pytest.MonkeyPatch, step: str, stalled: str, *, after: int
) -> list[str]:
    """Do a step while roots stall after so many of its requests; returns which did."""
    before, then, sees, seen = STEPS[step]
    gate = Gate(patch)
    store = make(folder, **{"replica.lag.time.max.ms": LAG_MS})
    store.topics.create("t", partitions=1)
    for value in range(1, 5):
        with store.producer() as producer:
            producer.send("t", value=b"%d" % value, key=b"k")
    try:
        with ExitStack() as stack:
            work = Work(store, folder, stack)
            before(work)
            for root in ROOTS[stalled]:
                gate.close(folder / root, *REQUESTS, after=after)
            if stalled == "all":
                end_at_a_pause(store, patch, gate)
            # The clock's time flies: with it a request would be given up before it goes on.
            with store.storage.wait_up_to(10**9 if stalled == "all" else 0):
                then(work)
            asked = [*gate.asked]
            gate.let_go()
            assert sees(reopened(folder)) == (seen(work) if callable(seen) else seen)
        return asked
    finally:
        gate.end()


@pytest.mark.few(5)
@pytest.mark.parametrize("step", [*OFTEN, *more(step for step in STEPS if step not in OFTEN)])
@pytest.mark.parametrize("stalled", ROOTS)
def test_it_goes_on_without_a_root_or_once_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, stalled: str
) -> None:
    assert run(tmp_path, monkeypatch, step, stalled, after=0)


@pytest.mark.more
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("stalled", ROOTS)
def test_roots_that_stall_at_each_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, stalled: str
) -> None:
    for after in itertools.count():
        with monkeypatch.context() as patch:
            (tmp_path / str(after)).mkdir()
            if not run(tmp_path / str(after), patch, step, stalled, after=after):
                break
    assert after > 3
