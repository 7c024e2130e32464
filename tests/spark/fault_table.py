"""The table of faults: each cell judged by its rows, and what Spark's tasks did meanwhile."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.spark.fault_matrix import (
    CELL,
    MAINTAINED,
    READS,
    RECORDS,
    event_logs,
    target,
    written,
)
from txnlog import Store
from txnlog.results import Outcome
from txnlog.state.segment import Rewritten
from txnlog.state.topic_entries import Append

SEGMENTS = (".log", ".parquet")
ENDS = {"Success": "done", "ExecutorLostFailure": "killed", "TaskKilled": "killed"}
"""What the end of an attempt is counted as; whatever else there is, as failed."""


@dataclass
class Judged:
    """A cell: what its topic holds, and what it cost.

    Attributes:
        left: segments that were uploaded, and are in no log.
        committed: how often something was placed in the topic.
        tasks: attempts of Spark's tasks: started, done, killed, failed.
    """

    path: str
    fault: str
    numbers: Counter[int]
    left: int
    committed: int
    said: str
    tasks: Counter[str] = field(default_factory=Counter)

    @property
    def rows(self) -> int:
        return self.numbers.total()

    @property
    def missing(self) -> int:
        return len(set(range(RECORDS)) - self.numbers.keys())

    @property
    def doubled(self) -> int:
        """Rows that are there more than once, or should not be there at all."""
        return self.rows - RECORDS + self.missing

    def __str__(self) -> str:
        counts = [f"{self.tasks[name]:{len(name)},}" for name in TASKS]
        counts += [f"{getattr(self, name):{len(name)},}" for name in COUNTS]
        return f"{self.path:17} {self.fault:14} {' '.join(counts)}  {self.said[:60]}"

    def check(self, store: Store) -> None:
        """All rows are there, each once, and nothing is left open."""
        topic = target(self.path, self.fault)
        assert self.said == "done", self.said
        assert (self.missing, self.doubled) == (0, 0)
        assert store.topics.describe(topic).open_transactions == ()
        if self.path in READS:
            assert store.groups.describe(topic).lag == 0


def judge(store: Store, path: str, fault: str, said: str) -> Judged:
    """Read a cell's topic, without Spark."""
    topic = target(path, fault)
    placed = [
        entry.entry
        for entry in store.topics.log(topic)
        if isinstance(entry.entry, Append | Rewritten) and Outcome.ABORT not in entry.outcomes
    ]
    known = {segment.stored.name for entry in placed for segment in entry.segments}
    found = {name for name, _ in store.storage.list_all(f"topics/{topic}/data")}
    files = {Path(name).name.removesuffix(".log") for name in found if name.endswith(SEGMENTS)}
    kind = Rewritten if path in MAINTAINED else Append
    committed = sum(isinstance(entry, kind) for entry in placed)
    return Judged(path, fault, Counter(written(store, topic)), len(files - known), committed, said)


def count_tasks(folder: Path) -> dict[str, Counter[str]]:
    """By the topics of cells, see :class:`Judged`: what Spark's event logs tell of their tasks."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for log in event_logs(folder).rglob("events_*"):
        stages: dict[int, str] = {}
        with log.open() as lines, suppress(json.JSONDecodeError):  # a driver may have been killed
            for line in lines:
                event = json.loads(line)
                kind = event["Event"]
                if kind == "SparkListenerStageSubmitted":
                    stages[event["Stage Info"]["Stage ID"]] = event["Properties"].get(CELL, "")
                elif kind == "SparkListenerTaskStart":
                    counts[stages[event["Stage ID"]]]["started"] += 1
                elif kind == "SparkListenerTaskEnd":
                    reason = event["Task End Reason"]["Reason"]
                    counts[stages[event["Stage ID"]]][ENDS.get(reason, "failed")] += 1
    return counts


COUNTS = ("left", "committed", "rows", "missing", "doubled")
TASKS = ("started", "killed", "failed")
HEADING = f"{'path':17} {'fault':14} {' '.join(TASKS)} {' '.join(COUNTS)}"


def table(judged: Sequence[Judged]) -> Iterator[str]:
    """A line for each fault in Markdown, and one for all."""
    by_fault: dict[str, list[Judged]] = {}
    for cell in judged:
        by_fault.setdefault(cell.fault, []).append(cell)
    yield f"| fault | cells | {' | '.join(TASKS)} | {' | '.join(COUNTS)} |"
    yield "|---" * (2 + len(TASKS) + len(COUNTS)) + "|"
    for fault, cells in (*by_fault.items(), ("all", judged)):
        tasks = sum((cell.tasks for cell in cells), Counter[str]())
        counts = [len(cells), *(tasks[name] for name in TASKS)]
        counts += [sum(getattr(cell, name) for cell in cells) for name in COUNTS]
        yield f"| {fault} | {' | '.join(f'{count:,}' for count in counts)} |"
