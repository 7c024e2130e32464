"""``--storage-option KEY=VALUE``: parsed here, and kept out of every message if it is a secret."""

from __future__ import annotations

import re
from collections.abc import Sequence

import typer

_SECRET = re.compile(r"key|secret|token|passw|credential|signature|sas", re.IGNORECASE)
_secrets: list[str] = []


def parse_storage_options(options: Sequence[str]) -> dict[str, str]:
    """Options by key; of a key given twice the last one counts. Raises BadParameter.

    Values stay strings: the library knows which ones are numbers or JSON.
    """
    parsed = {}
    for number, option in enumerate(options, start=1):
        key, separator, value = option.partition("=")
        if not separator or not key:
            # What was given may be a secret whose key was forgotten: it is not repeated.
            raise typer.BadParameter(
                f"--storage-option number {number} is not of the form KEY=VALUE"
            )
        if _SECRET.search(key) and value:
            _secrets.append(value)
        parsed[key] = value
    return parsed


def redacted(message: str) -> str:
    """``message`` without the secrets that this process was given."""
    for secret in sorted(_secrets, key=len, reverse=True):
        message = message.replace(secret, "***")
    return message
