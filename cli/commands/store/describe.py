"""``txnlog store describe``: what a store is."""

from __future__ import annotations

from txnlog.cli.input.options import UrlArgument
from txnlog.cli.output.store_fields import STORE
from txnlog.cli.session import Session


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
