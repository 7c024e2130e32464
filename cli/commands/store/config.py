"""``txnlog store config``: a store's settings, fixed when it was created."""

from __future__ import annotations

from txnlog.cli.input.options import UrlArgument
from txnlog.cli.output.setting_fields import setting_fields
from txnlog.cli.session import Session


def show_config(session: Session, url: UrlArgument = None) -> None:
    """Show the settings of a store. They were fixed when it was created.

    \b
    Example:
      txnlog store config --store /data/store
    """
    opened = session.at(url).open_to_read()
    from txnlog.config import store_settings

    session.output.rows(setting_fields("store"), store_settings(opened.config))
