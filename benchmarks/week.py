"""A week in the life of a topic, by virtual time: what it costs hour by hour, and a plot.

Commits come at a steady pace, records live for a day, the topic is compacted and merged by an
hourly ``maintain``, readers are pinned for six hours, and writers die in the middle of a commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from growth import WeighingStorage

from txnlog.errors import TxnlogError
from txnlog.producer import Producer
from txnlog.scan import Scan
from txnlog.storage.base import Storage
from txnlog.store import Store, attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, ProcessStopped, VirtualClock

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
KEYS = 5_000
PINNED_HOURS = 6


@dataclass(frozen=True, slots=True)
class Hour:
    """What was measured in one hour; CPU in milliseconds of this process."""

    commit_ms: float
    requests: float
    put_kb: float
    poll_ms: float
    plan_ms: float
    maintain_ms: float
    files: int
    stored_kb: float


def measure(apart_s: int, hours: int, plot: Path | None) -> list[str]:
    """Markdown lines; draws the plot into a file if one is given."""
    found = _live(apart_s, hours)
    if plot is not None:
        plot.write_text(_draw(found))
    columns = [
        "hour",
        "commit",
        "requests",
        "KB-put",
        "idle-poll",
        "cold-plan",
        "maintain",
        "files",
        "KB-stored",
    ]
    lines = [
        f"One commit (two topics, offsets of a group) every {apart_s} s of virtual time, in",
        f"memory; `cleanup.policy=compact,delete`, `retention.ms` a day, {KEYS:,} keys,",
        "`file.delete.delay.ms` and `log.cleanup.age.ms` 6 h, `maintain` every hour, a reader that",
        "stays pinned for 6 hours, a writer that dies in a commit every hour. CPU in ms.",
        *(["", "![What it costs, hour by hour](week.svg)"] if plot else []),
        "",
        "| " + " | ".join(name.replace("-", " ") for name in columns) + " |",
        "|---" * len(columns) + "|",
    ]
    shown = [hour for hour in (2, 12, 24, 48, 96, hours - 1) if hour < hours]
    for number in shown:
        h = found[number]
        lines.append(
            f"| {number} | {h.commit_ms:.2f} | {h.requests:.1f} | {h.put_kb:.1f} | {h.poll_ms:.2f} "
            f"| {h.plan_ms:.1f} | {h.maintain_ms:.0f} | {h.files:,} | {h.stored_kb:,.0f} |"
        )
    return lines


def _live(apart_s: int, hours: int) -> list[Hour]:
    clock = VirtualClock(1_700_000_000_000)
    heap = HeapStorage()
    heap.time_ms = lambda: clock.time_ms
    counting = WeighingStorage(heap)
    store = attach(
        counting, create=True, clock=clock, config={"log.cleanup.age.ms": PINNED_HOURS * HOUR_MS}
    )
    config = {
        "cleanup.policy": "compact,delete",
        "retention.ms": DAY_MS,
        "file.delete.delay.ms": PINNED_HOURS * HOUR_MS,
    }
    for topic in ("a", "b"):
        store.topics.create(topic, config=config)
    consumer = attach(heap, clock=clock).consumer("a", "b", group_id="g")
    pins: list[tuple[int, Scan, pa.Table]] = []
    found: list[Hour] = []
    commits = 3600 // apart_s
    done = 0
    for hour in range(hours):
        producer = _producer(store)
        counting.take()
        counting.put_bytes = 0
        started = time.process_time()
        for _ in range(commits):
            _commit(producer, done)
            done += 1
            clock.time_ms += apart_s * 1000
        commit_ms = (time.process_time() - started) * 1000 / commits
        requests = sum(counting.take().values()) / commits
        put_kb = counting.put_bytes / commits / 1000
        _die(heap, clock, done)
        while consumer.poll():
            pass
        poll_ms = _cpu_ms(consumer.poll, 5)
        plan_ms = _cpu_ms(lambda: attach(heap, clock=clock).scan("a").ranges, 1)
        started = time.process_time()
        steps = attach(heap, clock=clock).maintain(orphan_age_ms=DAY_MS)
        maintain_ms = (time.process_time() - started) * 1000
        failed = [step for step in steps if hasattr(step, "error")]
        assert not failed, failed
        pins = _look_again(pins, attach(heap, clock=clock), hour)
        sizes = [size for _, size in heap.list_all("")]
        found.append(
            Hour(
                commit_ms,
                requests,
                put_kb,
                poll_ms,
                plan_ms,
                maintain_ms,
                len(sizes),
                sum(sizes) / 1024,
            )
        )
    return found


def _producer(store: Store) -> Producer:
    producer = store.producer(transactional_id="p")
    producer.init_transactions()
    return producer


def _commit(producer: Producer, number: int) -> None:
    producer.begin_transaction()
    for topic in ("a", "b"):
        producer.send(topic, b"%0100d" % number, key=b"%06d" % (number * 7919 % KEYS))
    producer.commit_transaction()


def _die(storage: Storage, clock: VirtualClock, number: int) -> None:
    """A writer of another id stops in the middle of a commit; others end its transaction."""
    faulty = FaultyStorage(storage, {12: Fault.STOP_AFTER})
    try:
        producer = attach(faulty, clock=clock).producer(
            transactional_id="dies", transaction_timeout_ms=60_000
        )
        producer.init_transactions()
        _commit(producer, number)
    except (ProcessStopped, TxnlogError):
        pass


def _look_again(
    pins: Sequence[tuple[int, Scan, pa.Table]], store: Store, hour: int
) -> list[tuple[int, Scan, pa.Table]]:
    """Readers that were pinned up to six hours ago read the same; a new one is pinned."""
    for _, scan, table in pins:
        assert scan.to_arrow() == table
    scan = store.scan("a")
    young = [pin for pin in pins if hour - pin[0] < PINNED_HOURS - 1]
    return [*young, (hour, scan, scan.to_arrow())] if hour % 2 == 0 else young


def _cpu_ms(work: Callable[[], object], runs: int) -> float:
    took = []
    for _ in range(runs):
        started = time.process_time()
        work()
        took.append(time.process_time() - started)
    return min(took) * 1000


_WIDTH, _HEIGHT, _LEFT, _TOP = 720, 120, 130, 24
_CURVES: list[tuple[str, Callable[[Hour], float]]] = [
    ("CPU ms a commit", lambda hour: hour.commit_ms),
    ("requests a commit", lambda hour: hour.requests),
    ("idle poll, ms", lambda hour: hour.poll_ms),
    ("cold plan, ms", lambda hour: hour.plan_ms),
    ("maintain, ms", lambda hour: hour.maintain_ms),
    ("files", lambda hour: float(hour.files)),
    ("KB stored", lambda hour: hour.stored_kb),
]


def _draw(hours: Sequence[Hour]) -> str:
    """An SVG: a curve over the hours for each measure, from zero on."""
    high = _TOP + _HEIGHT * len(_CURVES) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 20} {high}"',
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for number, (name, value) in enumerate(_CURVES):
        bottom = _TOP + _HEIGHT * (number + 1) - 16
        values = [value(hour) for hour in hours]
        most = max(values) or 1.0
        step = _WIDTH / max(len(values) - 1, 1)
        points = " ".join(
            f"{_LEFT + at * step:.1f},{bottom - one / most * (_HEIGHT - 32):.1f}"
            for at, one in enumerate(values)
        )
        parts += [
            f'<text x="8" y="{bottom - (_HEIGHT - 32) / 2}">{name}</text>',
            f'<text x="{_LEFT - 6}" y="{bottom - _HEIGHT + 40}" text-anchor="end">',
            f"{most:,.1f}</text>",
            f'<line x1="{_LEFT}" y1="{bottom}" x2="{_LEFT + _WIDTH}" y2="{bottom}" stroke="#999"/>',
            f'<polyline points="{points}" fill="none" stroke="#1667b7" stroke-width="1.5"/>',
        ]
    days = range(0, len(hours) + 1, 24)
    for day in days:
        at = _LEFT + day * _WIDTH / max(len(hours) - 1, 1)
        place = f'x="{at:.0f}" y="{high - 8}" text-anchor="middle"'
        parts.append(f"<text {place}>day {day // 24}</text>")
    return "\n".join([*parts, "</svg>", ""])
