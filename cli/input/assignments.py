"""``KEY=VALUE`` and ``NAME=VALUE``, as options and arguments have them."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from txnlog.display import parse_setting


def split_assignment(text: str) -> tuple[str, str] | None:
    """Both sides of the first ``=``; None if there is none, or nothing before it."""
    key, separator, value = text.partition("=")
    return (key, value) if separator and key else None


def parse_pair(option: str, text: str, form: str) -> tuple[str, str]:
    """Both sides of ``NAME=SOMETHING``. Raises BadParameter."""
    assignment = split_assignment(text)
    if assignment is None:
        raise typer.BadParameter(f"{option} {text!r} is not of the form {form}")
    return assignment


def parse_settings(settings: Sequence[str]) -> dict[str, str]:
    """Settings by key, with times and sizes in words, ``7d`` or ``1 GiB``, as numbers.

    Raises BadParameter; the library checks keys and values.
    """
    parsed: dict[str, str] = {}
    for setting in settings:
        key, value = parse_pair("setting", setting, "KEY=VALUE")
        if key in parsed:
            raise typer.BadParameter(f"setting {key} is given twice")
        parsed[key] = parse_setting(value, key)
    return parsed


def parse_headers(headers: Sequence[str]) -> list[tuple[str, bytes | None]]:
    """Headers of a record, in their order. Raises BadParameter."""
    parsed: list[tuple[str, bytes | None]] = []
    for header in headers:
        name, value = parse_pair("--header", header, "NAME=VALUE")
        parsed.append((name, value.encode(errors="surrogateescape")))
    return parsed
