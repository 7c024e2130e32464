"""Verbs that take something away ask first; what cannot be asked must be told by ``--yes``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from txnlog.cli.output.exits import FAILURE
from txnlog.cli.output.fields import harmless
from txnlog.cli.output.output import warn

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")
]


def require_consent(what: str, *, yes: bool) -> None:
    """Return if the user wants ``what`` to be done; else end the command.

    Raises BadParameter where nobody can be asked, typer.Exit if the answer is no.
    """
    if yes:
        return
    what = harmless(what)  # it has names in it
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise typer.BadParameter(
            f"this would {what}; without a terminal nobody can be asked: add --yes, or --dry-run "
            "to see what it does"
        )
    print(f"{what[0].upper()}{what[1:]}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        warn("nothing was changed")
        raise typer.Exit(FAILURE)


def tell_dry_run(dry_run: bool) -> None:
    """Say that nothing was changed, if that is so."""
    if dry_run:
        warn("dry run: nothing was changed")
