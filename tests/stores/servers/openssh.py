"""OpenSSH's server with its SFTP subsystem, over a folder, for the user who runs it."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.stores.servers import CannotStart, StoreServer, free_port, listens, run_tool, running

_CONFIGURATION = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100
Subsystem sftp internal-sftp
"""


@contextmanager
def run(folder: Path) -> Iterator[StoreServer]:
    """Run it; the store's root is a folder below ``folder``."""
    program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if program is None:
        raise CannotStart("sshd is not installed: Debian's package is openssh-server")
    for name in ("host_key", "user_key"):
        run_tool(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name])
    port = free_port()
    (folder / "sshd_config").write_text(_CONFIGURATION.format(port=port, folder=folder))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # it will not start as root without
    key = (folder / "host_key.pub").read_text().split()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {key[0]} {key[1]}\n")
    (folder / "data").mkdir()
    options = {
        "username": getpass.getuser(),
        "client_keys": str(folder / "user_key"),
        "known_hosts": str(folder / "known_hosts"),
    }
    url = f"sftp://127.0.0.1:{port}{folder}/data"
    command = [program, "-D", "-e", "-f", folder / "sshd_config"]
    with running(command, folder, ready=partial(listens, port)):
        yield StoreServer("OpenSSH", _version(program), url, options)


def _version(program: str) -> str:
    said = subprocess.run([program, "-V"], capture_output=True, text=True, check=False).stderr
    found = re.search(r"OpenSSH_([0-9.p]+)", said)
    return found[1] if found else "unknown"
