"""Arguments and options that more than one verb has."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import typer

STORE_VARIABLE: Final = "TXNLOG_STORE"
CONFIG_VARIABLE: Final = "TXNLOG_CONFIG"


def complete_setting(ctx: typer.Context, incomplete: str) -> list[str]:
    """``KEY=VALUE``: of a store in the verbs of stores, else of a topic."""
    from txnlog.config import setting_choices

    choices = setting_choices("store" if " store " in f"{ctx.command_path} " else "topic")
    key, equals, _ = incomplete.partition("=")
    if not equals:
        return [f"{known}=" for known in choices]
    return [f"{key}={value}" for value in choices.get(key, ())]


class Format(str, Enum):
    """The output format of a verb."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


class CodecName(str, Enum):
    """The codecs for records; not every record format has all of them."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


# -- of every verb -------------------------------------------------------------------------------

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help=f"Path or URL of the store; without it the variable {STORE_VARIABLE}.",
    ),
]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="Option for the filesystem, as fsspec takes it; may be repeated. Never shown.",
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config-file",
        metavar="PATH",
        help=f"TOML with store, output, [storage_options]; without it {CONFIG_VARIABLE}.",
    ),
]
OutputOption = Annotated[
    Format | None,
    typer.Option(
        "--output",
        "-o",
        help="table for people, json one document, jsonl one JSON object a line. [default: table]",
    ),
]

BytesOption = Annotated[
    bool, typer.Option("-b", "--bytes", help="Sizes in bytes on a terminal too, not in KiB, MiB.")
]

# -- of some verbs -------------------------------------------------------------------------------

SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="KEY=VALUE",
        help="A setting with Kafka's name; may be repeated.",
        autocompletion=complete_setting,
    ),
]
"""Settings of what is created. See ``parse_settings``."""
UrlArgument = Annotated[
    str | None,
    typer.Argument(metavar="[URL]", help="Path or URL of the store, instead of --store."),
]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]


def _complete_nothing() -> list[str]:
    return []


NewTopicArgument = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="The topic's name.", autocompletion=_complete_nothing),
]
"""A new topic's name, so the shell completes none."""
TargetArgument = Annotated[
    str, typer.Argument(metavar="TOPIC[:PARTITION]", help="A topic or one partition of it.")
]
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.")]
TransactionalIdArgument = Annotated[str, typer.Argument(metavar="ID", help="The transactional id.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")
]
IntervalOption = Annotated[
    float,
    typer.Option("--interval", metavar="SECONDS", min=0.05, max=86_400, help="How often to look."),
]
"""For verbs that run until they are stopped."""
CompressionOption = Annotated[
    CodecName | None,
    typer.Option("--compression", help="Instead of the topic's."),
]
FolderOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--folder-option",
        metavar="KEY=VALUE",
        help="Option for the filesystem of Kafka's folders; may be repeated. Never shown.",
    ),
]
