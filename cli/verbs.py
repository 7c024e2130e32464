"""Groups of verbs, and the options that every verb has.

A verb is a function whose first parameter is its :class:`Session`; its others are its own
arguments and options. Verbs import the library inside their functions only, so that help costs
no more than typer itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter
from typing import Any, Concatenate, Final, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup

from txnlog.cli.completion import complete
from txnlog.cli.input.options import BytesOption, Format, OutputOption, StorageOptions, StoreOption
from txnlog.cli.input.value_options import VALUE_OPTIONS, ValueChoice
from txnlog.cli.session import Session, open_session

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


Verb: TypeAlias = Callable[Concatenate[Session, ...], None]

OWN_OUTPUT: Final = "file_output"
"""The parameter of a verb that takes the place of the common ``-o``."""
_VALUES: Final = "values"
"""The parameter of a verb that decodes values: it stands for the options that say how."""
_FIRST: Final = Parameter("ctx", Parameter.KEYWORD_ONLY, annotation=typer.Context)
_COMMON: Final = [
    Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    for name, default, annotation in (
        ("store", None, StoreOption),
        ("storage_option", None, StorageOptions),
        ("output", None, OutputOption),
        ("in_bytes", False, BytesOption),
    )
]


class _FileVerb(TyperCommand):
    """A verb with ``--from-file``, which says so if a file is given as an argument."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own
        ctx.allow_extra_args = True
        extra: list[str] = super().parse_args(ctx, args)
        if extra and not ctx.resilient_parsing:
            found = " ".join(extra)
            ctx.fail(f"Got unexpected extra argument(s) ({found}): name a file with --from-file")
        return extra


def verb_group(verbs: Mapping[str, Verb], help_text: str | None = None) -> typer.Typer:
    """The verbs of ``txnlog GROUP``, by name, in the order of its help; the root has its text."""
    group = typer.Typer(
        help=help_text, no_args_is_help=True, cls=AliasedGroup, rich_markup_mode=None
    )
    for name, verb in verbs.items():
        takes_file = "from_file" in inspect.signature(verb).parameters
        group.command(name, cls=_FileVerb if takes_file else None)(_with_session(verb))
    return group


def _with_session(verb: Verb) -> Callable[..., None]:
    """The verb with the common options after its own, called with the session they describe."""

    @wraps(verb)
    def run(
        ctx: typer.Context,
        store: str | None,
        storage_option: list[str] | None,
        in_bytes: bool,
        output: Format | None = None,
        **own: Any,  # noqa: ANN401 - whatever the verb takes
    ) -> None:
        if decodes:
            own[_VALUES] = ValueChoice.of(**{o.name: own.pop(o.name) for o in VALUE_OPTIONS})
        verb(open_session(ctx.obj, store, storage_option, output, in_bytes), **own)

    _, *own = inspect.signature(verb, eval_str=True).parameters.values()
    decodes = any(parameter.name == _VALUES for parameter in own)
    own = [o for p in own for o in (VALUE_OPTIONS if p.name == _VALUES else [p])]
    complete(own)
    named = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in own]
    # A verb that writes files has an option -o of its own, with more to choose from.
    replaced = {OWN_OUTPUT: "output"}
    taken = {replaced.get(parameter.name) for parameter in own}
    common = [parameter for parameter in _COMMON if parameter.name not in taken]
    # What typer reads; its annotations are evaluated already.
    run.__signature__ = inspect.Signature([_FIRST, *named, *common])  # type: ignore[attr-defined]
    run.__annotations__ = {}
    return run
