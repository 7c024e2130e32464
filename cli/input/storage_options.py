"""Options for filesystems and Kafka's client; those that are secrets are in no message."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from txnlog.cli.input.assignments import split_assignment
from txnlog.errors import InvalidOption

_SECRET = re.compile(r"key|secret|token|passw|credential|signature|sas", re.IGNORECASE)
_SHORTEST_ANYWHERE = 8
_secrets: list[str] = []


def parse_storage_options(options: Sequence[str], name: str = "--storage-option") -> dict[str, str]:
    """``KEY=VALUE`` options by key; the last one counts if a key is repeated. Raises BadParameter.

    Values stay strings: the library knows which ones are numbers or JSON.
    """
    parsed = {}
    for number, option in enumerate(options, start=1):
        assignment = split_assignment(option)
        if assignment is None:
            # The text may be a secret whose key was forgotten: it is not repeated.
            raise typer.BadParameter(f"{name} number {number} is not of the form KEY=VALUE")
        key, value = assignment
        parsed[key] = value
    keep_secret(parsed)
    return parsed


def keep_secret(options: Mapping[str, object]) -> None:
    """Redact these options' secrets, nested ones too, in every message."""
    for key, value in options.items():
        nested = _nested(value)
        if nested is not None:
            keep_secret(nested)
        elif _SECRET.search(key) and str(value):
            _secrets.append(str(value))


def _nested(value: object) -> Mapping[str, object] | None:
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, Mapping) else None


def redact(message: str) -> str:
    """``message`` without the secrets that this process was given.

    A short one is one only where it stands alone: ``me`` is in half of all words.
    """
    for secret in sorted(_secrets, key=len, reverse=True):
        pattern = re.escape(secret)
        if len(secret) < _SHORTEST_ANYWHERE:
            pattern = rf"(?<![^\W_]){pattern}(?![^\W_])"
        message = re.sub(pattern, "***", message)
    return message


KafkaOption = Annotated[
    list[str] | None,
    typer.Option("--kafka-option", metavar="KEY=VALUE", help="An option of librdkafka."),
]
KafkaConfigOption = Annotated[
    Path | None,
    typer.Option("--kafka-config", metavar="FILE", help="Such options, one a line: secrets."),
]


def parse_kafka_options(given: Sequence[str] | None, path: Path | None) -> Mapping[str, str]:
    """Options from the command line and a file; those on the command line win.

    Raises InvalidOption.
    """
    typed = parse_storage_options(given or (), "--kafka-option")
    return {**_read_config(path), **{key: str(value) for key, value in typed.items()}}


def _read_config(path: Path | None) -> dict[str, str]:
    """A file of options as Kafka's tools have it. Raises InvalidOption."""
    if path is None:
        return {}
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"--kafka-config {path}: {error}") from error
    found = {}
    for position, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith(("#", "!")):
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise InvalidOption(f"--kafka-config {path}: line {position} is not KEY=VALUE")
        found[key.strip()] = value.strip()
    return found
