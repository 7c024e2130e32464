"""How verbs show a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnlog.cli.output.escaping import Json
from txnlog.cli.output.fields import Field, show_settings, text, time

if TYPE_CHECKING:
    from txnlog.store import Store


def _get_config(store: Store) -> Json:
    return dict(store.config)


STORE: list[Field[Store]] = [
    text("url", "STORE", lambda store: store.url),
    text("store_id", "STORE ID", lambda store: store.store_id),
    time("created_at_ms", "CREATED", lambda store: store.created_at_ms),
    Field("config", "CONFIG", _get_config, lambda store: show_settings(store.config)),
]
