"""Converts storage options given as strings, as by Spark and command lines, for clients.

Knows types, and no option's meaning. Messages name options and never their values.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from txnlog.errors import InvalidOption

_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def parse_options(
    options: Mapping[str, object],
    *,
    nested: Collection[str] = (),
    booleans: Collection[str] = (),
    integers: Collection[str] = (),
    lists: Collection[str] = (),
) -> dict[str, Any]:
    """Options with strings converted by their names; other values stay as they are.

    Args:
        options: as they were given.
        nested: names of those that are JSON objects.
        booleans: names of those that are true or false.
        integers: names of those that are whole numbers.
        lists: names of those that are lists of texts, JSON ones, or a single text.

    Raises InvalidOption: a value cannot be read.
    """
    parsed: dict[str, Any] = {}
    for name, value in options.items():
        if name in nested:
            parsed[name] = _parse_nested(name, value)
        elif name in lists:
            parsed[name] = _parse_list(name, value)
        elif isinstance(value, str) and name in booleans:
            if value.strip().lower() not in _TRUTH:
                raise InvalidOption(f"storage option {name} must be true or false")
            parsed[name] = _TRUTH[value.strip().lower()]
        elif isinstance(value, str) and name in integers:
            if not value.strip().isdecimal():
                raise InvalidOption(f"storage option {name} must be a whole number")
            parsed[name] = int(value)
        else:
            parsed[name] = value
    return parsed


def _parse_nested(name: str, value: object) -> dict[str, Any]:
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, Mapping):
        raise InvalidOption(f"storage option {name} must be a JSON object")
    return dict(found)


def _parse_list(name: str, value: object) -> list[str]:
    found = value
    if isinstance(value, str):
        try:
            found = json.loads(value) if value.lstrip().startswith("[") else [value]
        except (ValueError, RecursionError):
            found = None
    if not isinstance(found, list | tuple) or not all(isinstance(one, str) for one in found):
        raise InvalidOption(f"storage option {name} must be a JSON list of texts")
    return [*found]
