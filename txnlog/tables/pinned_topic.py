"""A topic pinned for a publication: one consistent cut, each transaction whole or absent."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from txnlog.config import TopicConfig
from txnlog.errors import InvalidOption
from txnlog.log.open_logs import Logs
from txnlog.read.pin import pin_topics
from txnlog.read.plan import SegmentRange
from txnlog.read.topic_view import TopicView
from txnlog.schema import TopicSchema
from txnlog.tables.columns import table_columns

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PinnedTopic:
    """A topic's committed records at one moment, and the columns of its table.

    ``is_of_standby``: the store need not have all yet that its source has.
    """

    view: TopicView
    columns: pa.Schema
    is_of_standby: bool

    @classmethod
    def of(cls, logs: Logs, topic: str) -> PinnedTopic:
        """Pin a topic. Raises InvalidOption if none of its segments are Parquet files."""
        view = pin_topics(logs, [topic], "snapshot").views[topic]
        if not TopicConfig.of(view.config).has_parquet:
            raise InvalidOption(
                f"topic {topic!r} is not stored in Parquet files, which a table could refer to; "
                "set its record.format to auto or parquet, and merge it"
            )
        return cls(view, table_columns(view), logs.storage.as_of() is not None)

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

    @property
    def next_entry(self) -> int:
        """How far the topic's log was read: what is later may also purge, trim or add a column."""
        return self.view.next_entry

    @property
    def ranges(self) -> list[SegmentRange]:
        """All visible ranges, by partition and offset: made anew each time."""
        return self.view.visible_ranges(self.view.beginning_offsets, self.view.end_offsets)

    def has_lost(self, published: Mapping[int, int]) -> list[int]:
        """The partitions in which a table reaches further that was read before the topic was.

        So no other process was faster: unless a standby is a little late, the topic lacks records
        that it had when it was published, as after a promotion.
        """
        ends = self.end_offsets
        return sorted(number for number, end in published.items() if end > ends.get(number, 0))

    def is_late(self, published: Mapping[int, int], next_entry: int) -> bool:
        """Whether this is a standby that has not reached what its source published.

        ``published``: the end offsets, by partition, that the table shows; ``next_entry``: the
        entry after those that it was made from.
        """
        return self.is_of_standby and (
            self.next_entry < next_entry or bool(self.has_lost(published))
        )


def warn_of_lost(topic: PinnedTopic, table: str, partitions: Sequence[int]) -> None:
    """Log that a table goes back."""
    _logger.warning(
        "%s had records of topic %r that the store does not have (any more), in the partitions "
        "%s: was a standby promoted, or a backup restored? The table shows what the topic has now",
        table,
        topic.name,
        ", ".join(map(str, partitions)),
    )
