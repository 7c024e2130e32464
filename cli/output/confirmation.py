"""Destructive verbs ask first; without a terminal they need ``--yes``."""

from __future__ import annotations

import sys

import typer

from txnlog.cli.output.escape import escape_controls
from txnlog.cli.output.streams import FAILURE, warn


def confirm(what: str, *, yes: bool) -> None:
    """Return if the user confirms ``what``; else end the command.

    Raises BadParameter without a terminal, typer.Exit if the answer is no.
    """
    if yes:
        return
    what = escape_controls(what)  # it has names in it
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise typer.BadParameter(
            f"this would {what}; without a terminal nobody can be asked: add --yes, or --dry-run "
            "to see what it does"
        )
    print(f"{what[0].upper()}{what[1:]}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        warn("nothing was changed")
        raise typer.Exit(FAILURE)


def note_dry_run(dry_run: bool) -> None:
    """Print that nothing was changed, if so."""
    if dry_run:
        warn("dry run: nothing was changed")
