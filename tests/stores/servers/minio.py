"""MinIO, built from its Go module, over one folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.stores.servers import StoreServer, free_port, go_install, listens, running
from tests.stores.servers.s3_buckets import KEY, SECRET, URL, make_bucket, options_for

VERSION = "0.0.0-20260212201848-7aac2a2c5b7c"
S3 = True
KNOWN_CLIENT = True


@contextmanager
def run(folder: Path, port: int | None = None) -> Iterator[StoreServer]:
    """Run it over a folder below ``folder``; one that has been there goes on."""
    program = go_install("github.com/minio/minio", f"v{VERSION}")
    port, console = port or free_port(), free_port()
    command = [program, "server", "--address", f"127.0.0.1:{port}"]
    command += ["--console-address", f"127.0.0.1:{console}", folder / "data"]
    environment = {
        "MINIO_ROOT_USER": KEY,
        "MINIO_ROOT_PASSWORD": SECRET,
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
        "MINIO_CALLHOME_ENABLE": "off",
    }
    with running(command, folder, env=environment, ready=partial(listens, port)) as process:
        options = options_for(port)
        make_bucket(options)
        yield StoreServer("minio", VERSION.split("-")[1], URL, options, process=process)
