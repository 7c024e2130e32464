"""Where segments lie, in arrays: it says what the descriptions of all segments say."""

from __future__ import annotations

import pytest

from tests.support.log.settling import settle_early
from tests.support.steps import another, append, begin, new_store, send
from txnlog import TopicPartition
from txnlog.errors import UnknownTopicOrPartition
from txnlog.inspect.describe import describe_segments_within
from txnlog.log.segment_outline import outline_partition
from txnlog.store import Store
from txnlog.testing import HeapStorage, VirtualClock


def outlined(store: Store, partition: int) -> list[tuple[int, int, str, str]]:
    """Base, end, name and outcome of each segment, as the arrays have them."""
    found = outline_partition(store.logs.fresh_topic("t"), partition)
    outcomes = [
        "undecided" if is_open else "aborted" if is_aborted else "committed"
        for is_open, is_aborted in zip(found.undecided, found.aborted, strict=True)
    ]
    bases, ends = found.base_offsets.tolist(), found.end_offsets.tolist()
    return [*zip(bases, ends, found.names.to_pylist(), outcomes, strict=True)]


def described(store: Store, partition: int) -> list[tuple[int, int, str, str]]:
    """The same of the descriptions."""
    found = store.topics.segments("t", partition)
    return [(one.base_offset, one.end_offset, one.name, one.outcome) for one in found]


def test_arrays_say_what_descriptions_say(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settled, merged, trimmed, aborted and undecided segments, in a state and in manifests."""
    settle_early(monkeypatch)
    store = new_store(HeapStorage(), clock, {"t": 2})
    assert outlined(store, 0) == described(store, 0) == []
    aborting, waiting = (begin(store, name) for name in ("aborting", "waiting"))
    for turn in range(12):
        append(store, b"%d" % turn)
        if turn == 3:
            send(aborting, b"aborted", partition=0)
            aborting.abort_transaction()
        if turn == 8:
            send(waiting, b"undecided", partition=0)
        if turn in (5, 10):
            another(store).maintenance.merge("t")
            assert outlined(another(store), 0) == described(store, 0)
    store.topics.delete_records({TopicPartition("t", 0): 2})
    for one in (store, another(store)):
        assert outlined(one, 0) == described(one, 0)
        assert outlined(one, 1) == described(one, 1) == []
    whole = store.topics.segments("t", 0)
    assert {one.outcome for one in whole} == {"committed", "aborted", "undecided"}
    assert whole[0].base_offset == 0
    log = store.logs.fresh_topic("t")
    assert log._state.settled is not None
    assert describe_segments_within(log, 0, 2, whole[-1].end_offset) == whole
    for part in whole[1:]:
        assert describe_segments_within(log, 0, part.base_offset, part.end_offset) == [part]
    with pytest.raises(UnknownTopicOrPartition):
        outline_partition(log, 2)
