"""``txnlog replicas create``: empty or missing folders become the roots of one store."""

from __future__ import annotations

from typing import Annotated

import typer

from txnlog.cli.input.assignments import parse_settings
from txnlog.cli.input.options import SettingsOption
from txnlog.cli.output.store_fields import STORE
from txnlog.cli.session import Session


def create_replicas(
    session: Session,
    roots: Annotated[
        list[str],
        typer.Argument(metavar="ROOT ROOT...", help="Paths or URLs; the first one leads."),
    ],
    controller: Annotated[
        str,
        typer.Option(metavar="URL", help="Where it is recorded which roots are in sync."),
    ],
    config: SettingsOption = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="If the store exists, show it as it is.")
    ] = False,
) -> None:
    """Create a store on several roots, and show it.

    Each has a full copy. The controller is a folder of its own, best on something that does not
    fail with the roots. The store's settings are fixed then; `replicas config` changes those of its
    replicas.

    \b
    Example:
      txnlog replicas create /data/disk1/store /data/disk2/store \\
          --controller /data/control --config min.insync.replicas=1
    """
    at = session.at(roots[0])
    if not if_not_exists:
        at.refuse_existing()
    from txnlog.replication import open_replicas

    made = open_replicas(
        roots,
        controller=controller,
        create=True,
        storage_options=at.storage_options,
        config=parse_settings(config or ()),
    )
    with session.output.document() as document:
        document.fields(STORE, made.store)
