"""Writers that place each other's appends: whatever stops, sleeps or is lost.

The judge knows what each writer was told, and reads the log's entries with code of its own: an
append that was acknowledged is placed once, where its writer was told; one that was refused is
never placed, not even later; any other at most once. Of a transaction, whoever has placed its
appends, all records show or none: as its writer was told. Then each rule is broken, and must be
caught.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace

import pytest
from msgspec.structs import replace as replace_field

from tests.support.log.settling import settling_early
from tests.support.seeds import tried_first
from tests.support.steps import upload
from txnlog.errors import (
    InvalidProducerEpoch,
    OutOfOrderSequence,
    StorageError,
    TxnlogError,
    UnknownTopicOrPartition,
)
from txnlog.log import append_batching
from txnlog.log.topic_log import TopicLog
from txnlog.log.uploads import IdempotentWriter, UploadedSegment
from txnlog.names import TopicPartition
from txnlog.state import proposal
from txnlog.state.producers import ProducerRef
from txnlog.state.proposal import Proposal
from txnlog.state.topic import TopicState
from txnlog.state.topic_entries import Append, Appends, Bundle
from txnlog.state.transaction import Outcome
from txnlog.store import Store
from txnlog.testing import FaultRates, Process, Simulation

pytestmark = pytest.mark.rule("L14", "L15", "hazard 9")

Patch = pytest.MonkeyPatch
PARTITIONS = 2
TURNS = 6
TIMEOUT_MS = 20_000
CALM = FaultRates(tear_listing=0.2, tear_ms=(0, 20))
ROUGH = replace(CALM, fail=0.02, lose_response=0.02, land_late=0.02, delay=0.02, stop=0.01)
SLEEPY = replace(CALM, pause=0.05, delay=0.05, stop=0.01, pause_ms=(100, 3_000))
REFUSALS = (InvalidProducerEpoch, OutOfOrderSequence, UnknownTopicOrPartition)


class Wrong(AssertionError):
    """The placed appends are not those reported to writers."""


@dataclass
class Judge:
    """What became of each append, by the name of its only segment, as its writer was told."""

    acked: dict[str, tuple[int, int]] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    """With the entry from which on none may place it: the first one, unless its topic was gone."""
    kinds: Counter[str] = field(default_factory=Counter)
    transactions: dict[tuple[bytes, ...], bool | None] = field(default_factory=dict)
    """By its values, whether a transaction was committed; None if its writer does not know."""

    def check(self, simulation: Simulation) -> None:
        """Compare with all entries of the log, none of which was cleaned up."""
        placed: dict[str, list[tuple[int, int]]] = {}
        ends: Counter[int] = Counter()
        storage = simulation.storage
        for name in storage.list_names("topics/t/log"):
            if not name.endswith(".json"):
                continue
            entry = json.loads(storage.get(f"topics/t/log/{name}"))
            self.kinds[entry["kind"]] += 1
            if entry["kind"] == "deleted":
                ends.clear()
            for append in entry.get("appends", [entry]):
                self.kinds["in transactions"] += entry["kind"] == "bundle"
                for place in append.get("segments", ()):
                    partition, offset = place["partition"], place["base_offset"]
                    if offset != ends[partition]:
                        raise Wrong(f"{name} leaves a gap, or overlaps")
                    segment, record_count, *_ = place["stored"]
                    ends[partition] += record_count
                    placed.setdefault(segment, []).append((partition, offset))
                    if int(name[:20]) >= self.refused.get(segment, 1 << 63):
                        raise Wrong(f"{segment} was refused, and placed by {name}")
        for name, where in placed.items():
            # Those that share a file have one name.
            if len(where) > len({partition for partition, _ in where}):
                raise Wrong(f"{name} was placed {len(where)} times")
        for name, told in self.acked.items():
            if placed.get(name) != [told]:
                raise Wrong(f"{name} was acknowledged at {told}, and is at {placed.get(name)}")
        for finding in simulation.store(create=False).examine(["t"]):
            if finding.state == "damage" and finding.check == "topic":
                raise Wrong(finding.detail)
        if self.transactions:
            simulation.clock.time_ms += 10 * TIMEOUT_MS
            self.check_transactions(simulation.store(create=False))

    def check_transactions(self, store: Store) -> None:
        """Compare with what a reader sees when everything has ended."""
        seen = Counter(store.scan("t").to_arrow().column("value").to_pylist())
        for values, is_committed in self.transactions.items():
            counts = {seen[value] for value in values}
            allowed: set[int] = {0, 1} if is_committed is None else {int(is_committed)}
            if len(counts) > 1 or not counts <= allowed:
                raise Wrong(f"of {values} {counts} show; committed: {is_committed}")


Body = Callable[[Process, Judge], None]


def opened(process: Process) -> Store:
    """The store, however often that fails."""
    while True:
        with suppress(StorageError):
            return process.store()


def next_entry(process: Process) -> int:
    """The next number of the topic's log, as nobody knows it."""
    found = process.storage.inner.list_names("topics/t/log")
    return 1 + max(int(name[:20]) for name in found if name.endswith(".json"))


def place(process: Process, judge: Judge, store: Store, writer: IdempotentWriter | None) -> bool:
    """Upload and place one record, and repeat what is in doubt; False if the outcome stays open."""
    log = store.logs.topic("t")
    segments: list[UploadedSegment] = []
    try:
        segments = upload(store, b"x", partition=process.chance.randrange(PARTITIONS))
    except TxnlogError:
        return False
    (segment,) = segments
    since_entry = log.next_entry
    # Without a producer what was deleted meanwhile is not recognised.
    for _ in range(process.chance.choice([1, 3, 3]) if writer else 1):
        try:
            timeout_ms = process.chance.choice([100, 2_000, 60_000])
            found = log.place(
                segments, writer=writer, since_entry=since_entry, timeout_ms=timeout_ms
            )
        except StorageError:
            continue
        except REFUSALS as error:
            is_gone = isinstance(error, UnknownTopicOrPartition)
            judge.refused[segment.stored.name] = next_entry(process) if is_gone else 0
            raise
        offsets = found.offsets[TopicPartition("t", segment.partition)]
        judge.acked[segment.stored.name] = segment.partition, offsets.start
        return True
    return False


def write(process: Process, judge: Judge) -> None:
    """A producer of its own; after an open outcome another one, as ``PlainWriter`` does."""
    store = opened(process)
    writer = IdempotentWriter.new(process.clock.token())
    for _ in range(TURNS):
        with suppress(*REFUSALS):
            if not place(process, judge, store, writer):
                writer = IdempotentWriter.new(process.clock.token())


def write_anonymously(process: Process, judge: Judge) -> None:
    """No producer at all, as Spark's writes without a transactional id."""
    store = opened(process)
    for _ in range(TURNS):
        with suppress(*REFUSALS):
            place(process, judge, store, None)


def write_as_a_copy(process: Process, judge: Judge) -> None:
    """One of several that count as the same producer, one of them with a newer epoch."""
    store = opened(process)
    for turn in range(TURNS):
        writer = IdempotentWriter(ProducerRef(77 + turn % 2, process.chance.choice([0, 0, 1])))
        with suppress(*REFUSALS):
            for _ in range(3):
                place(process, judge, store, writer)


def transact(process: Process, judge: Judge, transactional_id: str = "") -> None:
    """Transactions of one to four appends, some of which are given up."""
    store = opened(process)
    while True:
        producer = store.producer(
            transactional_id=transactional_id or process.name,
            transaction_timeout_ms=process.chance.choice([TIMEOUT_MS // 10, TIMEOUT_MS]),
            delivery_timeout_ms=process.chance.choice([0, 2_000]),
        )
        try:
            producer.init_transactions()
            for _ in range(TURNS):
                values = tuple(process.clock.token().encode() for _ in range(4))
                values = values[: process.chance.randint(1, 4)]
                judge.transactions[values] = None
                producer.begin_transaction()
                for value in values:
                    producer.send("t", value, partition=process.chance.randrange(PARTITIONS))
                    if process.chance.random() < 0.5:
                        producer.flush()
                if process.chance.random() < 0.2:
                    producer.abort_transaction()
                    judge.transactions[values] = False
                else:
                    producer.commit_transaction()
                    judge.transactions[values] = True
            return
        except TxnlogError:
            with suppress(TxnlogError):
                producer.close()
            if process.chance.random() < 0.2:
                return


def transact_as_one(process: Process, judge: Judge) -> None:
    """The same by several who fence each other."""
    transact(process, judge, "shared")


def trim(process: Process, _judge: Judge) -> None:
    """Delete all records from time to time."""
    store = opened(process)
    for _ in range(TURNS):
        process.clock.sleep(process.chance.random() / 2)
        with suppress(TxnlogError):
            log = store.logs.fresh_topic("t")
            with log.lock:
                state = log.state
                ends = {number: part.end_offset for number, part in enumerate(state.partitions)}
            store.topics.delete_records({TopicPartition("t", n): end for n, end in ends.items()})


def make_anew(process: Process, _judge: Judge) -> None:
    """Delete the topic, and make it again."""
    store = opened(process)
    process.clock.sleep(process.chance.random())
    with suppress(TxnlogError):
        store.topics.delete("t")
    with suppress(TxnlogError):
        store.topics.create("t", partitions=PARTITIONS)


def tidy(process: Process, _judge: Judge) -> None:
    """Leave checkpoints and manifests, much more often than writers do."""
    store = opened(process)
    for _ in range(TURNS):
        process.clock.sleep(process.chance.random() / 4)
        with suppress(TxnlogError):
            log = store.logs.fresh_topic("t")
            log.checkpoint()


CASTS: list[list[Body]] = [
    [*[write] * 7, tidy],
    [write, write, write, write_anonymously, write_anonymously, trim, tidy],
    [write, write, write_as_a_copy, write_as_a_copy, write_as_a_copy],
    [write] * 4 + [write_anonymously, write_anonymously, make_anew],
    [write_anonymously] * 6 + [trim, trim],
]
IN_TRANSACTIONS: list[list[Body]] = [
    [*[transact] * 6, tidy],
    [transact, transact, transact, transact_as_one, transact_as_one, write, write, tidy],
]


def run(seed: int, casts: Sequence[list[Body]] = CASTS) -> Judge:
    """One run: the seed decides who takes part, and what goes wrong."""
    rates = (CALM, ROUGH, SLEEPY)[seed % 3]
    judge = Judge()
    simulation = Simulation(seed, rates=rates, step_ms=(0, 4))
    store = simulation.store()
    store.topics.create("t", partitions=PARTITIONS)
    # Time passes by appends, and begins with the first.
    store.logs.topic("t").place(upload(store, b"first"))
    bodies = casts[seed % len(casts)]
    for number, body in enumerate(bodies):

        def play(process: Process, body: Body = body) -> None:
            body(process, judge)

        simulation.spawn(f"{body.__name__}-{number}", play, restart=True)
    with settling_early() if seed % 2 else nullcontext():
        simulation.run()
        judge.check(simulation)
    return judge


def slices(runs: int, most: int) -> list[object]:
    """Few runs in `make test`, as many in `make test-more`, and all in `make soak`."""
    return [
        range(runs),
        pytest.param(range(runs, 2 * runs), marks=pytest.mark.more),
        *(pytest.param(range(n, n + 20), marks=pytest.mark.slow) for n in range(0, most, 20)),
    ]


@pytest.mark.parametrize("seeds", slices(12, 600))
def test_an_append_is_placed_as_its_writer_was_told(seeds: range) -> None:
    """A good many entries hold several appends, and many are refused."""
    kinds: Counter[str] = Counter()
    for seed in seeds:
        judge = run(seed)
        kinds += judge.kinds
        kinds.update(acked=len(judge.acked), refused=len(judge.refused))
    assert kinds["appends"] > len(seeds)
    assert kinds["acked"] > 16 * len(seeds)
    assert kinds["refused"] > len(seeds) / 2


@pytest.mark.parametrize("seeds", slices(8, 400))
def test_a_transaction_becomes_what_its_writer_was_told(seeds: range) -> None:
    """A good many appends of transactions lie in bundles."""
    kinds: Counter[str] = Counter()
    for seed in seeds:
        judge = run(seed, IN_TRANSACTIONS)
        kinds += judge.kinds
        kinds.update(map(str, judge.transactions.values()))
    assert kinds["bundle"] > 1.5 * len(seeds)
    assert kinds["in transactions"] > 2 * kinds["bundle"]
    assert kinds["True"] > 15 * len(seeds)
    assert kinds["False"] > 3 * len(seeds)


# -- each rule is broken on purpose --------------------------------------------------------------


def believe_nothing_was_placed(patch: Patch) -> None:
    """Segments placed since the proposal are not looked for."""
    patch.setattr(Proposal, "was_overtaken", lambda *_: False)
    patch.setattr(TopicState, "placed_since", lambda *_: {})
    patch.setattr(append_batching, "_names_since", lambda *_: set())


def let_producers_overtake(patch: Patch) -> None:
    """A proposal is placed though its producer has appended since."""
    patch.setattr(Proposal, "was_overtaken", lambda *_: False)


def forget_the_topic(patch: Patch) -> None:
    """A proposal for a topic that was deleted is placed in the next one of its name."""
    may_be_placed = Proposal.may_be_placed

    def in_any_topic(self: Proposal, state: TopicState) -> bool:
        same = self if state.topic_id is None else replace_field(self, topic_id=state.topic_id)
        return may_be_placed(same, state)

    patch.setattr(Proposal, "may_be_placed", in_any_topic)


def forget_deletions(patch: Patch) -> None:
    """Deleted appends pass for ones never placed."""
    patch.setattr(Proposal, "may_be_deleted", lambda *_: False)


def take_each_twice(patch: Patch) -> None:
    """The appends of one entry are not compared with each other."""
    read = append_batching.BatchedAppend._read

    def read_twice(self: append_batching.BatchedAppend, chosen: Sequence[str]) -> list[Proposal]:
        return read(self, chosen) * 2

    def take_all(
        state: TopicState, own: Append, proposals: Sequence[Proposal], *, nonce: str, at_ms: int
    ) -> tuple[Append | Appends | Bundle, list[Proposal]]:
        entries = [
            proposal.combine(state, own, [one], nonce=nonce, at_ms=at_ms) for one in proposals
        ]
        taken = [one for _, some in entries for one in some]
        ends = {at.partition: at.end_offset for at in own.segments}
        for one in taken:
            for at in one.append.segments:
                ends.setdefault(at.partition, state.partitions[at.partition].end_offset)
        appends = tuple(proposal._moved(one.append, ends) for one in taken)
        return (Appends(nonce, at_ms, (own, *appends)) if taken else own), taken

    patch.setattr(append_batching.BatchedAppend, "_read", read_twice)
    patch.setattr(append_batching, "combine", take_all)


def decide_as_one(patch: Patch) -> None:
    """What becomes of one transaction becomes of all whose appends lie in the same file."""
    decide = TopicState.decide

    def decide_all(self: TopicState, number: int, outcome: Outcome) -> None:
        file = self.file_of(number)
        for other in [n for n in self.undecided if self.file_of(n) == file]:
            decide(self, other, outcome)

    patch.setattr(TopicState, "decide", decide_all)


def commit_the_whole_file(patch: Patch) -> None:
    """A writer placed by others commits the bundle's first entry, which is not its own."""
    entries_of = TopicLog._entries_of

    def files_of(self: TopicLog, offsets: Mapping[TopicPartition, range]) -> set[int]:
        return {*map(self.file_of, entries_of(self, offsets))}

    patch.setattr(TopicLog, "_entries_of", files_of)


FIRST: dict[Callable[[Patch], None], int] = {let_producers_overtake: 12, forget_deletions: 21}
"""Seeds that notice what is broken; where none is named, one of the first ones does."""


@pytest.mark.more
@pytest.mark.parametrize(
    "break_rule",
    [
        believe_nothing_was_placed,
        let_producers_overtake,
        forget_the_topic,
        forget_deletions,
        take_each_twice,
        decide_as_one,
        commit_the_whole_file,
    ],
)
def test_a_broken_rule_is_noticed(monkeypatch: Patch, break_rule: Callable[[Patch], None]) -> None:
    """Seeds are tried until one notices, which finds nothing once the rule holds again."""
    in_transactions = break_rule in (decide_as_one, commit_the_whole_file)
    casts = IN_TRANSACTIONS if in_transactions else CASTS
    if break_rule is forget_deletions:
        casts = [cast for cast in CASTS if trim in cast]
    for seed in tried_first(FIRST.get(break_rule, 0), 60):
        with monkeypatch.context() as patch:
            break_rule(patch)
            try:
                run(seed, casts)
            except Wrong:
                break
    else:
        raise AssertionError("none of sixty runs notices")
    run(seed, casts)
