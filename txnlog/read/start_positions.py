"""Where a consumer begins to read a partition: its position, if it can be read from, or a reset."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import get_args

from txnlog.config import AutoOffsetReset
from txnlog.errors import InvalidOption, NoOffsetForPartition, OffsetOutOfRange
from txnlog.names import TopicPartition
from txnlog.read.topic_view import TopicView

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartPositions:
    """Kafka's ``auto.offset.reset``, for a group or for a consumer without one."""

    reset: AutoOffsetReset
    group_id: str | None

    @classmethod
    def of(cls, reset: str, group_id: str | None) -> StartPositions:
        """The rule of this name. Raises InvalidOption."""
        resets: tuple[AutoOffsetReset, ...] = get_args(AutoOffsetReset)
        for known in resets:
            if known == reset:
                return cls(known, group_id)
        raise InvalidOption(f"auto_offset_reset {reset!r} is not one of {', '.join(resets)}")

    def start(
        self, view: TopicView, where: TopicPartition, at: int | None, first_partitions: int
    ) -> int:
        """Where to begin. ``at``: the position, or the committed offset; None: there is neither.

        ``first_partitions``: how many partitions the topic had when it was first read: others were
        added since, so nothing of them was passed on purpose.

        Raises NoOffsetForPartition, OffsetOutOfRange: the policy is none.
        """
        partition = view.partitions[where.partition]
        begin, log_end = partition.log_start_offset, view.log_end_offsets[where.partition]
        if at is not None and begin <= at <= log_end:
            return at
        if self.reset == "none":
            if at is None:
                lacks = f"group {self.group_id!r} has no committed offset for {where}"
                if self.group_id is None:
                    lacks = f"the consumer has no position in {where}"
                raise NoOffsetForPartition(
                    f"{lacks} and auto_offset_reset is 'none': seek, or choose 'earliest' or "
                    "'latest'"
                )
            raise OffsetOutOfRange(
                f"position {at} of {where} is out of range: the log has {begin} to {log_end}; "
                "seek to an offset in it"
            )
        is_added = at is None and where.partition >= first_partitions
        found = begin if self.reset == "earliest" or is_added else partition.end_offset
        if at is not None:
            _logger.warning(
                "position %d of %s is out of range: the log has %d to %d; reading goes on at %d "
                "(auto_offset_reset is %s)",
                at, where, begin, log_end, found, self.reset,
            )  # fmt: skip
        return found
