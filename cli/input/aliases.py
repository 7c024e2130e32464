"""Aliases of verbs from other tools, which help does not list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from typer.core import TyperGroup

_EVERYWHERE: Final[Mapping[str, str]] = {
    "list": "ls",
    "show": "describe",
    "rm": "delete",
}
_OF_GROUPS: Final[Mapping[str, Mapping[str, str]]] = {
    "records": {"cat": "read", "consume": "read", "produce": "write"},
    "groups": {"reset": "seek", "reset-offsets": "seek"},
}
_OF_ROOT: Final[Mapping[str, tuple[str, str]]] = {
    "consume": ("records", "read"),
    "produce": ("records", "write"),
}


class AliasedGroup(TyperGroup):
    """A group of verbs that also takes their aliases."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - typer's own
        if cmd_name in self.commands:
            return super().get_command(ctx, cmd_name)
        own = _OF_GROUPS.get(self.name or "", {})
        meant = own.get(cmd_name) or _EVERYWHERE.get(cmd_name, "")
        return super().get_command(ctx, meant if meant in self.commands else cmd_name)


class AliasedRoot(AliasedGroup):
    """The root, where an alias may also mean a verb of a group."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - typer's own
        if cmd_name not in _OF_ROOT:
            return super().get_command(ctx, cmd_name)
        group, verb = _OF_ROOT[cmd_name]
        return self.get_command(ctx, group).commands[verb]
