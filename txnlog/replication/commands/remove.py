"""``txnlog replicas remove``: a root is taken out, such as before its disk is exchanged."""

from __future__ import annotations

from typing import Annotated

import typer

from txnlog.cli.input.options import DryRunOption, YesOption
from txnlog.cli.output.confirmation import confirm, note_dry_run
from txnlog.cli.session import Session
from txnlog.replication.commands.roots import open_roots, print_set


def remove_replica(
    session: Session,
    root: Annotated[
        str, typer.Argument(metavar="ROOT", help="Its name, such as r1.", show_default=False)
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Copy nothing first: data may be at too few roots.")
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Take a root out of the set, and show the set. Nothing in the root is deleted.

    It stays out until `replicas add` brings it in. If it leads, another one in sync does from
    then on. Where replication.factor is set, data that too few others have is copied first.
    Asks first on a terminal; elsewhere it needs --yes.

    \b
    Example:
      txnlog replicas remove r1 --dry-run
      txnlog replicas remove r1 --yes
    """
    replicas = open_roots(session)
    planned = replicas.remove(root, force=force, dry_run=True)
    if not dry_run:
        before = replicas.describe()
        left = [one.root for one in before.replicas if one.state in ("leader", "in sync")]
        left = [name for name in left if name != root]
        what = f"take {root} out, which leaves {', '.join(left)} in sync"
        if len(left) < before.min_insync:
            what += f", fewer than min.insync.replicas ({before.min_insync}): writers would fail"
        if copied := sum(one.copied for one in planned):
            what += f", when {copied} data files are copied to others"
        confirm(what, yes=yes)
        replicas.remove(root, force=force)
    print_set(session.output, replicas.describe())
    note_dry_run(dry_run)
