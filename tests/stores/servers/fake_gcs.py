"""fake-gcs-server: Google Cloud Storage's JSON API over memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.request import Request, urlopen

from tests.stores.servers import StoreServer, free_port, go_install, listens, running

VERSION = "1.56.1"
_BUCKET = "test"


@contextmanager
def run(folder: Path) -> Iterator[StoreServer]:
    """Run it; its data is in memory."""
    program = go_install("github.com/fsouza/fake-gcs-server", f"v{VERSION}")
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [program, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    command += ["-backend", "memory", "-log-level", "warn", "-external-url", endpoint]
    with running(command, folder, ready=partial(listens, port)):
        body = json.dumps({"name": _BUCKET}).encode()
        headers = {"Content-Type": "application/json"}
        with urlopen(Request(f"{endpoint}/storage/v1/b?project=test", body, headers)):
            pass
        options = {"endpoint_url": endpoint, "token": "anon"}
        yield StoreServer("fake-gcs-server", VERSION, f"gs://{_BUCKET}", options)
