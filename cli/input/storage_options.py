"""Options for a filesystem: parsed here, and kept out of every message if they are secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import typer

_SECRET = re.compile(r"key|secret|token|passw|credential|signature|sas", re.IGNORECASE)
_secrets: list[str] = []


def parse_storage_options(
    options: Sequence[str], given_by: str = "--storage-option"
) -> dict[str, str]:
    """``KEY=VALUE`` options by key; of a key given twice the last one counts. Raises BadParameter.

    Values stay strings: the library knows which ones are numbers or JSON.
    """
    parsed = {}
    for number, option in enumerate(options, start=1):
        key, separator, value = option.partition("=")
        if not separator or not key:
            # What was given may be a secret whose key was forgotten: it is not repeated.
            raise typer.BadParameter(f"{given_by} number {number} is not of the form KEY=VALUE")
        parsed[key] = value
    keep_secret(parsed)
    return parsed


def keep_secret(options: Mapping[str, object]) -> None:
    """Have what sounds secret among these, also in what they hold, left out of every message."""
    for key, value in options.items():
        if isinstance(value, Mapping):
            keep_secret(value)
        elif _SECRET.search(key) and str(value):
            _secrets.append(str(value))


def redacted(message: str) -> str:
    """``message`` without the secrets that this process was given."""
    for secret in sorted(_secrets, key=len, reverse=True):
        message = message.replace(secret, "***")
    return message
