"""``rclone serve s3`` over a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.stores.servers import StoreServer, free_port, go_install, listens, running
from tests.stores.servers.s3_buckets import BUCKET, KEY, SECRET, URL, options_for

VERSION = "1.76.0"
S3 = True
KNOWN_CLIENT = True


@contextmanager
def run(folder: Path) -> Iterator[StoreServer]:
    """Run it over a folder below ``folder``; a bucket is a folder in it."""
    program = go_install("github.com/rclone/rclone", f"v{VERSION}")
    (folder / "data" / BUCKET).mkdir(parents=True)
    port = free_port()
    command = [program, "serve", "s3", "--addr", f"127.0.0.1:{port}"]
    command += ["--auth-key", f"{KEY},{SECRET}", "--config", "", folder / "data"]
    with running(command, folder, ready=partial(listens, port)):
        yield StoreServer("rclone", VERSION, URL, options_for(port))
