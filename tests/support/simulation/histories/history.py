"""What processes have done and seen, as each noted it down: operations with their two times.

A process appends a line to a file of its own before an operation (what it means to do) and one
after it (what it was told), so a kill leaves the first without the second. Times are nanoseconds of
the machine's monotonic clock, which all its processes share.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Shown = list[tuple[int, str]]
"""Offsets and values of one partition, as somebody has read them."""


@dataclass
class Taken:
    """What a consumer has taken of a partition: the records of the offsets ``[start, stop)``."""

    start: int
    stop: int
    values: list[str]


@dataclass
class Operation:
    """One operation. Partitions are called ``topic:number``; each value is written only once.

    * ``append``: ``writes``, without a transaction.
    * ``transaction``: ``writes``, and for ``group`` what it has ``taken``.
    * ``read``: what a snapshot of all topics has shown, at ``level``.
    * ``poll``: what a consumer without transactions has ``taken``; with a ``group`` it has
      committed that, too.
    * ``offsets``: what is committed for ``group``, after everything else.
    """

    process: str
    kind: str
    invoked: int
    returned: int | None = None
    outcome: str = "unknown"
    """``ok``, ``aborted`` (for certain), or ``unknown``."""
    writes: list[tuple[str, str]] = field(default_factory=list)
    group: str = ""
    taken: dict[str, Taken] = field(default_factory=dict)
    level: str = ""
    consistency: str = "none"
    """What the read has said of itself: ``instant``, ``causal``, ``atomic`` or ``none``."""
    shown: dict[str, Shown] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    is_final: bool = False
    """Read when everything else was over, and nothing was undecided any more."""

    def __str__(self) -> str:
        return f"{self.process}'s {self.kind} at {self.invoked}"

    @property
    def is_atomic(self) -> bool:
        """Whether it has said that it shows each transaction whole or not at all."""
        return self.consistency != "none"

    @property
    def over(self) -> float:
        """When it was over; infinite if nobody was told."""
        return float("inf") if self.returned is None or self.outcome == "unknown" else self.returned


class Notebook:
    """One process writes down what it does."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._number = -1

    def invoke(self, kind: str, **what: Any) -> int:
        """Note what is about to be done; its number."""
        self._number += 1
        self._note(number=self._number, kind=kind, **what)
        return self._number

    def result(self, number: int, outcome: str, **what: Any) -> None:
        """Note what became of it."""
        self._note(number=number, outcome=outcome, **what)

    def _note(self, **line: Any) -> None:
        os.write(self._file, json.dumps({"at": time.monotonic_ns(), **line}).encode() + b"\n")


def read_notebooks(paths: Iterable[Path]) -> list[Operation]:
    """All operations, by the time at which they began."""
    operations: list[Operation] = []
    for path in paths:
        begun: dict[int, Operation] = {}
        for line in path.read_text().splitlines():
            noted = json.loads(line)
            number, at = noted.pop("number"), noted.pop("at")
            if "kind" in noted:
                begun[number] = Operation(path.stem, noted.pop("kind"), at)
            else:
                begun[number].returned = at
            _fill(begun[number], noted)
        operations += begun.values()
    return sorted(operations, key=lambda operation: operation.invoked)


def _fill(operation: Operation, noted: dict[str, Any]) -> None:
    for name, value in noted.items():
        if name == "taken":
            operation.taken = {where: Taken(*of_one) for where, of_one in value.items()}
        elif name == "writes":
            operation.writes = [(where, written) for where, written in value]
        elif name == "shown":
            operation.shown = {
                where: [(offset, shown) for offset, shown in of_one]
                for where, of_one in value.items()
            }
        else:
            setattr(operation, name, value)
