"""``txnlog tables``: topics as tables of a lakehouse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.storage_options import parse_storage_options
from txnlog.cli.output.fields import Field, number, text
from txnlog.cli.session import Session
from txnlog.cli.verbs import verb_group
from txnlog.errors import require_package

if TYPE_CHECKING:
    from txnlog.results import TablePublication
    from txnlog.store import Store

FIELDS: list[Field[TablePublication]] = [
    text("topic", "TOPIC", lambda done: done.topic),
    text("url", "TABLE", lambda done: done.url),
    number("version", "VERSION", lambda done: done.version),
    number("added_files", "ADDED", lambda done: done.added_files),
    number("removed_files", "REMOVED", lambda done: done.removed_files),
    number("copied_files", "COPIED", lambda done: done.copied_files),
]


def publish_table(
    session: Session,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Which topic.")],
    delta: Annotated[
        str | None, typer.Option("--delta", metavar="DIR", help="A Delta table in this folder.")
    ] = None,
    iceberg: Annotated[
        str | None,
        typer.Option("--iceberg", metavar="URI", help="An Iceberg table in the catalog there."),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option("--table", metavar="NAME", help="Iceberg: its name, as sales.flights."),
    ] = None,
    catalog: Annotated[
        str, typer.Option("--catalog", metavar="NAME", help="Iceberg: what the catalog is called.")
    ] = "default",
    location: Annotated[
        str | None,
        typer.Option("--location", metavar="DIR", help="Iceberg: the folder of a new table."),
    ] = None,
    table_option: Annotated[
        list[str] | None,
        typer.Option(
            "--table-option",
            metavar="KEY=VALUE",
            help="Option for the table's filesystem, or the catalog; may be repeated. Never shown.",
        ),
    ] = None,
) -> None:
    """Publish a topic as a table, or bring the table up to date. Its segments are Parquet files.

    The table refers to the topic's segments. Called again, it adds what has been committed since,
    and takes away what has been merged, compacted or deleted.

    \b
    Example:
      txnlog tables publish flights --delta /data/tables/flights
    """
    if (delta is None) == (iceberg is None):
        raise typer.BadParameter("give either --delta DIR or --iceberg URI")
    options = parse_storage_options(table_option or (), "--table-option")
    store = session.open_store()
    if delta is not None:
        if table is not None or location is not None:
            raise typer.BadParameter("--table and --location are for --iceberg")
        done = store.tables.publish_delta(topic, delta, storage_options=options)
    else:
        assert iceberg is not None
        if table is None:
            raise typer.BadParameter("--iceberg needs --table NAME, as sales.flights")
        done = _publish_iceberg(store, topic, {**options, "uri": iceberg}, catalog, table, location)
    with session.output.document() as document:
        document.fields(FIELDS, done)


def _publish_iceberg(
    store: Store,
    topic: str,
    properties: dict[str, str],
    catalog: str,
    table: str,
    location: str | None,
) -> TablePublication:
    require_package("pyiceberg", "iceberg")
    from txnlog.tables.iceberg import open_catalog

    opened = open_catalog(catalog, properties)
    return store.tables.publish_iceberg(topic, opened, table, location=location)


app = verb_group({"publish": publish_table})
