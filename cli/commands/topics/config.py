"""``txnlog topics config``: a topic's settings, under Kafka's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import typer

from txnlog.cli.input.assignments import parse_settings
from txnlog.cli.input.options import DryRunOption, TopicArgument, complete_setting
from txnlog.cli.output.confirmation import note_dry_run
from txnlog.cli.output.fields import Field, text
from txnlog.cli.output.store_fields import setting_fields
from txnlog.cli.session import Session
from txnlog.cli.verbs import verb_group


def _complete_key() -> list[str]:
    """``KEY`` of a topic's setting."""
    from txnlog.config import setting_choices

    return [*setting_choices("topic")]


@dataclass(frozen=True, slots=True)
class Change:
    """A setting before and after."""

    key: str
    before: str
    after: str


SETTINGS = setting_fields("topic")
CHANGES: list[Field[Change]] = [
    text("key", "KEY", lambda change: change.key),
    text("before", "BEFORE", lambda change: change.before),
    text("after", "AFTER", lambda change: change.after),
]


def get_config(
    session: Session,
    topic: TopicArgument,
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="Only these settings.", autocompletion=_complete_key),
    ] = None,
) -> None:
    """Show a topic's settings, all or some. Shows where they come from, too.

    \b
    Example:
      txnlog topics config get orders
      txnlog topics config get orders compression.type segment.bytes
    """
    described = session.open_to_read().topics.describe(topic)
    from txnlog.config import topic_settings

    session.output.rows(SETTINGS, topic_settings(described.config, keys or ()))


def set_config(
    session: Session,
    topic: TopicArgument,
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE",
            help="The settings from now on.",
            autocompletion=complete_setting,
        ),
    ],
    dry_run: DryRunOption = False,
) -> None:
    """Change settings of a topic, all of them or (if one is wrong) none.

    Settings of writing hold for what is written from now on. Retention, cleanup.policy,
    file.delete.delay.ms and message.timestamp.type hold for records that are there, too: what is
    too old then is deleted by writers and by `maintain`.

    \b
    Example:
      txnlog topics config set orders compression.type=zstd segment.bytes=67108864
    """
    changes = parse_settings(settings)
    _change(session, topic, changes, dry_run=dry_run)


def unset_config(
    session: Session,
    topic: TopicArgument,
    keys: Annotated[
        list[str],
        typer.Argument(metavar="KEY", help="Which settings.", autocompletion=_complete_key),
    ],
    dry_run: DryRunOption = False,
) -> None:
    """Take settings of a topic back to their defaults.

    These hold as what `set` sets: some of them for records that are there, too.

    \b
    Example:
      txnlog topics config unset orders compression.type
    """
    _change(session, topic, dict.fromkeys(keys), dry_run=dry_run)


def _change(
    session: Session, topic: str, changes: Mapping[str, str | None], *, dry_run: bool
) -> None:
    from txnlog.config import topic_setting

    opened = session.open_store(dry_run=dry_run)
    before = opened.topics.describe(topic).config
    after = opened.topics.alter(topic, config=changes, dry_run=dry_run).config
    session.output.rows(
        CHANGES,
        [Change(key, topic_setting(before, key), topic_setting(after, key)) for key in changes],
    )
    note_dry_run(dry_run)


app = verb_group(
    {"get": get_config, "set": set_config, "unset": unset_config},
    "Settings of a topic, with Kafka's names.",
)
