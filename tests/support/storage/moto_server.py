"""moto as an S3 server that keeps S3's promise; run as a program it prints its port and serves."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import BaseWSGIServer, make_server


def serving_s3(on_request: Callable[[Any], object]) -> BaseWSGIServer:
    """A server on a free loopback port, which calls ``on_request`` with each WSGI environment.

    moto checks the condition of a conditional PUT and writes afterwards, in several threads; S3
    does both as one. The lock makes moto keep S3's promise.
    """
    application = create_backend_app("s3")
    lock = threading.Lock()

    def one_by_one(environ: Any, start_response: Any) -> Iterable[bytes]:
        with lock:
            on_request(environ)
            return list(application(environ, start_response))

    return make_server("127.0.0.1", 0, one_by_one, threaded=True)


def options_of(port: int) -> dict[str, Any]:
    """Storage options that reach the server on this loopback port."""
    return {
        "key": "test",
        "secret": "test-secret",
        "endpoint_url": f"http://127.0.0.1:{port}",
        "client_kwargs": {"region_name": "us-east-1"},
    }


if __name__ == "__main__":
    server = serving_s3(lambda _: None)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()
