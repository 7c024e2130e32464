"""How verbs show a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnlog.cli.output.escaping import Json, escape_text
from txnlog.cli.output.fields import Field, show_settings, show_time, text, time

if TYPE_CHECKING:
    from txnlog.standby.rounds import Round
    from txnlog.store import Store


def _get_config(store: Store) -> Json:
    return dict(store.config)


def _get_kind(store: Store) -> str:
    from txnlog.replicas.replicated_storage import find_replicated

    if find_replicated(store.storage) is not None:
        return "replicated"
    return "store" if _reached(store) is None else "standby"


def _reached(store: Store) -> Round | None:
    from txnlog.replication import Standby
    from txnlog.standby.standby_storage import find_shown

    return None if find_shown(store.storage) is None else Standby(store).reached()


def _get_source(store: Store) -> str | None:
    reached = _reached(store)
    return None if reached is None else reached.source


def _get_reached_ms(store: Store) -> int | None:
    reached = _reached(store)
    return None if reached is None else reached.reached_ms


def _show_kind(store: Store) -> str:
    reached = _reached(store)
    if reached is None:
        return _get_kind(store)
    return f"standby of {escape_text(reached.source)}, as of {show_time(reached.reached_ms)}"


STORE: list[Field[Store]] = [
    text("url", "STORE", lambda store: store.url),
    text("store_id", "STORE ID", lambda store: store.store_id),
    time("created_at_ms", "CREATED", lambda store: store.created_at_ms),
    Field("kind", "KIND", _get_kind, _show_kind),
    text("source", None, _get_source),
    time("reached_ms", None, _get_reached_ms),
    Field("config", "CONFIG", _get_config, lambda store: show_settings(store.config)),
]
