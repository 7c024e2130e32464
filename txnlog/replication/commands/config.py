"""``txnlog replicas config``: the settings of a store's replicas, and their changes."""

from __future__ import annotations

from typing import Annotated

import typer

from txnlog.cli.input.assignments import parse_settings
from txnlog.cli.input.options import DryRunOption
from txnlog.cli.output.confirmation import note_dry_run
from txnlog.cli.output.setting_fields import setting_fields
from txnlog.cli.session import Session
from txnlog.replication.commands.roots import open_roots


def configure_replicas(
    session: Session,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="The settings from now on.", show_default=False
        ),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Back to its default.", show_default=False),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Change settings of the replicas. If one is wrong, none is changed. Shows the settings.

    \b
    Example:
      txnlog replicas config
      txnlog replicas config min.insync.replicas=2
      txnlog replicas config --unset replica.auto.return --dry-run
    """
    changes = {**parse_settings(settings or []), **dict.fromkeys(unset or [])}
    replicas = open_roots(session)
    found = replicas.alter(changes, dry_run=dry_run or not changes)
    session.output.rows(setting_fields("store"), found)
    note_dry_run(dry_run)
