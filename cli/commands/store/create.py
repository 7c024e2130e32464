"""``txnlog store create``: an empty or missing folder becomes a store."""

from __future__ import annotations

from typing import Annotated

import typer

from txnlog.cli.input.assignments import parse_settings
from txnlog.cli.input.options import SettingsOption, UrlArgument
from txnlog.cli.output.store_fields import STORE
from txnlog.cli.session import Session


def create_store(
    session: Session,
    url: UrlArgument = None,
    config: SettingsOption = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="If the store exists, show it as it is.")
    ] = False,
) -> None:
    """Create a store in an empty or missing folder, and show it. Its settings are fixed then.

    On a server it first checks that of many writers that create a file only one succeeds: some
    hundred small requests, once.

    \b
    Example:
      txnlog store create /data/store
      txnlog store create s3://bucket/store --config log.cleanup.age.ms=3600000
    """
    settings = parse_settings(config or ())
    created = session.at(url).create_store(settings, if_not_exists=if_not_exists)
    with session.output.document() as document:
        document.fields(STORE, created)
