"""How much Python a piece of work runs: a measure that is the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any


def calls_of(work: Callable[[], object]) -> int:
    """How many functions of Python ``work`` calls."""
    count = 0

    def trace(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(trace)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def lines_of(work: Callable[[], object], module: ModuleType) -> int:
    """How many lines of a module ``work`` runs."""
    count = 0

    def trace(frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename == module.__file__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
