"""An import is stopped at each single request, and each single response is lost: all or nothing."""

from __future__ import annotations

from uuid import uuid4

import pyarrow as pa
import pytest

from txnlog import Store
from txnlog.errors import CommitStateUnknown, OffsetOutOfRange, TxnlogError
from txnlog.segments.batches import encode_batch, encode_marker
from txnlog.segments.records import normalize
from txnlog.storage import open_storage
from txnlog.storage.base import Storage
from txnlog.store import attach
from txnlog.testing import Fault, FaultyStorage, ProcessStopped, VirtualClock

BATCHES = 3
RECORDS = 4


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two partitions, each with an aborted transaction."""
    root = tmp_path_factory.mktemp("broker")
    row = {"key": [b"k"] * RECORDS, "value": [b"v"] * RECORDS, "timestamp": [5] * RECORDS}
    records = normalize(pa.record_batch(row), now_ms=0)
    for partition in range(2):
        data, offset = b"", 0
        for number in range(BATCHES):
            data += encode_batch(
                records,
                record_format="kafka",
                base_offset=offset,
                producer_id=number,
                producer_epoch=0,
                base_sequence=0,
                transactional=number == 1,
            )
            offset += RECORDS
        data += encode_marker(
            commit=False,
            offset=offset,
            timestamp_ms=5,
            producer_id=1,
            producer_epoch=0,
            coordinator_epoch=0,
        )
        folder = root / f"t-{partition}"
        folder.mkdir()
        (folder / f"{0:020}.log").write_bytes(data)
    return str(root)


def _open(storage: Storage, seed: int = 0) -> Store:
    return attach(storage, create=True, clock=VirtualClock(seed=seed))


def _counts(store: Store) -> tuple[int, int]:
    """How many records show under read_committed and read_uncommitted."""
    if "t" not in store.topics.list():
        return 0, 0
    committed, uncommitted = (
        store.scan("t", isolation_level=level).to_arrow().num_rows
        for level in ("read_committed", "read_uncommitted")
    )
    return committed, uncommitted


ALL = (2 * RECORDS * (BATCHES - 1), 2 * RECORDS * BATCHES)


@pytest.mark.condition(48)
@pytest.mark.parametrize("fault", [f for f in Fault if f not in {Fault.DELAY, Fault.PAUSE}])
def test_an_import_is_all_or_nothing(folders: str, fault: Fault) -> None:
    """For each request: what shows is all or nothing, and a repeat never doubles it."""
    whole = FaultyStorage(open_storage(f"memory://{uuid4().hex}"))
    store = _open(whole)
    first = len(whole.requests)
    store.kafka.import_topic("t", [folders])
    outcomes = set()
    for at in range(first, len(whole.requests)):
        inner = open_storage(f"memory://{uuid4().hex}")
        faulty = FaultyStorage(inner, {at: fault})
        store = _open(faulty)
        raised: BaseException | None = None
        try:
            store.kafka.import_topic("t", [folders])
        except (TxnlogError, ProcessStopped) as error:
            raised = error
        later = _open(inner, seed=1)
        seen = _counts(later)
        outcomes.add(seen)
        assert seen in ((0, 0), ALL)
        assert raised is not None or seen == ALL
        if isinstance(raised, TxnlogError) and not isinstance(raised, CommitStateUnknown):
            assert seen == (0, 0)  # the error says that nothing happened
        if seen == ALL:
            with pytest.raises(OffsetOutOfRange):
                later.kafka.import_topic("t", [folders])
        else:
            later.kafka.import_topic("t", [folders])
        assert _counts(_open(inner)) == ALL
    # The last request is the put that places everything: before it there is nothing to be seen.
    assert (0, 0) in outcomes
    assert (ALL in outcomes) is (fault is not Fault.STOP_BEFORE)
