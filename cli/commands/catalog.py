"""``txnlog catalog``: topics as the tables of a catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from txnlog.cli.output.streams import flush, write
from txnlog.cli.session import Session
from txnlog.cli.verbs import verb_group


def serve_catalog(
    session: Session,
    port: Annotated[int, typer.Option("--port", help="0: any free port.")] = 0,
    host: Annotated[
        str | None,
        typer.Option("--host", help="One that other machines reach needs --token-file."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="The token that clients show, in one line. Without it one is made up and printed.",
        ),
    ] = None,
) -> None:
    """Serve topics as Iceberg tables, until Ctrl-C. Prints the URL of the catalog.

    Spark, Trino, DuckDB and pyiceberg read topics by it, always as they are now: nothing is
    published, and no row of a Parquet file copied. Metadata is made when a table is asked for, and
    put into the store's folder tables/, from which `maintain` deletes it some days later. Engines
    reach the store's files by their own means. Tables are in the namespace `topics`.

    It speaks plain HTTP, at an address of this machine unless told: for others put it behind a
    proxy with TLS.

    \b
    Example:
      txnlog catalog serve --port 8181 --token-file token
    """
    from txnlog.errors import InvalidOption, how_to_install, require_package

    require_package("pyiceberg", "iceberg")
    try:
        import txnlog.ui.catalog.protocol  # noqa: F401 - with all that it needs
        from txnlog.ui.addresses import LOOPBACK
        from txnlog.ui.catalog.server import serve
    except ModuleNotFoundError as error:
        if error.name not in ("h11", "starlette", "uvicorn"):
            raise
        raise InvalidOption(
            f"{error.name} is not installed, which the catalog needs: {how_to_install('ui')}"
        ) from error

    def announce(url: str, token: str | None) -> None:
        write(url + "\n")
        if token is not None:
            write(f"token {token}\n")
        flush()

    serve(
        session.open_store(),
        announce=announce,
        port=port,
        host=LOOPBACK if host is None else host,
        token_file=token_file,
    )


app = verb_group({"serve": serve_catalog})
