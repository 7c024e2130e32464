"""``min.insync.replicas`` for those who write through the real producers (R6).

What was put at the leader alone is found there again when it is tried once more: that is no
acknowledgement.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from replica_folders import lose, make, reopened, values

import txnlog
from txnlog.errors import CommitStateUnknown, NotEnoughReplicas
from txnlog.replicas import copying, puts


@pytest.fixture
def store(tmp_path: Path) -> txnlog.Store:
    """Two roots, both of which must have what is acknowledged."""
    store = make(tmp_path, **{"min.insync.replicas": 2})
    store.create_topic("t", partitions=1)
    return store


class Losing:
    """Takes the second root's disk away just before it is given a log's next entry."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, what: str) -> None:
        self.bring_back: Callable[[], object] | None = None
        self._folder, self._what = folder, what
        for module in (puts, copying):
            patch.setattr(module, "put_at", self._before(module.put_at))

    def _before(self, put_at: Callable[..., bool]) -> Callable[..., bool]:
        def put(agreement: Any, epoch: Any, member: str, name: str, data: bytes) -> bool:
            if name.startswith(self._what) and self.bring_back is None:
                self.bring_back = lose(self._folder / "b")
            return put_at(agreement, epoch, member, name, data)

        return put


def in_sync(store: txnlog.Store) -> tuple[str, ...]:
    return store.replicas().in_sync


def test_a_flush_below_the_minimum(
    store: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry is at the leader; the producer is told that it does not know, and may go on."""
    lost = Losing(tmp_path, monkeypatch, "topics/t/log/")
    with store.producer(delivery_timeout_ms=5_000) as producer:
        producer.send("t", value=b"1")
        with pytest.raises(CommitStateUnknown, match=r"min\.insync\.replicas is 2"):
            producer.flush()
        assert lost.bring_back is not None
        assert in_sync(store) == ("r0-0",)
        lost.bring_back()
        store.add_replica(str(tmp_path / "b"))
        producer.flush()
    assert values(reopened(tmp_path)) == ["1"]


def test_a_commit_below_the_minimum(store: txnlog.Store, tmp_path: Path) -> None:
    """Its outcome is unknown; it is known when another root is back."""
    producer = store.producer(transactional_id="w")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", value=b"1")
    producer.flush()
    bring_back = lose(tmp_path / "b")
    with pytest.raises(CommitStateUnknown, match=r"min\.insync\.replicas is 2"):
        producer.commit_transaction()
    assert in_sync(store) == ("r0-0",)
    bring_back()
    store.add_replica(str(tmp_path / "b"))
    producer.commit_transaction()
    assert values(reopened(tmp_path)) == ["1"]
    producer.close()


def test_offsets_below_the_minimum(
    store: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.producer() as producer:
        producer.send("t", value=b"1")
    with store.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
        assert len(consumer.poll()) == 1
        lost = Losing(tmp_path, monkeypatch, "groups/")
        with pytest.raises(NotEnoughReplicas, match=r"min\.insync\.replicas is 2"):
            consumer.commit()
        assert lost.bring_back is not None
        lost.bring_back()
        store.add_replica(str(tmp_path / "b"))
        consumer.commit()
    assert [one.offset for one in reopened(tmp_path).describe_group("g").offsets] == [1]
