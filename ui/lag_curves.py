"""How far a group was behind, as its log and those of its topics tell: lines of a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from txnlog.errors import TxnlogError
from txnlog.inspect.group_lag import GroupOffset
from txnlog.inspect.history import GroupLogEntry
from txnlog.log.open_logs import Logs
from txnlog.names import TopicPartition
from txnlog.read.time_travel import AppendTimes
from txnlog.segments.records import Int64Array

PICTURE_WIDTH = 1000
PICTURE_HEIGHT = 160
_MOST_LINES = 12


@dataclass(frozen=True, slots=True)
class Curve:
    """A group's lag in one partition, as points of an SVG line. ``most`` is the largest."""

    name: str
    points: str
    newest: int
    most: int


@dataclass(frozen=True, slots=True)
class LagPicture:
    """The lags of a group from a time on. ``most`` is the largest: the top of the picture."""

    curves: Sequence[Curve]
    first_ms: int
    most: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Where a group was put in a partition, and when."""

    at_ms: int
    offset: int


@dataclass(frozen=True, slots=True)
class EndOffsetCurve:
    """How far a partition reached: ``end_offsets[n]`` from ``at_ms[n]`` on, which ascends."""

    at_ms: Int64Array
    end_offsets: Int64Array

    @classmethod
    def of_appends(cls, appends: AppendTimes, partition: int, end_offset: int) -> EndOffsetCurve:
        """The curve of a partition's appends up to ``end_offset``, its last stable offset."""
        rows = appends.rows
        mine = (rows["partition"] == partition) & (rows["base_offset"] < end_offset)
        bases, at_ms = rows["base_offset"][mine], rows["at_ms"][mine]
        order = np.argsort(bases, kind="stable")
        ends = np.append(bases[order][1:], end_offset)[: len(bases)]
        return cls(np.maximum.accumulate(at_ms[order]), ends)

    def end_at(self, at_ms: int, default: int) -> int:
        """The end offset at a time; ``default`` if that is before the first append."""
        place = int(np.searchsorted(self.at_ms, at_ms, side="right"))
        return int(self.end_offsets[place - 1]) if place else default


def draw_lags(
    logs: Logs, offsets: Sequence[GroupOffset], history: Iterable[GroupLogEntry], now_ms: int
) -> LagPicture:
    """The lag in each partition over time, before and after each commit, and now.

    At most ``_MOST_LINES`` partitions, the ones with the greatest lag first.
    """
    commits = _commits_of(history)
    known = [at for at in offsets if at.end_offset is not None]
    known.sort(key=lambda at: (-(at.lag or 0), at.topic, at.partition))
    chosen = [at for at in known if TopicPartition(at.topic, at.partition) in commits][:_MOST_LINES]
    firsts = [commits[TopicPartition(at.topic, at.partition)][0].at_ms for at in chosen]
    since_ms = min(firsts, default=now_ms)
    appends: dict[str, AppendTimes] = {}
    lines = []
    for at in chosen:
        try:
            if at.topic not in appends:
                appends[at.topic] = AppendTimes.since(logs.topic(at.topic), since_ms)
        except TxnlogError:  # its own page says what is wrong with it
            continue
        where = TopicPartition(at.topic, at.partition)
        assert at.end_offset is not None
        appended = EndOffsetCurve.of_appends(appends[at.topic], at.partition, at.end_offset)
        lines.append((where, follow_lag(commits[where], appended, now_ms)))
    return _scale(lines, since_ms)


def follow_lag(
    commits: Sequence[Commit], appended: EndOffsetCurve, now_ms: int
) -> list[tuple[int, int]]:
    """Times with the lag then: just before each commit (but the first), just after it, and now."""
    found: list[tuple[int, int]] = []
    offset = None
    for commit in commits:
        end = appended.end_at(commit.at_ms, default=commit.offset)
        if offset is not None:
            found.append((commit.at_ms, max(end - offset, 0)))
        offset = commit.offset
        found.append((commit.at_ms, max(end - offset, 0)))
    assert offset is not None
    newest = appended.end_at(now_ms, default=offset)
    found.append((max(now_ms, found[-1][0]), max(newest - offset, 0)))
    return found


def _commits_of(history: Iterable[GroupLogEntry]) -> dict[TopicPartition, list[Commit]]:
    """The commits of each partition in the log's order; times that run back are raised."""
    found: dict[TopicPartition, list[Commit]] = {}
    latest_ms = 0
    for entry in history:
        latest_ms = max(latest_ms, entry.at_ms)
        undecided = entry.transaction is not None and entry.marker != "commit"
        for moved in () if undecided else entry.offsets:
            if moved.offset is not None:
                where = TopicPartition(moved.topic, moved.partition)
                found.setdefault(where, []).append(Commit(latest_ms, moved.offset))
    return found


def _scale(
    lines: Sequence[tuple[TopicPartition, list[tuple[int, int]]]], first_ms: int
) -> LagPicture:
    last_ms = max((points[-1][0] for _, points in lines), default=0)
    most = max((lag for _, points in lines for _, lag in points), default=0)
    per_ms = PICTURE_WIDTH / max(last_ms - first_ms, 1)
    per_record = PICTURE_HEIGHT / max(most, 1)
    curves = [
        Curve(
            str(where),
            " ".join(
                f"{(at_ms - first_ms) * per_ms:.1f},{PICTURE_HEIGHT - lag * per_record:.1f}"
                for at_ms, lag in points
            ),
            points[-1][1],
            max(lag for _, lag in points),
        )
        for where, points in lines
    ]
    return LagPicture(curves, first_ms, most)
