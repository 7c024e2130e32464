"""Each partition of a history as operations on a list, judged by porcupine (``linearizable/``)."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.simulation.histories.checker import History
from tests.support.simulation.histories.history import Operation

PROGRAM = Path(__file__).parent / "linearizable"
FOREVER = 2**62
"""When an operation of unknown outcome was over, at the latest."""


def build_judge(folder: Path) -> Path:
    """The program, built into a folder. Needs Go, which fetches porcupine."""
    go = shutil.which("go")
    assert go is not None
    program = folder / "linearizable"
    subprocess.run([go, "build", "-o", program, "."], cwd=PROGRAM, check=True)
    return program


def verdicts(program: Path, operations: Sequence[Operation]) -> dict[str, str]:
    """By partition ``Ok``, ``Illegal`` or ``Unknown``."""
    given = json.dumps(_by_partition(History(operations)))
    said = subprocess.run([program], input=given, stdout=subprocess.PIPE, text=True, check=True)
    return dict(line.split() for line in said.stdout.splitlines())


def _by_partition(history: History) -> dict[str, list[dict[str, int]]]:
    """Appends of single records, and reads of everything that is placed.

    The place of an append is known from the end; what is left to find is an order of all that is
    possible in real time. What was never placed has not happened.
    """
    processes = {op.process: number for number, op in enumerate(history.operations)}
    found: dict[str, list[dict[str, int]]] = {}
    for where, shown in history.placed.items():
        found[where] = []
        for offset, value in shown:
            op = history.writer[value]
            found[where].append(
                {
                    "process": processes[op.process],
                    "call": op.invoked,
                    # What was aborted may still be placed by somebody who slept.
                    "return": int(op.over) if op.outcome == "ok" else FOREVER,
                    "at": offset,
                    "length": 1,
                }
            )
        for op in history.reads("read_uncommitted"):
            found[where].append(
                {
                    "process": processes[op.process],
                    "call": op.invoked,
                    "return": int(op.over),
                    "at": -1,
                    "length": op.ends.get(where, 0),
                }
            )
    return found
