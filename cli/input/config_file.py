"""``--config-file`` and ``TXNLOG_CONFIG``: a store and how to reach it, kept off the command line.

    store = "s3://bucket/store"
    output = "table"

    [storage_options]
    endpoint_url = "https://s3.example.com"
    client_kwargs = { region_name = "eu-central-1" }

Messages name keys and never a value, which may be a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import typer

from txnlog.cli.input.storage_options import keep_secret

_MOST_BYTES: Final = 1 << 20
_KEYS: Final = ("store", "output", "storage_options")


@dataclass(frozen=True, slots=True)
class Settings:
    """The content of a file; everything is optional."""

    store: str | None = None
    output: str | None = None
    storage_options: Mapping[str, object] = field(default_factory=dict)


def read_settings(path: Path) -> Settings:
    """The settings in a TOML file. Raises BadParameter."""
    import tomllib  # most have no such file

    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise typer.BadParameter(f"config file {path} is larger than {_MOST_BYTES >> 20} MiB")
        found = tomllib.loads(content.decode())
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise typer.BadParameter(f"config file {path} cannot be read: {reason}") from None
    except ValueError as error:
        # tomllib's message gives the position, and repeats at most one character.
        raise typer.BadParameter(f"config file {path} is not TOML: {error}") from None
    except RecursionError:
        raise typer.BadParameter(f"config file {path} is nested too deeply") from None
    for key in found:
        if key not in _KEYS:
            raise typer.BadParameter(f"config file {path}: {key} is not one of {', '.join(_KEYS)}")
    options = found.get("storage_options", {})
    if not isinstance(options, dict):
        raise typer.BadParameter(f"config file {path}: storage_options must be a table")
    keep_secret(options)
    return Settings(_find_text(path, found, "store"), _find_text(path, found, "output"), options)


def _find_text(path: Path, found: Mapping[str, object], key: str) -> str | None:
    value = found.get(key)
    if value is not None and not isinstance(value, str):
        raise typer.BadParameter(f"config file {path}: {key} must be a string")
    return value
