"""``txnlog replicas describe``: who leads, who is in sync, who is out, and how it came to be."""

from __future__ import annotations

from typing import Annotated

import typer

from txnlog.cli.output.exits import FAILURE
from txnlog.cli.output.streams import warn
from txnlog.cli.session import Session
from txnlog.replication.commands.roots import open_roots, print_set


def describe_replicas(
    session: Session,
    history: Annotated[
        bool, typer.Option("--history", help="The epochs, too: every change of the set, and why.")
    ] = False,
    lag: Annotated[
        bool, typer.Option("--lag", help="What all roots lack, too: lists them whole.")
    ] = False,
    logs: Annotated[
        bool, typer.Option("--logs", help="Each log's high watermark: lists all in sync whole.")
    ] = False,
) -> None:
    """Show the roots: who leads, who is in sync, who answers.

    CONDITION and ANSWER are explained in docs/REPLICAS.md, with what to do about each. BEHIND is
    what a root that copies, to come in, has not copied yet; with --lag also what others lack, and
    DIFFERING what they have in other sizes than the rest. OLD are incarnations, what
    a root had before it was put out; `replicas forget` deletes them. UNDER-REPLICATED, with --lag,
    are data files at fewer roots than replication.factor says; `replicas reassign` copies them,
    and those that are ONLY OUT: at a root that is out. These may have been deleted since, too.

    Exit code 1 if nothing can be read or acknowledged: offline, below minimum, no controller,
    outdated controller.

    \b
    Example:
      txnlog replicas describe --store /data/disk1/store
      txnlog replicas describe --history --lag -o json
    """
    replicas = open_roots(session)
    found = replicas.describe(with_lag=lag)
    epochs = replicas.history() if history else None
    offline = found.condition == "offline"
    print_set(
        session.output,
        found,
        epochs,
        replicas.watermarks() if logs and not offline else None,
    )
    if offline:
        warn("no root in sync answers: nothing can be read or written")
    elif found.condition == "no controller":
        warn(
            "the controller does not answer: everything can be read, nothing is acknowledged. If "
            "it is lost for good, `txnlog replicas recover` makes it anew"
        )
        if history:
            warn("the epochs are those that roots keep: under others nothing was written")
    elif found.condition == "outdated controller":
        warn(
            "a root has an epoch that the controller does not have: it was restored from a backup, "
            "or another one was made, and nothing above need be true. See docs/REPLICAS.md"
        )
    elif found.condition == "below minimum":
        warn(f"fewer than {found.min_insync} roots in sync answer: nothing is acknowledged")
    if found.condition not in ("whole", "degraded", "unknown"):
        raise typer.Exit(FAILURE)
