"""How verbs show a store, and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnlog.cli.output.escape import Json, escape_text
from txnlog.cli.output.fields import Field, show_settings, show_time, text, time

if TYPE_CHECKING:
    from txnlog.config import Setting
    from txnlog.store import Store


def _get_config(store: Store) -> Json:
    return dict(store.config)


def _get_source(store: Store) -> str | None:
    shown = store.storage.as_of()
    return None if shown is None else shown.source


def _get_reached_ms(store: Store) -> int | None:
    shown = store.storage.as_of()
    return None if shown is None else shown.reached_ms


def _show_kind(store: Store) -> str:
    shown = store.storage.as_of()
    if shown is None:
        return store.storage.kind()
    return f"standby of {escape_text(shown.source)}, as of {show_time(shown.reached_ms)}"


STORE: list[Field[Store]] = [
    text("url", "STORE", lambda store: store.url),
    text("store_id", "STORE ID", lambda store: store.store_id),
    time("created_at_ms", "CREATED", lambda store: store.created_at_ms),
    Field("kind", "KIND", lambda store: store.storage.kind(), _show_kind),
    text("source", None, _get_source),
    time("reached_ms", None, _get_reached_ms),
    Field("config", "CONFIG", _get_config, lambda store: show_settings(store.config)),
]


def setting_fields(owner: str) -> list[Field[Setting]]:
    """A setting's fields; ``owner`` names the object with its own value."""
    return [
        text("key", "KEY", lambda setting: setting.key),
        text("value", "VALUE", lambda setting: setting.value),
        text("default", "DEFAULT", lambda setting: setting.default, wide=True),
        text("source", "SOURCE", lambda setting: owner if setting.is_set else "default"),
        text("meaning", "MEANING", lambda setting: setting.meaning, wide=True),
    ]
