"""A server of somebody else's, which only writes down what it is asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    """The server as ``host:port``, and the paths and queries of the requests that it has got."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def parse_request(self) -> bool:  # whatever its method
            is_one = super().parse_request()
            asked.append(self.path)
            return is_one

        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
