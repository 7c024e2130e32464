"""What a second root costs: requests, and latency in virtual time, beside a store on one root.

Every request takes the time given for its place, requests made together take as long as the
slowest; nothing else takes any time. So the figures are the same on every machine, and show how
many requests wait for one another. Only one thread runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tests.support.storage.timeline import OnTimeline, Timeline
from txnlog.producer import Producer
from txnlog.replication.roots.controller import Controller
from txnlog.replication.roots.epochs import Epoch, Member, Proposer, first_epoch
from txnlog.replication.roots.members import put_mark
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.storage.base import Storage
from txnlog.store import attach
from txnlog.testing import HeapStorage, VirtualClock

T = TypeVar("T")

FAR_MS, NEAR_MS = 30, 3
COMMITS = 20
TOPICS = ("a", "b")
_WARM = 3
"""Commits that are not counted: settings and logs are read first."""


@dataclass(frozen=True)
class Cost:
    """What one commit has cost: its latency, and the requests of each place."""

    took_ms: float
    places: tuple[Counter[str], ...]
    """The roots', the leader's first; then the controller's, if there is one."""


def measure() -> list[str]:
    """Lines of Markdown: a table of latencies, and one of requests."""
    what = (
        "`python benchmarks/run.py --only replicas`. Virtual time: a request takes the time "
        "given for its place, requests made together take as long as the slowest, everything else "
        "nothing. On one "
        f"root: the slower of both. Medians of {COMMITS} commits, which are all alike."
    )
    head = "| leader, follower, controller | commit | on one root | on two | ratio |"
    lines = [what, "", head, "|---|---|---|---|---|"]
    for leader_ms, follower_ms, controller_ms in (
        (FAR_MS, FAR_MS, NEAR_MS),
        (NEAR_MS, FAR_MS, NEAR_MS),
        (FAR_MS, NEAR_MS, NEAR_MS),
        (FAR_MS, FAR_MS, FAR_MS),
    ):
        alone = _commits([max(leader_ms, follower_ms)])
        both = _commits([leader_ms, follower_ms], controller_ms)
        for what, one in alone.items():
            lines.append(
                f"| {leader_ms}, {follower_ms}, {controller_ms} ms | {what} | {one.took_ms:.0f} ms "
                f"| {both[what].took_ms:.0f} ms | {both[what].took_ms / one.took_ms:.2f} |"
            )
    return [*lines, "", *_requests()]


def _requests() -> list[str]:
    head = "| puts, listings, reads | on one root | leader | follower | listings of the epochs |"
    lines = [head, "|---|---|---|---|---|"]
    alone, both = _commits([FAR_MS]), _commits([FAR_MS, FAR_MS], FAR_MS)
    for what, one in alone.items():
        *roots, controller = both[what].places
        assert {*controller} <= {"list"}, controller
        told = " | ".join(_told(counts) for counts in (*one.places, *roots))
        lines.append(f"| {what} | {told} | {controller['list']} |")
    return lines


def _told(counts: Counter[str]) -> str:
    assert not counts["other"], counts
    return f"{counts['put']}, {counts['list']}, {counts['get']}"


def _commits(roots_ms: list[float], controller_ms: float | None = None) -> dict[str, Cost]:
    """By kind of commit, what one costs on these roots; without a controller there is one root."""
    line = Timeline()
    places = [OnTimeline(HeapStorage(), line, request_ms) for request_ms in roots_ms]
    if controller_ms is None:
        (storage,) = places
        store = attach(storage, create=True, clock=VirtualClock())
    else:
        control = OnTimeline(HeapStorage(), line, controller_ms)
        store = attach(_replicated(places, control), create=True, clock=VirtualClock())
        places.append(control)
    for topic in TOPICS:
        store.topics.create(topic)
    plain, job = store.producer(), store.producer(transactional_id="job")
    job.init_transactions()
    return {
        "a flush to one topic": _cost(lambda: _flush(plain), line, places),
        "a transaction over two topics": _cost(lambda: _transact(job), line, places),
    }


def _replicated(places: list[OnTimeline], control: OnTimeline) -> ReplicatedStorage:
    who = Proposer("benchmark", 0, "made")
    first = first_epoch({f"r{n}": f"heap://{n}" for n in range(len(places))}, {}, who)
    members = dict(zip(first.in_sync, places, strict=True))
    for member, place in members.items():
        put_mark(place, member, control.url, first.store)
    assert Controller(control).propose(first)

    def open_member(_: Epoch, member: Member) -> Storage:
        return members[member]

    storage = ReplicatedStorage(control, open_member, clock=VirtualClock())
    storage.trust(probed=True)
    return storage


def _flush(producer: Producer) -> None:
    producer.send(TOPICS[0], value=b"1")
    producer.flush()


def _transact(producer: Producer) -> None:
    with producer.transaction():
        for topic in TOPICS:
            producer.send(topic, value=b"1")


def _cost(commit: Callable[[], None], line: Timeline, places: list[OnTimeline]) -> Cost:
    costs = []
    for _ in range(_WARM + COMMITS):
        for place in places:
            place.counts.clear()
        begun_ms = line.now_ms
        commit()
        counts = tuple(Counter(place.counts) for place in places)
        costs.append(Cost(line.now_ms - begun_ms, counts))
    counted = sorted(costs[_WARM:], key=lambda cost: cost.took_ms)
    return counted[COMMITS // 2]
