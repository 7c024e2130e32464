"""``KEY=VALUE`` and ``NAME=VALUE``, as options and arguments have them."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from txnlog.display import parse_setting


def split_assignment(text: str) -> tuple[str, str] | None:
    """Both sides of the first ``=``; None if there is none, or nothing before it."""
    key, separator, value = text.partition("=")
    return (key, value) if separator and key else None


def parse_settings(settings: Sequence[str]) -> dict[str, str]:
    """Settings by key, with times and sizes in words, ``7d`` or ``1 GiB``, as numbers.

    Raises BadParameter; the library checks keys and values.
    """
    parsed: dict[str, str] = {}
    for setting in settings:
        assignment = split_assignment(setting)
        if assignment is None:
            raise typer.BadParameter(f"setting {setting!r} is not of the form KEY=VALUE")
        key, value = assignment
        if key in parsed:
            raise typer.BadParameter(f"setting {key} is given twice")
        parsed[key] = parse_setting(value, key)
    return parsed


def parse_headers(headers: Sequence[str]) -> list[tuple[str, bytes | None]]:
    """Headers of a record, in their order. Raises BadParameter."""
    parsed: list[tuple[str, bytes | None]] = []
    for header in headers:
        assignment = split_assignment(header)
        if assignment is None:
            raise typer.BadParameter(f"--header {header!r} is not of the form NAME=VALUE")
        name, value = assignment
        parsed.append((name, value.encode(errors="surrogateescape")))
    return parsed
