"""Writes data to stdout, and messages to stderr."""

from __future__ import annotations

import sys

from txnlog.cli.input.storage_options import redact
from txnlog.cli.output.escaping import escape_controls
from txnlog.cli.output.exits import OutputClosed


def write(data: str) -> None:
    """Write to stdout. Raises OutputClosed when nobody reads on."""
    try:
        sys.stdout.write(data)
    except BrokenPipeError:
        raise OutputClosed from None


def write_bytes(data: bytes) -> None:
    """Write bytes of the user's own to stdout. Raises OutputClosed when nobody reads on."""
    try:
        sys.stdout.buffer.write(data)
    except BrokenPipeError:
        raise OutputClosed from None


def flush() -> None:
    """Flush: a closed pipe or a full disk is noticed here. Raises OutputClosed."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise OutputClosed from None


def warn(message: str) -> None:
    """A message for people, kept out of the data."""
    print("txnlog: " + escape_controls(redact(message)), file=sys.stderr)
