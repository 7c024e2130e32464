"""The cut of a standby, over random histories whose logs are read one after the other."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pytest

from txnlog.replication.standby import cut as cuts
from txnlog.replication.standby.cut import Cut, LogKey, LogPart, Need, NewFile, Placed
from txnlog.state import transaction as transitions
from txnlog.state.transaction import EntryRef, Outcome, TransactionRef, TransactionState

pytestmark = pytest.mark.rule("Y1")

TOPICS: list[LogKey] = [("topic", "a"), ("topic", "b"), ("topic", "c")]
GROUP: LogKey = ("group", "g")


class Reached(NamedTuple):
    """Where a topic's records end after an entry, and its id; or what a consumer was given."""

    end: int = 0
    topic_id: str = "0"


@dataclass
class Source:
    """Logs as they were put, each entry and state with its time: 1, 2, 3, ..."""

    chance: random.Random
    now: int = 0
    logs: dict[LogKey, list[tuple[int, TransactionRef | None, Reached]]] = field(
        default_factory=dict
    )
    states: dict[str, list[tuple[int, TransactionState]]] = field(default_factory=dict)
    open: dict[str, list[EntryRef]] = field(default_factory=dict)

    def reached(self, key: LogKey, before: int | None = None) -> Reached:
        """Where a topic ended before an entry: each has one record, or makes the topic anew."""
        log = self.logs.get(key, [])[:before]
        return log[-1][2] if log else Reached()

    def stable_end(self) -> Reached:
        """What a consumer of topic ``a`` has been given."""
        log = self.logs.get(TOPICS[0], [])
        for number, (_, owner, (end, topic_id)) in enumerate(log):
            if owner is not None and self._undecided(TOPICS[0], number, owner):
                return Reached(end - 1, topic_id)
        return self.reached(TOPICS[0])

    def make_anew(self) -> None:
        """Delete topic ``a``, and create another one."""
        end, topic_id = self.stable_end()
        if end == self.reached(TOPICS[0]).end:
            self.append(TOPICS[0], None, Reached(0, f"{int(topic_id) + 1}"))

    def _undecided(self, key: LogKey, number: int, owner: TransactionRef) -> bool:
        state = self.states[owner.transactional_id][-1][1]
        return transitions.decide_entry(EntryRef(*key, number), owner, state) is None

    def put_state(self, name: str, state: TransactionState) -> None:
        self.states.setdefault(name, []).append((self.now, state))

    def append(
        self, key: LogKey, owner: TransactionRef | None, reached: Reached | None = None
    ) -> int:
        log = self.logs.setdefault(key, [])
        if reached is None:
            end, topic_id = self.reached(key)
            reached = Reached(end + 1, topic_id)
        log.append((self.now, owner, reached))
        return len(log) - 1

    def placed(self, key: LogKey, number: int) -> Placed:
        _, owner, (end, _) = self.logs[key][number]
        return Placed(number, owner, {0: end - 1} if key[0] == "topic" and end else {})

    def step(self) -> None:
        """One put of somebody."""
        self.now += 1
        if self.chance.random() < 0.2:
            if self.chance.random() < 0.5:
                self.make_anew()
            else:
                self.append(GROUP, None, self.stable_end())
            return
        name = self.chance.choice(["x", "y", "z"])
        if name not in self.states:
            self.put_state(
                name, TransactionState(name, transitions.Status.EMPTY, 1, 0, 0, 1000, 0, "")
            )
            return
        state = self.states[name][-1][1]
        if state.prepared:
            self.put_state(name, transitions.complete(state))
        elif not state.open:
            keys = self.chance.sample(TOPICS, self.chance.randint(1, 3))
            self.open[name] = []
            begun = transitions.participate(
                state, topics=[key[1] for key in keys], groups=["g"], now_ms=0, nonce=""
            )
            self.put_state(name, begun)
        elif self.chance.random() < 0.5:
            keys = [key for key in TOPICS if key[1] in state.topics]
            key = self.chance.choice([*keys, GROUP])
            reached = self.stable_end() if key == GROUP else None
            self.open[name].append(EntryRef(*key, self.append(key, state.ref, reached)))
        elif self.chance.random() < 0.8:
            listed = self.open[name]
            self.put_state(name, transitions.prepare_commit(state, listed, now_ms=0, nonce=""))
        else:
            self.put_state(name, transitions.prepare_abort(state, now_ms=0, nonce=""))

    def run(self, steps: int) -> None:
        for _ in range(self.chance.randint(0, steps)):
            self.step()


def read(source: Source) -> tuple[int, dict[LogKey, LogPart], dict[str, list[TransactionState]]]:
    """Read everything as a standby does, while others go on between the requests.

    Some of it is busy: it is read last before the moment, and first after it.
    """
    logs: list[LogKey] = [GROUP, *TOPICS]
    ids = ["x", "y", "z"]
    gap = source.chance.choice([4, 16])
    busy = {key for key in logs if source.chance.random() < 0.3}
    busy_ids = {name for name in ids if source.chance.random() < 0.3}
    bases: dict[LogKey, int] = {}
    heads = {}
    for is_busy in (False, True):
        for name in ids:
            if (name in busy_ids) is is_busy:
                heads[name] = max(len(source.states.get(name, ())) - 1, 0)
                source.run(2)
        for key in logs:
            if (key in busy) is is_busy:
                bases[key] = len(source.logs.get(key, ()))
                source.run(2)
    decided = {
        (key, number)
        for key in TOPICS
        for number, (_, owner, _) in enumerate(source.logs.get(key, ())[: bases[key]])
        if owner is None or not source._undecided(key, number, owner)
    }
    moment = source.now
    histories = {}
    parts = {}

    def read_id(name: str) -> None:
        if name in source.states:
            histories[name] = [state for _, state in source.states[name][heads[name] :]]
        source.run(gap)

    def read_log(key: LogKey) -> None:
        entries = source.logs.get(key, [])
        files = tuple(
            NewFile(
                number,
                number + 1,
                (source.placed(key, number),),
                (Need("a", 0, *reached),) if key == GROUP else (),
                (reached.end,) if key[0] == "topic" else (),
                reached.topic_id if key[0] == "topic" else None,
            )
            for number, (_, _, reached) in enumerate(entries)
            if number >= bases[key]
        )
        undecided = tuple(
            source.placed(key, number)
            for number, (_, owner, _) in enumerate(entries[: bases[key]])
            if (key, number) not in decided and owner is not None
        )
        parts[key] = LogPart(bases[key], undecided, files)
        if key[0] == "topic":
            end, topic_id = source.reached(key, bases[key])
            parts[key] = replace(parts[key], ends=(end,), topic_id=topic_id)
        source.run(gap)

    for name in sorted(busy_ids & {*source.states}):
        read_id(name)
    read_log(GROUP)
    for key in sorted(TOPICS, key=busy.__contains__, reverse=True):
        read_log(key)
    for name in ids:
        if name not in histories:
            read_id(name)
    for name in {*source.states} - {*histories}:
        histories[name] = []
    return moment, parts, histories


def judge(source: Source, moment: int, cut: Cut) -> None:
    """The cut holds all that was there at the moment, and no effect without its cause."""
    for key in (GROUP, *TOPICS):
        log = source.logs.get(key, [])
        assert cut.end(key) >= sum(at <= moment for at, _, _ in log), "behind the moment"
    for name, states in source.states.items():
        newest = cut.state(name)
        before = [state for at, state in states if at <= moment]
        kept = [state for _, state in states].index(newest) if newest else -1
        assert kept >= len(before) - 1, "an id behind the moment"
        for _, state in states[: kept + 1]:
            for entry in state.entries:
                held = entry.number < cut.end((entry.log, entry.name))
                assert held, "a decision without an entry of its list"
    for key in (GROUP, *TOPICS):
        for _, owner, reached in source.logs.get(key, [])[: cut.end(key)]:
            if owner is not None:
                newest = cut.state(owner.transactional_id)
                assert newest is not None, "an entry without its id"
                assert newest.number >= owner.number, "an entry of a transaction that never began"
            if key == GROUP and reached.topic_id == cut._topic_id(TOPICS[0]):
                stable = cut._stable_offsets(TOPICS[0])
                assert reached.end <= stable[0], "offsets beyond what is decided"
    for name, states in source.states.items():
        for number in {state.number for _, state in states}:
            outcomes = {
                cut.outcome(key, at, owner)
                for key in (GROUP, *TOPICS)
                for at, (_, owner, _) in enumerate(source.logs.get(key, [])[: cut.end(key)])
                if owner is not None and (owner.transactional_id, owner.number) == (name, number)
            }
            assert not {Outcome.COMMIT, None} <= outcomes, "half a transaction"


def run(seeds: range) -> int:
    went_back = 0
    for seed in seeds:
        source = Source(random.Random(seed))
        source.run(60)
        moment, parts, histories = read(source)
        cut = Cut(parts, histories)
        judge(source, moment, cut)
        went_back += any(len(parts[key].files) > cut.files[key] for key in parts)
    return went_back


def test_a_cut_holds_all_that_was_there_and_nothing_without_its_cause() -> None:
    """Random histories; in a good part of them something had to be left out."""
    assert run(range(1500)) > 150


@pytest.mark.parametrize("rule", ["_hold_back_decisions", "_hold_back_entries", "_hold_back"])
def test_each_rule_is_needed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any one of them the same histories are torn."""
    monkeypatch.setattr(cuts.Cut, rule, lambda *_: False)
    with pytest.raises(AssertionError):
        run(range(600))
