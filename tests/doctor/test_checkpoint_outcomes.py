"""Rule L10: checkpoints that are wrong about what became of an entry."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.doctor.broken_store import (
    B_LOG,
    G_LOG,
    BrokenStore,
    change_nothing,
    examine,
    offsets,
    put_checkpoint,
    violated_rules,
)
from txnlog.names import LogFile, TopicPartition
from txnlog.state import group as group_state
from txnlog.state.group import GroupState, OffsetsCommitted
from txnlog.state.transaction import Marker, Outcome, TransactionRef
from txnlog.storage import envelope
from txnlog.store import attach
from txnlog.testing import VirtualClock

pytestmark = pytest.mark.rule("L10")


def aborted_against_its_marker(broken: BrokenStore) -> None:
    put_checkpoint(broken, "topic", "b", lambda state: state.aborted.append(1))


def committed_against_its_marker(broken: BrokenStore) -> None:
    put_checkpoint(broken, "topic", "b", lambda state: state.aborted.remove(3))


def aborted_against_the_list(broken: BrokenStore) -> None:
    broken.storage.delete([broken.path(B_LOG, 2, LogFile.COMMIT)])
    put_checkpoint(broken, "topic", "b", lambda state: state.aborted.append(2))


def committed_against_the_state(broken: BrokenStore) -> None:
    broken.storage.delete([broken.path(B_LOG, 3, LogFile.ABORT)])
    put_checkpoint(broken, "topic", "b", lambda state: state.aborted.remove(3))


def aborted_and_cleaned_up(broken: BrokenStore) -> None:
    put_checkpoint(broken, "topic", "b", lambda state: state.aborted.append(2))
    found = [n for n in broken.storage.list_names(B_LOG) if not n.endswith("checkpoint")]
    broken.storage.delete(
        [f"{B_LOG}/{name}" for name in found if not name.startswith("0" * 19 + "4")]
    )


def contradicted_by_another(broken: BrokenStore) -> None:
    put_checkpoint(broken, "topic", "b", change_nothing)
    with attach(broken.storage, clock=VirtualClock(seed=6)).producer() as producer:
        producer.send("b", "later")
    broken.storage.delete([broken.path(B_LOG, 1, LogFile.COMMIT)])  # and its id has moved on
    put_checkpoint(broken, "topic", "b", lambda state: state.aborted.append(1))


def undecided_and_gone(broken: BrokenStore) -> None:
    put_checkpoint(broken, "topic", "b", change_nothing)
    broken.storage.delete([broken.path(B_LOG, 4)])


def offset_that_was_left_out(broken: BrokenStore) -> None:
    def forget(state: GroupState) -> None:
        known = state.committed["a"][0]
        state.committed["a"][0] = msgspec.structs.replace(known, entry=0, offset=1)

    put_checkpoint(broken, "group", "g", forget)


def moved_by(broken: BrokenStore, transactional_id: str) -> TransactionRef:
    """Entry 2 of the group's log moves an offset, as a part of this id's transaction."""
    _, state = broken.state(transactional_id)
    moved = offsets(TopicPartition("b", 0), None, 9)
    broken.put_entry(G_LOG, 2, msgspec.structs.replace(moved, transaction=state.ref))
    return state.ref


def offset_that_was_aborted(broken: BrokenStore) -> None:
    marker = Marker(Outcome.ABORT, moved_by(broken, "undone"))
    broken.storage.put(broken.path(G_LOG, 2, LogFile.ABORT), envelope.encode(marker))

    def count(state: GroupState) -> None:
        known = state.committed["a"][0]
        state.committed["b"] = {0: msgspec.structs.replace(known, entry=2, offset=9)}

    put_checkpoint(broken, "group", "g", count)


def offset_undecided_and_gone(broken: BrokenStore) -> None:
    moved_by(broken, "open")
    put_checkpoint(broken, "group", "g", change_nothing)
    broken.storage.delete([broken.path(G_LOG, 2)])


L10_SAYS: dict[Callable[[BrokenStore], None], tuple[str, int, str, str]] = {
    aborted_against_its_marker: (B_LOG, 1, "its marker is", "then fold"),
    committed_against_its_marker: (B_LOG, 3, "its marker is", "then fold"),
    aborted_against_the_list: (B_LOG, 2, "is CompleteCommit and it is on its list", "then fold"),
    committed_against_the_state: (B_LOG, 3, "is CompleteAbort", "then fold"),
    aborted_and_cleaned_up: (
        B_LOG,
        2,
        "is CompleteCommit and it is on its list",
        "write the records",
    ),
    contradicted_by_another: (B_LOG, 1, "contradicts; no marker", "backup"),
    undecided_and_gone: (B_LOG, 4, "is gone", "backup"),
    offset_that_was_left_out: (G_LOG, 1, "its marker is", "then fold"),
    offset_that_was_aborted: (G_LOG, 2, "its marker is", "then fold"),
    offset_undecided_and_gone: (G_LOG, 2, "is gone", "backup"),
}


@pytest.mark.parametrize("breaks", L10_SAYS, ids=lambda breaks: breaks.__name__)
def test_a_wrong_outcome_is_told_with_its_files(breaks: Callable[[BrokenStore], None]) -> None:
    """L10 once for an entry: the checkpoint, the entry, who says otherwise, and what to do."""
    broken = BrokenStore()
    breaks(broken)
    before = dict(broken.storage.list_all(""))
    (found,) = [f for f in examine(broken.storage) if f.rule == "L10"]
    assert dict(broken.storage.list_all("")) == before
    assert found.state == "damage"
    folder, entry, source, remedy = L10_SAYS[breaks]
    assert found.path is not None
    assert found.path.endswith(".checkpoint")
    assert broken.path(folder, entry) in found.detail
    assert source in found.detail
    assert remedy in found.detail


def test_the_newest_wrong_checkpoint_is_named_and_the_others_counted() -> None:
    """A fault that checkpoints hand on is one finding for the entry, not one for each of them."""
    broken = BrokenStore()
    path = ""
    for number in range(5):
        path = put_checkpoint(broken, "topic", "b", lambda state: state.aborted.append(1))
        clock = VirtualClock(seed=20 + number)
        with attach(broken.storage, clock=clock).producer() as producer:
            producer.send("b", f"later {number}")
    (found,) = [f for f in examine(broken.storage) if f.rule == "L10"]
    assert found.path == path
    assert "and 2 older ones" in found.detail


def test_a_stray_is_no_evidence() -> None:
    """Hazard 3: put into a name that cleaning had freed, it says nothing of the entry before it."""
    broken = BrokenStore()
    broken.put_entry(G_LOG, 2, offsets(TopicPartition("b", 0), None, 9))
    stray = {
        (put_checkpoint(broken, "topic", "b", change_nothing), 3, 4): (B_LOG, 1, LogFile.COMMIT),
        (put_checkpoint(broken, "group", "g", change_nothing), 1, 2): (G_LOG, 0, LogFile.ABORT),
    }
    for (kept, number, end), (folder, copied, kind) in stray.items():
        entry = broken.storage.get(broken.path(folder, copied))
        cleaned = [name for name in broken.storage.list_names(folder) if int(name[:20]) < end]
        broken.storage.delete([p for p in (f"{folder}/{name}" for name in cleaned) if p != kept])
        broken.storage.put(broken.path(folder, number), entry)
        outcome = Outcome(kind.value)
        ref = broken.state("done", 3)[1].ref
        marker = Marker(outcome, msgspec.structs.replace(ref, number=1))
        broken.storage.put(broken.path(folder, number, kind), envelope.encode(marker))
    assert "L10" not in violated_rules(broken.storage)


def test_cleaned_up_as_if_it_were_aborted() -> None:
    """L10 for a group: one checkpoint has the offset pending, the next one has dropped it."""
    broken = BrokenStore()

    def pend(state: GroupState) -> None:
        entry = envelope.decode(
            broken.storage.get(broken.path(G_LOG, 1)), group_state.ENTRY_DECODER, ""
        )
        assert isinstance(entry, OffsetsCommitted)
        known = state.committed["a"][0]
        state.committed["a"][0] = msgspec.structs.replace(known, entry=0, offset=1)
        state.pending[1] = entry

    put_checkpoint(broken, "group", "g", pend)
    broken.put_entry(G_LOG, 2, offsets(TopicPartition("b", 0), None, 9))

    def drop(state: GroupState) -> None:
        pend(state)
        state.decide(1, Outcome.ABORT)

    put_checkpoint(broken, "group", "g", drop)
    doomed = [(n, kind) for n in (0, 1) for kind in (LogFile.ENTRY, LogFile.COMMIT)]
    broken.storage.delete([broken.path(G_LOG, *file) for file in doomed])
    (found,) = examine(broken.storage)
    assert found.rule == "L10"
    assert "is CompleteCommit and it is on its list" in found.detail
