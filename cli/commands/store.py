"""``txnlog store``: make a store, and see what it is."""

from __future__ import annotations

from typing import Annotated

import typer

from txnlog.cli.input.assignments import parse_settings
from txnlog.cli.input.options import SettingsOption, UrlArgument
from txnlog.cli.output.store_fields import STORE, setting_fields
from txnlog.cli.session import Session
from txnlog.cli.verbs import verb_group


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


def describe_store(session: Session, url: UrlArgument = None) -> None:
    """Show where a store is, its id, its age and changed settings.

    `store config` shows all settings, `topics ls`, `groups ls` and `txns ls` what is in it,
    `doctor` whether it is sound.

    \b
    Example:
      txnlog store describe --store /data/store
    """
    with session.output.document() as document:
        document.fields(STORE, session.at(url).open_to_read())


def show_config(session: Session, url: UrlArgument = None) -> None:
    """Show the settings of a store. They were fixed when it was created.

    \b
    Example:
      txnlog store config --store /data/store
    """
    opened = session.at(url).open_to_read()
    from txnlog.config import store_settings

    session.output.rows(setting_fields("store"), store_settings(opened.config))


app = verb_group(
    {
        "create": create_store,
        "describe": describe_store,
        "config": show_config,
    },
)
