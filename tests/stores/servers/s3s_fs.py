"""s3s-fs, which looks first and writes later: several writers win a race. It must be refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.stores.servers import StoreServer, cargo_install, free_port, listens, running
from tests.stores.servers.s3_buckets import BUCKET, KEY, SECRET, URL, options_for

VERSION = "0.14.1"
LIES = True


@contextmanager
def run(folder: Path) -> Iterator[StoreServer]:
    """Run it over a folder below ``folder``; a bucket is a folder in it."""
    program = cargo_install("s3s-fs", VERSION, features=["binary"]) / "s3s-fs"
    (folder / "data" / BUCKET).mkdir(parents=True)
    port = free_port()
    command = [program, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--access-key", KEY, "--secret-key", SECRET, folder / "data"]
    with running(command, folder, ready=partial(listens, port)):
        yield StoreServer("s3s-fs", VERSION, URL, options_for(port))
