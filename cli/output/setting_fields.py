"""How verbs show settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnlog.cli.output.fields import Field, text

if TYPE_CHECKING:
    from txnlog.config import Setting


def setting_fields(owner: str) -> list[Field[Setting]]:
    """A setting's fields; ``owner`` names the object with its own value."""
    return [
        text("key", "KEY", lambda setting: setting.key),
        text("value", "VALUE", lambda setting: setting.value),
        text("default", "DEFAULT", lambda setting: setting.default, wide=True),
        text("source", "SOURCE", lambda setting: owner if setting.is_set else "default"),
        text("meaning", "MEANING", lambda setting: setting.meaning, wide=True),
    ]
