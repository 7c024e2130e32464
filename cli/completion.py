"""Shell completion from the store: names of topics, partitions, groups, transactional ids.

By the placeholder in help: every ``TOPIC`` completes topics. Quick or not at all: Tab takes at most
two seconds, and shows no errors.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stderr, suppress
from inspect import Parameter
from io import StringIO
from threading import Thread, Timer
from typing import Final, Literal, TypeAlias, get_args

import typer
from typer.models import ArgumentInfo, OptionInfo

from txnlog.cli.input.options import Format
from txnlog.cli.session import Session, open_session, read_root_options

Kind: TypeAlias = Literal["topics", "groups", "transactions"]

_WAIT_S: Final = 2.0
_LINGER_S: Final = 0.5
_READ_UP_TO: Final = 64
"""For up to this many names their logs are read, too: deleted ones have left theirs behind."""
_HARMLESS = re.compile(r"[A-Za-z0-9_./@+=:][A-Za-z0-9_./@+=:-]*", re.ASCII)
"""Shells evaluate what they are given here, and a name may be anything."""
_STATES: Final = (
    *("Empty", "Ongoing", "PrepareCommit", "PrepareAbort"),
    *("CompleteCommit", "CompleteAbort", "Dead"),
)


def complete(parameters: Iterable[Parameter]) -> None:
    """Enable completion for these parameters of a verb, by their placeholders."""
    for parameter in parameters:
        for info in get_args(parameter.annotation)[1:]:
            if isinstance(info, ArgumentInfo | OptionInfo) and info.autocompletion is None:
                info.autocompletion = _COMPLETERS.get(info.metavar or "")


def _complete_names(kind: Kind) -> Callable[[typer.Context], list[str]]:
    def complete_names(ctx: typer.Context) -> list[str]:
        return _look_up(ctx, lambda session, found: _find_names(session, kind, found))

    return complete_names


def _complete_targets(ctx: typer.Context, incomplete: str) -> list[str]:
    topic, colon, _ = incomplete.partition(":")
    if not colon:
        return _look_up(ctx, lambda session, found: _find_names(session, "topics", found))
    return _look_up(ctx, lambda session, found: _find_partitions(session, topic, found))


_COMPLETERS: Final[Mapping[str, Callable[..., list[str]]]] = {
    "TOPIC": _complete_names("topics"),
    "TOPIC[:PARTITION]": _complete_targets,
    "PATTERN": _complete_names("topics"),
    "GROUP": _complete_names("groups"),
    "ID": _complete_names("transactions"),
    "STATE": lambda: [*_STATES],
}


def _look_up(ctx: typer.Context, find: Callable[[Session, list[str]], None]) -> list[str]:
    """The names found within the time, if a store is given and can be opened."""
    found: list[str] = []

    def run() -> None:
        with suppress(BaseException):  # completion must not print errors
            find(_open(ctx), found)

    with redirect_stderr(StringIO()):
        looking = Thread(target=run, daemon=True)
        looking.start()
        looking.join(_WAIT_S)
    if looking.is_alive():
        # Libraries wait for their own threads when a process ends; the shell waits for nobody.
        last = Timer(_LINGER_S, _leave)
        last.daemon = True
        last.start()
    return [name for name in tuple(found) if _HARMLESS.fullmatch(name)]


def _leave() -> None:
    sys.stdout.flush()
    os._exit(0)


def _open(ctx: typer.Context) -> Session:
    before, behind = ctx.find_root().params, ctx.params
    root = read_root_options(
        before.get("store"), before.get("storage_option"), before.get("config_file"), None
    )
    return open_session(root, behind.get("store"), behind.get("storage_option"), Format.JSONL)


def _find_names(session: Session, kind: Kind, found: list[str]) -> None:
    from txnlog.log import named_folders

    listed = {
        "topics": named_folders.list_topics,
        "groups": named_folders.list_groups,
        "transactions": named_folders.list_transactional_ids,
    }
    store = session.open_to_read()
    found[:] = listed[kind](store.storage)
    if len(found) <= _READ_UP_TO and kind != "transactions":
        found[:] = store.topics.list() if kind == "topics" else store.groups.list()


def _find_partitions(session: Session, topic: str, found: list[str]) -> None:
    count = session.open_to_read().logs.topic_spec(topic).partitions
    found[:] = [f"{topic}:{number}" for number in range(count)]
