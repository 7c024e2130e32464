"""Ctrl-C at each line of a ``transaction(...)`` block; then the notebook runs its cell again.

Spark itself is left out: a frame is a list of values, and a write of it uploads them and leaves a
staged file, as the driver's side of a real one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from unittest.mock import MagicMock

import numpy as np
import pyarrow as pa
import pytest

from tests.support.log.settling import settle_early
from tests.support.runtime.interrupted_jobs import (
    GROUP,
    IN,
    INPUT,
    KINDS,
    Job,
    interrupt,
    interrupt_each,
    lines_of,
)
from txnlog.segments.records import normalize
from txnlog.spark import registration
from txnlog.spark.batch.commit import put_staged
from txnlog.spark.batch.determinism import RepeatableWrites
from txnlog.spark.options.option_names import STAGING
from txnlog.spark.transactions import transaction as blocks
from txnlog.store import Store
from txnlog.write.segment_uploads import SegmentUploader


@pytest.fixture(autouse=True)
def _early(monkeypatch: pytest.MonkeyPatch) -> None:
    settle_early(monkeypatch)
    monkeypatch.setattr(registration, "register", lambda _: None)
    monkeypatch.setattr(RepeatableWrites, "check", lambda *_, **__: None)
    monkeypatch.setattr(blocks, "read_frame", lambda *_, **__: None)


class Frame:
    """What a block writes."""

    def __init__(self, store: Store, values: Sequence[bytes]) -> None:
        self._store = store
        self._values = values
        self._options: dict[str, str] = {}
        self.write = self

    def format(self, _: str) -> Frame:
        return self

    def mode(self, _: str) -> Frame:
        return self

    def options(self, **options: str) -> Frame:
        self._options = options
        return self

    def save(self) -> None:
        storage, topic = self._store.storage, self._options["topic"]
        uploader = SegmentUploader(
            storage, self._store.logs.topic_spec(topic), self._store.logs.clock
        )
        records = normalize(pa.record_batch({"value": [*self._values]}), now_ms=1)
        uploader.write(records, np.zeros(len(self._values), dtype=np.int32))
        put_staged(storage, self._options[STAGING], {topic: uploader.finish()})


class Block(Job):
    """Reads with a group, writes a frame and a record, and commits at the end of the block."""

    watched: ClassVar[tuple[str, ...]] = (
        *("spark/transactions/", "spark/batch/commit.py", "spark/stream/commit_once.py"),
        *("write/coordinator.py", "write/record_buffers.py"),
    )

    def prepare(self) -> None:
        self.spark: Any = MagicMock(is_stopped=False)
        self.copy(most=1)

    def copy(self, most: int | None = None) -> int:
        """One block; returns how many records it has consumed."""
        with blocks.transaction(
            self.spark, self.store, transactional_id="block", group_id=GROUP, max_records=most
        ) as txn:
            txn.read("in", native=False)
            values: list[bytes] = []
            for where, span in txn._reads[-1].offsets.items():
                starts = {w.partition: span.start if w == where else 3 for w in IN}
                found = self.store.scan("in", starting_offsets=starts).to_arrow()
                values += found.column("value").to_pylist()[: len(span)]
            if values:
                txn.write(Frame(self.store, values), "out")  # type: ignore[arg-type]
                txn.send("notes", b"a block")
            return txn.consumed_records

    def call(self) -> None:
        self.copy(most=2)

    def go_on(self) -> None:
        while self.copy():
            pass

    def judge(self, fresh: Store) -> None:
        found = fresh.scan("out").to_arrow().column("value").to_pylist()
        assert sorted(found) == INPUT, f"inputs copied: {found}"
        reader = fresh.consumer(group_id=GROUP)
        assert [at.offset for where in IN if (at := reader.committed(where))] == [3, 3]
        assert fresh.storage.list_names("staging") == []


def test_some_lines() -> None:
    points = lines_of(Block)
    assert len(points) > 200
    interrupt_each(Block, points[::83])


@pytest.mark.more
def test_more_lines() -> None:
    interrupt_each(Block, lines_of(Block)[::7])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_all_lines_by_each(kind: type[BaseException]) -> None:
    for at in lines_of(Block):
        interrupt(Block, at, kind)
