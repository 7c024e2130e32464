"""Real servers for tests: where they come from, and how they are started and stopped.

A module beside this one is one kind of server. Its ``run(folder)`` is a context manager that makes
what it needs, starts the server on free loopback ports with its data below ``folder``, yields a
:class:`StoreServer`, and stops it. :class:`CannotStart` is raised if it cannot be had here. Knows
processes, downloads and ports; nothing of any server.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fcntl import LOCK_EX, flock
from pathlib import Path

from txnlog.testing.conformance.races import ROUNDS

LISTENERS: list[Callable[[str], object]] = []
"""Are told what is waited for: a download, a build, a server that starts."""
BUILD_S = 900.0
"""So long a build may take: Go's and Rust's take minutes the first time."""


@dataclass(frozen=True)
class StoreServer:
    """A server that runs."""

    name: str
    version: str
    url: str
    """The root below which tests make folders, as ``s3://test``."""
    options: Mapping[str, object] = field(default_factory=dict)
    """The ``storage_options``."""
    slow: bool = False
    """A commit may take seconds: whoever tests with timeouts gives it longer ones."""
    cuts: bool = True
    """False: what a cut connection costs is too long to cut as many as elsewhere."""
    races: int = ROUNDS
    """Fewer where another one of these is a way to the same server."""
    process: subprocess.Popen[bytes] | None = None
    """What runs it, the first of its group, for tests that stop it."""


class CannotStart(Exception):
    """The server cannot be had here; the text says why."""


def tell(line: str) -> None:
    """Say what is waited for."""
    for listener in LISTENERS:
        listener(line)


def cache_folder() -> Path:
    """Where downloads and builds are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "txnlog-test-stores"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def building() -> Iterator[None]:
    """Only one build at a time, in whichever process: they take all cores and much memory."""
    with (cache_folder() / "build.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        yield


def run_tool(
    command: Sequence[object],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = BUILD_S,
    nice: bool = True,
) -> str:
    """What a tool that ships packages, or builds, has written to stdout.

    With ``nice`` whatever else runs on the machine goes first.

    Raises CannotStart: it is not installed, fails, or takes too long.
    """
    tool = str(command[0])
    if shutil.which(tool) is None:
        raise CannotStart(f"{Path(tool).name} is not installed")
    given = [str(word) for word in command]
    shown = " ".join(given[:3])  # what follows may hold keys
    begun_s = time.monotonic()
    tell(f"`{shown}` begins")
    try:
        done = subprocess.run(
            ["nice", "-n", "19", *given] if nice else given,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CannotStart(f"`{shown}` took more than {timeout_s:.0f} s") from error
    tell(f"`{shown}` has ended after {time.monotonic() - begun_s:.0f} s")
    if done.returncode:
        last = " / ".join(done.stderr.strip().splitlines()[-3:])
        raise CannotStart(f"`{shown}` failed: {last}")
    return done.stdout


def go_install(package: str, version: str) -> Path:
    """The program of a Go package, built once."""
    name = package.rpartition("/")[2]
    folder = cache_folder() / f"{name}-{version}"
    if not (folder / name).exists():
        with building():
            if not (folder / name).exists():
                run_tool(["go", "install", f"{package}@{version}"], env={"GOBIN": str(folder)})
    return folder / name


def cargo_install(crate: str, version: str, *, features: Sequence[str] = ()) -> Path:
    """The folder with the programs of a crate, built once."""
    folder = cache_folder() / f"{crate}-{version}"
    if not (folder / "bin").exists():
        chosen = ["--features", ",".join(features)] if features else []
        with building():
            if not (folder / "bin").exists():
                what: list[object] = [*chosen, "--root", folder, f"{crate}@{version}"]
                run_tool(["cargo", "install", "--locked", *what])
    return folder / "bin"


@contextmanager
def running(
    command: Sequence[object],
    folder: Path,
    *,
    ready: Callable[[], bool],
    env: Mapping[str, str] | None = None,
    patience_s: float = 60.0,
) -> Iterator[subprocess.Popen[bytes]]:
    """A server process in a group of its own, which is ended with the block.

    Args:
        command: what is started; its output goes to ``folder / "server.log"``.
        folder: its working directory.
        ready: whether it answers; errors are taken for no.
        env: more of the environment.
        patience_s: so long it may take until it answers.

    Raises CannotStart: it has ended, or does not answer.
    """
    log = folder / "server.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=folder,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    begun_s = time.monotonic()
    try:
        _wait_until(ready, process, patience_s, log)
        program = Path(str(command[0])).name
        tell(f"{program} in {folder.name} answers after {time.monotonic() - begun_s:.0f} s")
        yield process
    finally:
        _end_group(process)


def _wait_until(
    ready: Callable[[], bool], process: subprocess.Popen[bytes], patience_s: float, log: Path
) -> None:
    deadline = time.monotonic() + patience_s
    while True:
        with suppress(OSError):
            if ready():
                return
        if process.poll() is not None:
            last = " / ".join(log.read_text(errors="replace").strip().splitlines()[-3:])
            raise CannotStart(f"it ended with {process.returncode}: {last}")
        if time.monotonic() > deadline:
            raise CannotStart(f"it did not answer within {patience_s:.0f} s")
        time.sleep(0.05)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
    # What it has left behind in its group.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def listens(port: int) -> bool:
    """Whether somebody accepts connections there."""
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
