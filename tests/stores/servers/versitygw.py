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
    folder: Path,
    port: int | None = None,
    users: Mapping[str, str] | None = None,
    role: str = "user",
) -> Iterator[StoreServer]:
    """Run it over a folder below ``folder``; one that has been there goes on.

    ``users`` are access keys with their secrets. Each may do what policies allow, or everything if
    its ``role`` is "admin".
    """
    program = go_install("github.com/versity/versitygw/cmd/versitygw", f"v{VERSION}")
    data = folder / "data"
    data.mkdir(exist_ok=True)
    port = port or free_port()
    command = [program, "--port", f"127.0.0.1:{port}", "--access", KEY, "--secret", SECRET]
    # Without it every request has a connection of its own.
    command += ["--keep-alive", "--quiet"]
    if users:
        write_accounts(folder, users, role)
        command += ["--iam-dir", folder, "--iam-cache-disable"]
    command += ["posix", data]
    with running(command, folder, ready=partial(listens, port)) as process:
        options = options_for(port)
        make_bucket(options)
        yield StoreServer("versitygw", VERSION, URL, options, process=process)


def write_accounts(folder: Path, users: Mapping[str, str], role: str) -> None:
    """Let the server that keeps its accounts in a folder know these, and no others."""
    ids = dict.fromkeys(("userID", "groupID", "projectID"), 0)
    accounts = {
        key: {"access": key, "secret": secret, "role": role, **ids} for key, secret in users.items()
    }
    new = folder / "users.new"
    new.write_text(json.dumps({"accessAccounts": accounts}))
    new.replace(folder / "users.json")
