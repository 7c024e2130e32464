"""A batch read, from its options to what its tasks will read; on the driver's side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from txnlog.read.plan import ScanColumns, SegmentRange
from txnlog.spark.batch import provenance
from txnlog.spark.batch.pinned_read import pin_read
from txnlog.spark.batch.provenance import Origin
from txnlog.spark.options.read_options import parse_read
from txnlog.spark.options.store_options import open_at
from txnlog.spark.options.task_sizes import TaskSizes
from txnlog.storage.base import Storage
from txnlog.store import Store
from txnlog.write.coordinator import Coordinator


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A pinned read on its way from ``schema()`` to ``reader()``.

    ``origin`` is the transaction that the read has begun, if the options ask for one, or the block
    of ``transaction(...)`` that it belongs to.
    """

    storage: Storage
    columns: ScanColumns
    task_sizes: TaskSizes
    ranges: tuple[SegmentRange, ...]
    origin: Origin | None
    skip_damaged: bool = False


def plan_read(options: Mapping[str, str]) -> ReadPlan:
    """Pin a read; with a transactional id, begin its transaction.

    Raises InvalidOption: the options are unknown, malformed or contradict each other; TxnlogError:
    the store, a topic or an offset is not there.
    """
    parsed = parse_read(options)
    store = open_at(parsed.address)
    coordinator = None
    if parsed.transactional_id is not None:
        # Before the group is read: this settles an older instance's offsets.
        coordinator = _take_over(store, parsed.transactional_id, parsed.transaction_timeout_ms)
    pinned = pin_read(store, parsed)
    columns = parsed.columns.of(pinned.schema)
    origin = None if parsed.origin is None else provenance.parse_origin(parsed.origin)
    if coordinator is not None:
        assert parsed.group_id is not None
        provenance.delete_notes(store, coordinator.transactional_id)
        coordinator.begin(pinned.consumed(parsed.group_id))
        origin = provenance.origin_of(store, coordinator.state)
    return ReadPlan(
        store.storage, columns, parsed.task_sizes, pinned.ranges, origin, parsed.skip_damaged
    )


def _take_over(store: Store, transactional_id: str, timeout_ms: int | None) -> Coordinator:
    """End an older instance's transaction.

    The timeout is the longest that the store allows, unless the options say otherwise: a
    transaction that is begun when a DataFrame is loaded lasts as long as the job. It blocks nobody,
    because nothing is placed before its end.
    """
    longest_ms = store.logs.config.transaction_max_timeout_ms
    coordinator = Coordinator(store.logs, transactional_id, timeout_ms or longest_ms)
    coordinator.initialize()
    return coordinator
