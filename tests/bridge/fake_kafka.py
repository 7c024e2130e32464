"""One partition as a broker serves it: markers take offsets, and retention moves its start.

librdkafka's mock cluster has neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest

from txnlog.bridge import source
from txnlog.bridge.client import Cluster


@dataclass
class FakePartition:
    """Partition 0 of any topic: ``records`` are values by their offsets."""

    records: Mapping[int, bytes] = field(default_factory=dict)
    start: int = 0
    end: int = 0

    def serve(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let bridges read it, whatever servers they are given."""
        monkeypatch.setattr(Cluster, "consumer", lambda *_: _FakeConsumer(self))
        monkeypatch.setattr(Cluster, "check_answers", lambda _: None)
        monkeypatch.setattr(source._Copying, "_config_of", lambda *_: {})


def _event(topic: str, offset: int, error: int) -> SimpleNamespace:
    told = confluent_kafka.KafkaError(error)
    return _message(topic, offset, None, told)


def _message(topic: str, offset: int, value: bytes | None, error: object) -> SimpleNamespace:
    return SimpleNamespace(
        error=lambda: error,
        topic=lambda: topic,
        partition=lambda: 0,
        offset=lambda: offset,
        key=lambda: b"k",
        value=lambda: value,
        headers=lambda: None,
        timestamp=lambda: (1, 1_700_000_000_000),
    )


class _FakeConsumer:
    """What a bridge asks of a consumer; one event for each end that is reached."""

    def __init__(self, served: FakePartition) -> None:
        self._served = served
        self._topic = ""
        self._position = 0
        self._told_end = -1

    def list_topics(self, topic: str, **_: Any) -> SimpleNamespace:
        there = SimpleNamespace(error=None, partitions={0: None})
        return SimpleNamespace(cluster_id="c", topics={topic: there})

    def assign(self, partitions: list[Any]) -> None:
        (only,) = partitions
        from_start = only.offset == confluent_kafka.OFFSET_BEGINNING
        self._position = self._served.start if from_start else only.offset
        self._topic, self._told_end = only.topic, -1

    def consume(self, most: int, _: float) -> list[SimpleNamespace]:
        served = self._served
        found: list[SimpleNamespace] = []
        if not served.start <= self._position <= served.end:
            no_offset = confluent_kafka.KafkaError._AUTO_OFFSET_RESET
            return [_event(self._topic, self._position, no_offset)]
        while self._position < served.end and len(found) < most:
            if self._position in served.records:
                value = served.records[self._position]
                found.append(_message(self._topic, self._position, value, None))
            self._position += 1
        if len(found) < most and self._told_end < self._position == served.end:
            self._told_end = served.end
            end = confluent_kafka.KafkaError._PARTITION_EOF
            found.append(_event(self._topic, self._position, end))
        return found

    def get_watermark_offsets(self, *_: Any, **__: Any) -> tuple[int, int]:
        return self._served.start, self._served.end

    def close(self) -> None:
        """Nothing is open."""
