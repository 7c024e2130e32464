"""Lengths of time, as users type them."""

from __future__ import annotations

import re
from typing import Final

import typer

UNITS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_DURATION = re.compile(r"(?:\d{1,9}(?:ms|[smhd]))+", re.ASCII)
_PART = re.compile(r"(\d+)(ms|[smhd])", re.ASCII)


def is_duration(text: str) -> bool:
    """Whether ``text`` is a duration such as ``90s``, ``10m``, ``1h30m``, ``7d`` or ``500ms``."""
    return _DURATION.fullmatch(text) is not None


def parse_duration(text: str) -> int:
    """Milliseconds. Raises BadParameter."""
    if not is_duration(text):
        raise typer.BadParameter(
            f"{text!r} is not a length of time such as 500ms, 90s, 1h30m or 7d"
        )
    return sum(int(number) * UNITS_MS[unit] for number, unit in _PART.findall(text))
