"""``txnlog ui``: a store in the browser."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from txnlog.cli.output.streams import flush, warn, write
from txnlog.cli.session import Session

PASSWORD_VARIABLE = "TXNLOG_UI_PASSWORD"  # noqa: S105 - the name of a variable


def serve_pages(
    session: Session,
    port: Annotated[int, typer.Option("--port", help="0: any free port.")] = 0,
    host: Annotated[
        str | None,
        typer.Option("--host", help="One that other machines reach needs a password, see below."),
    ] = None,
    public_names: Annotated[
        list[str] | None,
        typer.Option(
            "--public-host",
            metavar="NAME",
            help="What browsers call a proxy before it, with the port if that is not 443; "
            "repeat for more. Needs the password.",
        ),
    ] = None,
    allow_changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes", help="Pages can change the store; each change is a line on stderr."
        ),
    ] = False,
) -> None:
    """Show a store in the browser, until Ctrl-C. Prints the URL to open.

    The URL has a token, so that nobody else on this machine can look; keep it to yourself. With an
    address that other machines reach, pages ask for the password that the variable
    TXNLOG_UI_PASSWORD has, and go over the network as plain HTTP: put a proxy with TLS before it,
    and give its name with --public-host. Pages change nothing, except that
    looking at a topic ends transactions that are past their timeout, as every reader does.

    \b
    Example:
      txnlog ui --store s3://bucket/store
    """
    try:
        from txnlog.ui.server import serve
    except ModuleNotFoundError as error:
        if error.name not in ("h11", "jinja2", "starlette", "uvicorn"):
            raise
        from txnlog.errors import InvalidOption, how_to_install

        raise InvalidOption(
            f"{error.name} is not installed, which the pages need: {how_to_install('ui')}"
        ) from error

    def announce(url: str) -> None:
        write(url + "\n")
        flush()

    serve(
        session.open_store() if allow_changes else session.open_to_read(),
        announce=announce,
        port=port,
        host=host,
        password=os.environ.get(PASSWORD_VARIABLE),
        public_names=public_names or (),
        allow_changes=allow_changes,
        log=warn,
    )
