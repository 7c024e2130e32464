"""Options for Kafka's client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from txnlog.cli.input.storage_options import parse_storage_options

KafkaOption = Annotated[
    list[str] | None,
    typer.Option("--kafka-option", metavar="KEY=VALUE", help="An option of librdkafka."),
]
KafkaConfigOption = Annotated[
    Path | None,
    typer.Option("--kafka-config", metavar="FILE", help="Such options, one a line: secrets."),
]


def parse_kafka_options(given: Sequence[str] | None, path: Path | None) -> Mapping[str, str]:
    """Those of a file and those that were typed, which come first. Raises InvalidOption."""
    typed = parse_storage_options(given or (), "--kafka-option")
    return {**_read_config(path), **{key: str(value) for key, value in typed.items()}}


def _read_config(path: Path | None) -> dict[str, str]:
    """A file of options as Kafka's tools have it. Raises InvalidOption."""
    from txnlog.errors import InvalidOption

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
