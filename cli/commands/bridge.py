"""``txnlog bridge``: topics of a running Kafka, in or out, each record once."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.interrupts import stopping
from txnlog.cli.input.storage_options import (
    KafkaConfigOption,
    KafkaOption,
    parse_kafka_options,
)
from txnlog.cli.output.fields import Field, number, time
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.bridge import BridgeCommit

FIELDS: list[Field[BridgeCommit]] = [
    time("at_ms", "AT", lambda done: done.at_ms),
    number("record_count", "RECORDS", lambda done: done.record_count),
    number("lag", "LAG", lambda done: done.lag),
]


def run_bridge(
    session: Session,
    topics: Annotated[
        list[str],
        typer.Option("--topics", metavar="TOPIC,...", help="Which topics."),
    ],
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="kafka://HOST:PORT", help="Copy from this cluster."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--to", metavar="kafka://HOST:PORT", help="Copy to this cluster."),
    ] = None,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Under which positions are kept.")
    ] = "bridge",
    once: Annotated[
        bool, typer.Option("--once", help="Stop at the end, as it is when this begins.")
    ] = False,
    commit_interval_ms: Annotated[
        int,
        typer.Option(
            "--commit-interval-ms", min=1, max=300_000, help="How much is in a transaction."
        ),
    ] = 10_000,
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Go on behind records that were deleted uncopied.")
    ] = False,
    kafka_option: KafkaOption = None,
    kafka_config: KafkaConfigOption = None,
) -> None:
    """Copy topics from a running Kafka, or to it, each record once.

    It goes on until Ctrl-C, or with --once to the end. The records and the position of the
    bridge are committed together: in the store, or in Kafka's transactions. A second bridge of
    the same name takes over from the first one. A line is printed for each commit; LAG counts the
    offsets that are still to be read.

    \b
    Example:
      txnlog bridge --from kafka://broker:9092 --topics orders,paid --once
      txnlog bridge --to kafka://broker:9092 --topics orders
    """
    from txnlog.bridge import KafkaSink, KafkaSource

    if (source is None) == (target is None):
        raise typer.BadParameter("give --from or --to: which way the records go")
    kind = KafkaSource if source is not None else KafkaSink
    bridge = kind(
        session.open_store(),
        source or target or "",
        [topic for several in topics for topic in several.split(",")],
        name=name,
        options=parse_kafka_options(kafka_option, kafka_config),
        commit_interval_ms=commit_interval_ms,
        skip_lost=skip_lost,
    )
    commits: SimpleQueue[BridgeCommit | None] = SimpleQueue()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            bridge.run(until_end=once, report=commits.put, is_stopped=stop.is_set)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)
        finally:
            commits.put(None)

    stop = Event()
    with stopping(stop.set):
        running = Thread(target=run, daemon=True)
        running.start()
        try:
            session.output.rows(FIELDS, iter(commits.get, None), live=True)
        except KeyboardInterrupt:
            raise  # the second one: Kafka may be silent for long
        except BaseException:  # nobody reads the lines any more
            stop.set()
            running.join()
            raise
        running.join()
    if failures:
        raise failures[0]
