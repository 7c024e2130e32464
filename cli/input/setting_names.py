"""Shell completion of settings: their keys, and after ``=`` the values of those that are words."""

from __future__ import annotations

import typer


def complete_setting(ctx: typer.Context, incomplete: str) -> list[str]:
    """``KEY=VALUE``: of a store in the verbs of stores, else of a topic."""
    from txnlog.config import setting_choices

    choices = setting_choices("store" if " store " in f"{ctx.command_path} " else "topic")
    key, equals, _ = incomplete.partition("=")
    if not equals:
        return [f"{known}=" for known in choices]
    return [f"{key}={value}" for value in choices.get(key, ())]


def complete_key() -> list[str]:
    """``KEY`` of a topic's setting."""
    from txnlog.config import setting_choices

    return [*setting_choices("topic")]
