"""``txnlog groups translate``: a group goes on here where it is in a running Kafka, or back."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.kafka_options import KafkaConfigOption, KafkaOption, parse_kafka_options
from txnlog.cli.input.options import DryRunOption, GroupArgument, YesOption
from txnlog.cli.output.confirmation import confirm, note_dry_run
from txnlog.cli.output.fields import Field, number, text
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.bridge import TranslatedOffset

FIELDS: list[Field[TranslatedOffset]] = [
    text("topic", "TOPIC", lambda one: one.topic),
    number("partition", "PARTITION", lambda one: one.partition),
    number("source_offset", "READ TO", lambda one: one.source_offset),
    number("before", "BEFORE", lambda one: one.before),
    number("after", "AFTER", lambda one: one.after),
]


def translate_group(
    session: Session,
    group: GroupArgument,
    topics: Annotated[
        list[str],
        typer.Option("--topics", metavar="TOPIC,...", help="Which topics."),
    ],
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="kafka://HOST:PORT", help="It has read in this cluster."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--to", metavar="kafka://HOST:PORT", help="It is to go on in this cluster."),
    ] = None,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Of the bridge that has copied them.")
    ] = "bridge",
    force: Annotated[
        bool, typer.Option("--force", help="Even if the group has members, there or here.")
    ] = False,
    kafka_option: KafkaOption = None,
    kafka_config: KafkaConfigOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Move a group's offsets to where it is in Kafka, or back.

    With --from it goes on here where it is in that cluster, with --to there where it is here. The
    topics were copied by `txnlog bridge`, with the same --from or --to, and by nobody else.
    What the group has not read is compared with the copies, record by record; what is not the same
    is refused. All offsets move in one step. Asks first on a terminal, where the group has offsets
    already to where it goes; elsewhere it needs --yes.

    \b
    Example:
      txnlog groups translate etl --from kafka://broker:9092 --topics orders
      txnlog groups translate etl --to kafka://broker:9092 --topics orders
    """
    from txnlog.bridge import translate_offsets

    if (source is None) == (target is None):
        raise typer.BadParameter("give --from or --to: which way the group goes")
    translate = partial(
        translate_offsets,
        session.open_store(dry_run=dry_run),
        source or target or "",
        group,
        [topic for several in topics for topic in several.split(",")],
        back=target is not None,
        name=name,
        options=parse_kafka_options(kafka_option, kafka_config),
        force=force,
    )
    # Each time all that is unread is compared: once is enough for who need not be asked.
    moved = translate(dry_run=dry_run or not yes)
    if not dry_run and not yes:
        lost = sum(one.before not in (None, one.after) for one in moved)
        if lost:
            confirm(f"move {lost} offset(s) of group {group}", yes=yes)
        moved = translate()
    session.output.rows(FIELDS, moved)
    note_dry_run(dry_run)
