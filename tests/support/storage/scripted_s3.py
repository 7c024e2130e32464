"""A server that gives the answers of a script, and an S3 storage on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from txnlog.storage.adapters.s3 import S3Storage

KEY, SECRET, TOKEN = "AKIASECRETKEYID", "hunter2/hunter2+hunter2", "token-of-a-session"


class Scripted(BaseHTTPRequestHandler):
    """Gives the answers of a script, the last one for ever. Remembers what was asked."""

    protocol_version = "HTTP/1.1"
    script: list[Callable[[Scripted], None]]
    asked: list[str]

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.asked.append(self.command)
        self.script[min(len(self.asked), len(self.script)) - 1](self)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815 - the base class's names

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


def error(status: int, code: str) -> Callable[[Scripted], None]:
    """An answer as S3 gives it."""

    def answer(handler: Scripted) -> None:
        body = f"<Error><Code>{code}</Code><Message>told so</Message></Error>".encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def success(handler: Scripted) -> None:
    """An empty object, or a PUT that worked."""
    handler.send_response(200)
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def half_a_body(handler: Scripted) -> None:
    """The connection breaks within an object."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100")
    handler.end_headers()
    handler.wfile.write(b"half")
    handler.close_connection = True


def hang_up(handler: Scripted) -> None:
    """The connection breaks before an answer."""
    handler.close_connection = True


@contextmanager
def run_server(server: Any, port: int) -> Iterator[str]:
    """Serve until the block ends; yields the URL."""
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def scripted_server(
    *script: Callable[[Scripted], None], **options: object
) -> Iterator[tuple[S3Storage, list[str]]]:
    """A storage on a server that answers by the script, and what was asked of it."""
    asked: list[str] = []
    handler = type("Script", (Scripted,), {"script": list(script), "asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with run_server(server, server.server_port) as endpoint:
        storage = S3Storage(
            "bucket/store",
            {
                "key": KEY,
                "secret": SECRET,
                "token": TOKEN,
                "endpoint_url": endpoint,
                "client_kwargs": {"region_name": "us-east-1"},
                "config_kwargs": {"retries": {"total_max_attempts": 1}},
                **options,
            },
        )
        storage.trust()  # it knows its script alone
        yield storage, asked
