"""versitygw: an S3 gateway over a folder.

With its objects' attributes in extended attributes, as it is by default. With ``--sidecar`` an
object shows before its attributes are there: in some races who was refused found nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.stores.servers import StoreServer, free_port, go_install, listens, running
from tests.stores.servers.s3_buckets import KEY, SECRET, URL, make_bucket, options_for

VERSION = "1.8.0"
S3 = True


@contextmanager
def run(
    folder: Path, port: int | None = None, users: Mapping[str, str] | None = None
) -> Iterator[StoreServer]:
    """Run it over a folder below ``folder``; one that has been there goes on.

    ``users`` are access keys with their secrets: of accounts that may do what policies allow them.
    """
    program = go_install("github.com/versity/versitygw/cmd/versitygw", f"v{VERSION}")
    data = folder / "data"
    data.mkdir(exist_ok=True)
    port = port or free_port()
    command = [program, "--port", f"127.0.0.1:{port}", "--access", KEY, "--secret", SECRET]
    # Without it every request has a connection of its own.
    command += ["--keep-alive", "--quiet"]
    if users:
        accounts = {key: _account(key, secret) for key, secret in users.items()}
        (folder / "users.json").write_text(json.dumps({"accessAccounts": accounts}))
        command += ["--iam-dir", folder]
    command += ["posix", data]
    with running(command, folder, ready=partial(listens, port)) as process:
        options = options_for(port)
        make_bucket(options)
        yield StoreServer("versitygw", VERSION, URL, options, process=process)


def _account(key: str, secret: str) -> dict[str, object]:
    ids = dict.fromkeys(("userID", "groupID", "projectID"), 0)
    return {"access": key, "secret": secret, "role": "user", **ids}
