"""The options that every verb has: which store, how to reach it, how to print."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.config_file import CONFIG_VARIABLE, Settings, read_settings
from txnlog.cli.input.storage_options import parse_storage_options
from txnlog.cli.output.output import Output

if TYPE_CHECKING:
    from txnlog.store import Store

STORE_VARIABLE = "TXNLOG_STORE"


class Format(str, Enum):
    """How to print what a verb has found."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help=f"Path or URL of the store; without it the variable {STORE_VARIABLE}.",
        show_default=False,
    ),
]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="Option for the filesystem, as fsspec takes it; may be repeated. Never shown.",
        show_default=False,
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config-file",
        metavar="PATH",
        help=f"TOML with store, output, [storage_options]; without it {CONFIG_VARIABLE}.",
        show_default=False,
    ),
]
OutputOption = Annotated[
    Format | None,
    typer.Option(
        "--output",
        "-o",
        help="table for people, json one document, jsonl one JSON object a line. [default: table]",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class _Common:
    store: str | None = None
    storage_options: dict[str, str] = field(default_factory=dict)
    output: Format | None = None
    settings: Settings = field(default_factory=Settings)


def remember(
    ctx: typer.Context,
    store: str | None,
    storage_option: list[str] | None,
    config_file: Path | None,
    output: Format | None,
) -> None:
    """Keep the options that stood before the verb; those behind it overrule them."""
    named = os.environ.get(CONFIG_VARIABLE)
    path = config_file or (Path(named) if named else None)
    settings = Settings() if path is None else read_settings(path)
    ctx.obj = _Common(store, parse_storage_options(storage_option or ()), output, settings)


@dataclass(frozen=True, slots=True)
class Session:
    """One run of one verb: where it reads and where it prints."""

    url: str | None
    storage_options: dict[str, object]
    output: Output

    def open_store(self) -> Store:
        """Open the store. Raises BadParameter if none is named, and what ``txnlog.open`` raises."""
        if not self.url:
            raise typer.BadParameter(
                f"no store is named: give --store URL or set the variable {STORE_VARIABLE}; "
                "`txnlog demo` makes one to try"
            )
        import txnlog

        return txnlog.open(self.url, storage_options=self.storage_options)


def open_session(
    ctx: typer.Context,
    store: str | None,
    storage_option: list[str] | None,
    output: Format | None,
) -> Session:
    """Join the options from before and behind the verb with the environment."""
    common = ctx.obj if isinstance(ctx.obj, _Common) else _Common()
    settings = common.settings
    url = store or common.store or os.environ.get(STORE_VARIABLE) or settings.store
    named: dict[str, object] = {
        **common.storage_options,
        **parse_storage_options(storage_option or ()),
    }
    return Session(
        url,
        {**settings.storage_options, **named} if _is_remote(url) else named,
        _make_output(output or common.output or _known_format(settings.output) or Format.TABLE),
    )


def explicit_store(ctx: typer.Context, store: str | None) -> str | None:
    """The store that an option names; one of a variable or a file is not meant for trials."""
    common = ctx.obj if isinstance(ctx.obj, _Common) else _Common()
    return store or common.store


def _is_remote(url: str | None) -> bool:
    """Whether the options of a config file are for this store: a local path takes none."""
    return "://" in (url or "") and not (url or "").startswith(("file://", "memory://"))


def _known_format(output: str | None) -> Format | None:
    if output is not None and output not in [known.value for known in Format]:
        known_ones = ", ".join(known.value for known in Format)
        raise typer.BadParameter(f"config file: output {output!r} is not one of {known_ones}")
    return None if output is None else Format(output)


def _make_output(chosen: Format) -> Output:
    makers: dict[Format, Callable[[], Output]] = {
        Format.TABLE: _table_output,
        Format.JSON: _json_output,
        Format.JSONL: _jsonl_output,
    }
    return makers[chosen]()


def _table_output() -> Output:
    from txnlog.cli.output.tables import TableOutput

    return TableOutput()


def _json_output() -> Output:
    from txnlog.cli.output.json_output import JsonOutput

    return JsonOutput()


def _jsonl_output() -> Output:
    from txnlog.cli.output.json_output import JsonLinesOutput

    return JsonLinesOutput()
