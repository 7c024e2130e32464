"""A topic pinned for a publication: one consistent cut, each transaction whole or absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from txnlog.config import TopicConfig
from txnlog.errors import InvalidOption
from txnlog.log.open_logs import Logs
from txnlog.read.pin import pin_topics
from txnlog.read.segment_ranges import SegmentRange
from txnlog.read.topic_view import TopicView
from txnlog.schema import TopicSchema
from txnlog.tables.columns import table_columns


@dataclass(frozen=True)
class PinnedTopic:
    """A topic's committed records at one moment, and the columns of its table."""

    view: TopicView
    columns: pa.Schema

    @classmethod
    def of(cls, logs: Logs, topic: str) -> PinnedTopic:
        """Pin a topic. Raises InvalidOption if none of its segments are Parquet files."""
        view = pin_topics(logs, [topic], "snapshot").views[topic]
        if not TopicConfig.of(view.config).has_parquet:
            raise InvalidOption(
                f"topic {topic!r} is not stored in Parquet files, which a table could refer to; "
                "set its record.format to auto or parquet, and merge it"
            )
        return cls(view, table_columns(view))

    @property
    def name(self) -> str:
        return self.view.topic

    @property
    def topic_id(self) -> str:
        return self.view.topic_id

    @property
    def schema(self) -> TopicSchema | None:
        return self.view.schema

    @cached_property
    def end_offsets(self) -> dict[int, int]:
        """By partition, the offset after the last placed record."""
        return self.view.end_offsets

    @cached_property
    def ranges(self) -> list[SegmentRange]:
        """All visible ranges, by partition and offset."""
        return self.view.ranges(self.view.beginning_offsets, self.view.end_offsets)

    def is_behind(self, published: Mapping[int, int]) -> bool:
        """Whether a table reaches further: another process has published newer records."""
        return any(end < published.get(number, 0) for number, end in self.end_offsets.items())
