"""One case: an operation that is suspended at a request, and another one that runs meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from tests.support.simulation.pairs.history import Violation
from tests.support.simulation.pairs.operation import OPERATIONS, Operation
from tests.support.simulation.pairs.reading import Table
from tests.support.simulation.pairs.suspension import Suspended
from tests.support.simulation.pairs.tending import check_steps
from tests.support.simulation.pairs.world import (
    BEGIN_MS,
    HOUR_MS,
    KEYED,
    LIMITS_MS,
    Actor,
    World,
    prepared,
    table_of,
)
from tests.support.simulation.pairs.writing import SOURCE
from txnlog.config import DAY_MS
from txnlog.errors import CorruptEntry, CorruptRecord, ObjectNotFound, TxnlogError
from txnlog.names import TopicPartition
from txnlog.results import TransactionDescription

How = Literal["at once", "late", "later", "dies"]
"""What time does while the first one stands still: nothing; all limits pass before the other one
begins; or after it has ended, and names are freed; or the first one never goes on."""
HOWS: tuple[How, ...] = ("at once", "late", "later", "dies")
DAMAGE = (CorruptEntry, CorruptRecord, ObjectNotFound)


@dataclass(frozen=True, slots=True)
class Case:
    """``rules``: those of the storage; ``at``: before which of its requests ``first`` stands still.

    ``within``: in the middle of that request, if it is a listing or a deletion. With a ``third``
    operation that stands still, too, from its request ``third_at`` on, before the second one runs;
    it goes on when the first one is done.
    """

    rules: str
    first: str
    second: str
    at: int
    how: How = "at once"
    within: bool = False
    third: str = ""
    third_at: int = 0


Footprint = list[set[tuple[str, bool]]]


@dataclass(slots=True)
class Ran:
    """What a case came to."""

    reached: bool
    """False: the first one has no such request, so both ran one after the other."""
    footprint: Footprint
    others: Footprint
    """What each request of the first and of the second one was about, and whether it changed it."""
    lost: dict[str, str] = field(default_factory=dict)
    """By operation, the error that it was told."""


def attempt(made: Operation, call: Callable[[], None], lost: dict[str, str]) -> None:
    """Do it; an error that tells that it has lost is no fault, damage is."""
    try:
        call()
    except DAMAGE as error:
        raise Violation("damage", f"{made.name}: {error!r}") from error
    except TxnlogError as error:
        lost[f"{made.actor.name} {made.name}"] = type(error).__name__


def run(case: Case) -> Ran:
    """Run a case, and judge it."""
    world = prepared(case.rules).copy()
    first = OPERATIONS[case.first](world.actor("first"))
    second = OPERATIONS[case.second](world.actor("second"))
    made = [first, second]
    if case.third:
        made.append(OPERATIONS[case.third](world.actor("third")))
    for one in made:
        one.prepare()
    lost: dict[str, str] = {}
    sleepers = [Suspended(one.actor.storage, partial(attempt, one, one.act, lost)) for one in made]
    del sleepers[1]
    topics = tuple(dict.fromkeys(topic for one in made for topic in one.topics))
    try:
        sleepers[0].run_to(case.at, within=case.within)
        reached = not sleepers[0].ended
        for sleeper in sleepers[1:]:
            sleeper.run_to(case.third_at)
        if case.how == "late":
            world.time_ms += LIMITS_MS
        second.actor.storage.watch(-1, lambda: None)
        attempt(second, second.act, lost)
        others = list(second.actor.storage.footprint)
        if case.how == "later":
            world.free_names(topics)
        if case.how == "dies":
            sleepers[0].die()
        for sleeper in sleepers:
            sleeper.resume()
        footprint = list(first.actor.storage.footprint)
        going = [one for one in made if not one.actor.storage.stopped]
        for one in going:
            attempt(one, one.look_again, lost)
        judge(world, going, topics, with_doctor=case.at % 3 == 0)
        for one in going:
            attempt(one, one.go_on, lost)
        if case.how != "at once":
            judge_later(world, going, topics, whole=case.how == "dies")
    except BaseException as error:
        error.add_note(repr(case))
        raise
    finally:
        for sleeper in sleepers:
            sleeper.die()
        for one in made:
            one.close()
    return Ran(reached, footprint, others, lost)


def alone(rules: str, name: str) -> Footprint:
    """What an operation's requests are about when nobody else is there."""
    made = OPERATIONS[name](prepared(rules).copy().actor("alone"))
    made.prepare()
    made.actor.storage.watch(-1, lambda: None)
    attempt(made, made.act, {})
    made.close()
    return list(made.actor.storage.footprint)


def judge(
    world: World, going: Sequence[Operation], topics: Sequence[str], *, with_doctor: bool
) -> None:
    """What is there now, for a new process and for those that live."""
    new = world.actor("a new process")
    existing = [topic for topic in topics if topic in new.store.topics.list()]
    if not existing:
        return
    began = world.history.tick()
    snapshot = new.store.snapshot(existing)
    new.saw(snapshot, "afterwards", began=began, fresh=not world.history.held_back(began))
    shown = {topic: spans(snapshot, topic) for topic in existing}
    for made in going:
        living = made.store.snapshot(existing)
        for topic in existing:
            found = spans(living, topic)
            if found != shown[topic]:
                raise Violation(
                    "views", f"{made.name} sees {topic} as {found}, a new process {shown[topic]}"
                )
    if with_doctor:
        check_doctor(new, existing, is_late=False)


def judge_later(
    world: World, going: Sequence[Operation], topics: Sequence[str], *, whole: bool
) -> None:
    """What is there when everything has timed out, and these topics, or all, have been tended."""
    for made in going:
        if isinstance(made, Table):
            began = world.history.tick()
            world.actor("tending").store.maintenance.compact("k")
            table = made.read_to_the_end()
            if table is not None:
                world.history.saw_table("k", table, made.actor.name, began=began, for_long=True)
    world.time_ms += LIMITS_MS
    tending = world.actor("tending")
    tended = None if whole else topics
    check_steps(world.history, tending.store.maintain(tended, orphan_age_ms=DAY_MS))
    new = world.actor("the last process")
    existing = [topic for topic in topics if topic in new.store.topics.list()]
    if existing:
        began = world.history.tick()
        snapshot = new.store.snapshot(existing)
        new.saw(snapshot, "in the end", began=began, fresh=True)
        for topic in set(KEYED).intersection(existing):
            world.history.saw_table(topic, table_of(snapshot, topic), new.name, began=began)
        check_positions(new, existing)
    if world.time_ms < BEGIN_MS + HOUR_MS:
        check_group(new, going)
    for found in new.store.transactions.list() if whole else ():
        if not isinstance(found, TransactionDescription):
            raise Violation("transactions", repr(found))
        if found.status in ("Ongoing", "PrepareCommit", "PrepareAbort"):
            raise Violation("nobody ends", f"{found.transactional_id} is {found.status}")
    check_doctor(new, existing, is_late=whole)


def check_group(new: Actor, going: Sequence[Operation]) -> None:
    """The group is where the newest commit has moved it."""
    began = new.history.tick()
    offset = new.store.consumer(group_id="g").committed(SOURCE)
    moved = any(made.moves_group for made in going)
    at = None if offset is None else offset.offset
    new.history.check_group("g", at, began=began, is_moved=moved)


def spans(snapshot: object, topic: str) -> object:
    """Where a snapshot begins and ends, and in which segments its records lie."""
    planned = snapshot.scan(topic)  # type: ignore[attr-defined]
    return (
        snapshot.beginning_offsets(topic),  # type: ignore[attr-defined]
        snapshot.end_offsets(topic),  # type: ignore[attr-defined]
        [
            (r.partition, r.segment.stored.name, r.start_offset, r.stop_offset)
            for r in planned.ranges
        ],
    )


def check_doctor(actor: Actor, topics: Sequence[str], *, is_late: bool) -> None:
    """Nothing is damaged, and in the end nothing hangs."""
    for finding in actor.store.examine(topics or None, with_probe=False):
        if finding.state in ("damage", "unreadable") or (is_late and finding.state == "hanging"):
            raise Violation("doctor", f"{finding.check} {finding.subject}: {finding.detail}")


def check_positions(actor: Actor, topics: Sequence[str]) -> None:
    """Whoever reads until his position is the end comes to an end."""
    consumer = actor.store.consumer(auto_offset_reset="earliest")
    places = [
        TopicPartition(topic, number)
        for topic in topics
        for number in range(len(actor.store.topics.describe(topic).partitions))
    ]
    consumer.assign(places)
    ends = consumer.end_offsets(places)
    for _ in range(100):
        consumer.poll(max_records=10)
        if all(consumer.position(place) >= end for place, end in ends.items()):
            return
    behind = {p: (consumer.position(p), end) for p, end in ends.items()}
    raise Violation("positions", f"reading does not end: {behind}")
