"""Every rule that entries, markers and states can show is seen when it is broken."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa
import pytest

from tests.doctor.broken_store import (
    A_LOG,
    B_LOG,
    G_LOG,
    BrokenStore,
    offsets,
    violated_rules,
    wrong_offset,
)
from txnlog.columns.checks import make_schema
from txnlog.log.chapters import CHAPTER, Chapters, ClosingMark
from txnlog.names import LogFile, TopicPartition
from txnlog.state import topic as topic_state
from txnlog.state.membership import (
    Committer,
    GroupMember,
    MembersJoined,
    MembersLeft,
    Partitions,
    PartitionsAssigned,
)
from txnlog.state.topic import TopicState
from txnlog.state.topic_entries import Altered, Trimmed
from txnlog.state.transaction import EntryRef, Marker, Outcome, Status
from txnlog.storage import envelope
from txnlog.store import attach
from txnlog.testing import VirtualClock


def lost_entry(broken: BrokenStore) -> None:
    broken.storage.delete([broken.path(B_LOG, 2), broken.path(B_LOG, 2, LogFile.COMMIT)])


def flipped_bit(broken: BrokenStore) -> None:
    data = bytearray(broken.storage.get(broken.path(A_LOG, 40)))
    data[-20] ^= 1
    broken.replace(broken.path(A_LOG, 40), bytes(data))


def two_outcomes(broken: BrokenStore) -> None:
    broken.storage.put(
        broken.path(A_LOG, 41, LogFile.ABORT),
        broken.storage.get(broken.path(A_LOG, 41, LogFile.COMMIT)),
    )


def wrong_sequence(broken: BrokenStore) -> None:
    broken.change_append("a", 40, base_sequence=1234)


def trimmed_too_far(broken: BrokenStore) -> None:
    broken.put_entry(
        B_LOG, broken.entries(B_LOG)[-1] + 1, Trimmed("0" * 32, 1_700_000_000_000, {0: 99})
    )


def wrong_checkpoint(broken: BrokenStore) -> None:
    path = next(
        f"{A_LOG}/{n}" for n in broken.storage.list_names(A_LOG) if n.endswith("checkpoint")
    )
    state = envelope.decode(broken.storage.get(path), topic_state.CHECKPOINT_DECODER, path)
    assert isinstance(state, TopicState)
    state.partitions[1].segments.pop()
    broken.replace(path, envelope.encode(state))


def lower_epoch(broken: BrokenStore) -> None:
    number, state = broken.state("open")
    changed = msgspec.structs.replace(state, producer_epoch=state.producer_epoch - 1)
    broken.put_state("open", number, changed)


def no_bump(broken: BrokenStore) -> None:
    number, state = broken.state("done")
    empty = msgspec.structs.replace(state, status=Status.EMPTY, entries=(), topics=(), groups=())
    broken.put_state("done", number + 1, empty)


def unnamed_topic(broken: BrokenStore) -> None:
    number, state = broken.state("open")
    broken.put_state("open", number, msgspec.structs.replace(state, topics=("a",)))


def not_on_the_list(broken: BrokenStore) -> None:
    for back in (0, 1):
        number, state = broken.state("done", back)
        kept = tuple(ref for ref in state.entries if ref.name != "b")
        broken.put_state("done", number, msgspec.structs.replace(state, entries=kept))


def other_list(broken: BrokenStore) -> None:
    number, state = broken.state("done")
    more = (*state.entries, EntryRef("topic", "zzz", 1))
    broken.put_state("done", number, msgspec.structs.replace(state, entries=more))


def unmarked(broken: BrokenStore) -> None:
    broken.storage.delete([broken.path(B_LOG, broken.entries(B_LOG)[2], LogFile.COMMIT)])


def unmarked_before(broken: BrokenStore) -> None:
    """The id has begun another transaction since, so readers take the entry for aborted."""
    unmarked(broken)
    producer = attach(broken.storage, clock=VirtualClock(seed=7)).producer(transactional_id="done")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("a", value=b"later")
    producer.commit_transaction()


def misjudged(broken: BrokenStore) -> None:
    """A reader has marked it, since it has no marker."""
    unmarked_before(broken)
    attach(broken.storage, clock=VirtualClock(seed=8)).scan("b").to_arrow()


def marked_while_open(broken: BrokenStore) -> None:
    last = broken.entries(B_LOG)[-1]
    entry = broken.append("b", last)
    assert entry.transaction is not None
    marker = Marker(Outcome.COMMIT, entry.transaction)
    broken.storage.put(broken.path(B_LOG, last, LogFile.COMMIT), envelope.encode(marker))


def marker_of_another(broken: BrokenStore) -> None:
    broken.replace(
        broken.path(B_LOG, 1, LogFile.COMMIT),
        broken.storage.get(broken.path(B_LOG, 3, LogFile.ABORT)),
    )


def skipped_state(broken: BrokenStore) -> None:
    number, state = broken.state("open")
    done = msgspec.structs.replace(state, status=Status.COMPLETE_ABORT)
    broken.put_state("open", number + 1, done)


def forgotten_version(broken: BrokenStore) -> None:
    number, state = broken.state("done")
    broken.put_state("done", number, msgspec.structs.replace(state, versions={}))


def moved_from_elsewhere(broken: BrokenStore) -> None:
    moved = offsets(TopicPartition("a", 0), 7, 9)
    broken.put_entry(G_LOG, broken.entries(G_LOG)[-1] + 1, moved)


def moved_while_held(broken: BrokenStore) -> None:
    moved, end = offsets(TopicPartition("b", 0), None, 9), broken.entries(G_LOG)[-1] + 1
    _, state = broken.state("open")
    broken.put_entry(G_LOG, end, msgspec.structs.replace(moved, transaction=state.ref))
    broken.put_entry(G_LOG, end + 1, moved)


def exchanged_ids(broken: BrokenStore) -> None:
    store = attach(broken.storage)
    schema = pa.schema([("x", pa.int8()), ("y", pa.int8())])
    store.topics.create("typed", schema=schema)
    store.topics.alter("typed", rename={"x": "z"})
    known = store.topics.describe("typed").schema
    assert known is not None
    other = make_schema(pa.schema([("y", pa.int8()), ("z", pa.int8())]))
    forged = msgspec.structs.replace(known, arrow=other.arrow, earlier=(*known.earlier, 2))
    broken.put_entry("topics/typed/log", 2, Altered("0" * 32, 1_700_000_000_000, schema=forged))


def closed_too_far(broken: BrokenStore) -> None:
    path = Chapters(broken.storage, A_LOG, VirtualClock()).path(CHAPTER, 1)
    broken.storage.put(path, envelope.encode(ClosingMark(1)))


def shared(broken: BrokenStore, *owners: dict[str, Partitions]) -> None:
    """Two members join the group, and are assigned partitions of ``a``."""
    end, at_ms = broken.entries(G_LOG)[-1] + 1, 1_700_000_000_000
    members = tuple(
        GroupMember(member_id, ("a",), ("x",), 1, 1, cooperative=("x",)) for member_id in "mo"
    )
    broken.put_entry(G_LOG, end, MembersJoined("0" * 32, at_ms, members))
    for generation, owned in enumerate(owners, start=1):
        entry = PartitionsAssigned("0" * 32, at_ms, "m", generation, "x", {}, owned)
        broken.put_entry(G_LOG, end + generation, entry)


def owned_by_two(broken: BrokenStore) -> None:
    shared(broken, {"m": {"a": (0, 1)}, "o": {"a": (1,)}})


def given_while_held(broken: BrokenStore) -> None:
    shared(broken, {"m": {"a": (0, 1)}}, {"m": {"a": (0,)}, "o": {"a": (1,)}})


def committed_by_another(broken: BrokenStore) -> None:
    shared(broken, {"m": {"a": (1,)}})
    moved = msgspec.structs.replace(
        offsets(TopicPartition("a", 1), None, 1), committer=Committer("o", 1)
    )
    broken.put_entry(G_LOG, broken.entries(G_LOG)[-1] + 1, moved)


def committed_by_no_member(broken: BrokenStore) -> None:
    shared(broken, {"m": {"a": (1,)}})
    moved = offsets(TopicPartition("a", 1), None, 1)
    broken.put_entry(G_LOG, broken.entries(G_LOG)[-1] + 1, moved)


def join(broken: BrokenStore, *members: GroupMember) -> None:
    broken.put_entry(
        G_LOG, broken.entries(G_LOG)[-1] + 1, MembersJoined("0" * 32, 1_700_000_000_000, members)
    )


def joined_again(broken: BrokenStore) -> None:
    """In an entry of several, by who read a request too late."""
    shared(broken)
    left = MembersLeft("0" * 32, 1_700_000_000_000, ("m",), "closed")
    broken.put_entry(G_LOG, broken.entries(G_LOG)[-1] + 1, left)
    join(broken, *(GroupMember(member_id, ("a",), ("x",), 1, 1) for member_id in "pm"))


def joined_as_one_instance(broken: BrokenStore) -> None:
    join(
        broken,
        *(GroupMember(member_id, ("a",), ("x",), 1, 1, instance_id="i") for member_id in "mo"),
    )


def joined_with_another_assignor(broken: BrokenStore) -> None:
    join(broken, *(GroupMember(assignor, ("a",), (assignor,), 1, 1) for assignor in "xy"))


BREAKS: dict[Callable[[BrokenStore], None], set[str]] = {
    lost_entry: {"L1"},
    flipped_bit: {"L1"},
    wrong_offset: {"L2"},
    two_outcomes: {"L3"},
    closed_too_far: {"L17"},
    wrong_sequence: {"L4"},
    trimmed_too_far: {"L5"},
    wrong_checkpoint: {"L7"},
    exchanged_ids: {"L16"},
    lower_epoch: {"T1"},
    no_bump: {"T1"},
    unnamed_topic: {"T2"},
    not_on_the_list: {"T3"},
    other_list: {"T3"},
    unmarked: {"T4"},
    unmarked_before: {"T4"},
    misjudged: {"T3"},
    marked_while_open: {"T5"},
    marker_of_another: {"T5"},
    skipped_state: {"T6"},
    forgotten_version: {"T8"},
    moved_from_elsewhere: {"G1"},
    moved_while_held: {"G2"},
    owned_by_two: {"M1"},
    given_while_held: {"M2"},
    committed_by_another: {"M3"},
    committed_by_no_member: {"M3"},
    joined_again: {"M4"},
    joined_as_one_instance: {"M4"},
    joined_with_another_assignor: {"M5"},
}


@pytest.mark.parametrize("breaks", BREAKS, ids=lambda breaks: breaks.__name__)
def test_a_broken_rule_is_seen_by_its_number(breaks: Callable[[BrokenStore], None]) -> None:
    """Each rule that files can show; nothing but files is broken, every checksum holds."""
    broken = BrokenStore()
    breaks(broken)
    before = dict(broken.storage.list_all(""))
    assert BREAKS[breaks] <= violated_rules(broken.storage)
    assert dict(broken.storage.list_all("")) == before
