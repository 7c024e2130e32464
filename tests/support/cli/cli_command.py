"""Runs the real command in a process of its own, as a user's shell would."""

from __future__ import annotations

import atexit
import fcntl
import functools
import json
import os
import pty
import selectors
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import txnlog
from tests.support.cli import command_server

FIRST_MS = 1_700_000_000_000
"""2023-11-14T22:13:20Z: the first record's time; each next one is a second later."""

COMMAND = [sys.executable, "-m", command_server.MODULE]
_TIMEOUT_S = 60
INTERRUPTIBLE = """
import signal, sys
import txnlog.cli

# A shell that runs the tests in the background has its children ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
print("ready", file=sys.stderr, flush=True)
txnlog.cli.main()
"""


@dataclass(frozen=True)
class Finished:
    """What a command left behind."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Stdout as one JSON document, of a command that did well and had nothing to say."""
        assert (self.code, self.err) == (0, ""), self
        return json.loads(self.out)

    def lines(self) -> list[str]:
        """Stdout, of a command that did well and had nothing to say."""
        assert (self.code, self.err) == (0, ""), self
        return self.out.splitlines()


def environment(**variables: str) -> dict[str, str]:
    """A plain environment in which the txnlog of this test run is imported."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("TXNLOG_STORE", "TXNLOG_DEBUG", "NO_COLOR", "COLUMNS", "FORCE_COLOR")
    }
    package = Path(txnlog.__file__).parent.parent
    return {**inherited, "PYTHONPATH": str(package), "PYTHONSAFEPATH": "1", **variables}


def cli_each(*commands: Sequence[object]) -> list[Finished]:
    """Run commands that do not depend on each other, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda arguments: cli(*arguments), commands))


def cli(
    *arguments: object, env: Mapping[str, str] | None = None, stdin: bytes | None = None
) -> Finished:
    """Run ``txnlog ARGUMENTS``. However it ends, it must not show a traceback.

    Stdin is a pipe with these bytes, or nothing at all.
    """
    given, variables = [*map(str, arguments)], env or {}
    run = _run if _read_at_start(variables) else _run_forked
    finished = run(given, environment(**variables), stdin)
    assert "Traceback" not in finished.err + finished.out, finished
    return finished


def _run(arguments: list[str], variables: dict[str, str], stdin: bytes | None) -> Finished:
    given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
    done = subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        env=variables,
        timeout=_TIMEOUT_S,
        check=False,
        **given,
    )
    return Finished(done.returncode, done.stdout.decode(), done.stderr.decode())


def _run_forked(arguments: list[str], variables: dict[str, str], stdin: bytes | None) -> Finished:
    """The same by a process that has loaded the libraries already: a fifth of the time."""
    reads, writes = zip(os.pipe(), os.pipe(), strict=True)
    source = os.open(os.devnull, os.O_RDONLY) if stdin is None else _pipe(stdin)
    with (
        _start_forked(arguments, variables, (source, *writes)) as server,
        selectors.DefaultSelector() as selector,
    ):
        said = {descriptor: bytearray() for descriptor in reads}
        for descriptor in reads:
            selector.register(descriptor, selectors.EVENT_READ)
        deadline = time.monotonic() + _TIMEOUT_S
        while selector.get_map():
            ready = selector.select(deadline - time.monotonic())
            assert ready, f"{arguments} has not ended"
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                said[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
                    os.close(key.fd)
        code = _exit_code(server)
    return Finished(code, *(bytes(said[descriptor]).decode() for descriptor in reads))


def _start_forked(
    arguments: list[str], variables: dict[str, str], files: Sequence[int]
) -> socket.socket:
    """Begin a command with these as stdin, stdout and stderr, which are closed here."""
    request = json.dumps([arguments, variables, str(Path.cwd())]).encode()
    server = socket.socket(socket.AF_UNIX)
    server.settimeout(_TIMEOUT_S)
    server.connect(server_address())
    socket.send_fds(server, [len(request).to_bytes(4, "big")], files)
    for descriptor in files:
        os.close(descriptor)
    server.sendall(request)
    return server


def _exit_code(server: socket.socket) -> int:
    """How the command ends that was begun there."""
    code: int
    [code] = command_server.CODE.unpack(server.recv(command_server.CODE.size))
    return code


def cli_on_terminal(
    *arguments: object,
    columns: int = 80,
    reply: str | None = None,
    meanwhile: Callable[[], object] | None = None,
    env: Mapping[str, str],
) -> tuple[int, str]:
    """Run ``txnlog ARGUMENTS`` on a terminal; its exit code, and all that is shown there.

    ``reply`` is what is typed; without it, stdin and stderr are not the terminal. ``meanwhile`` is
    done when the command has asked and waits for it.
    """
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    if reply is not None:
        files = [follower, os.dup(follower), os.dup(follower)]
    else:
        files = [os.open(os.devnull, os.O_RDONLY), follower, os.open(os.devnull, os.O_WRONLY)]
    given, variables = [*map(str, arguments)], environment(**env)
    if _read_at_start(env):
        stdin, stdout, stderr = files
        process = subprocess.Popen(
            [*COMMAND, *given], stdin=stdin, stdout=stdout, stderr=stderr, env=variables
        )
        for descriptor in files:
            os.close(descriptor)
        shown = _read_terminal(leader)
        return process.wait(_TIMEOUT_S), shown
    with _start_forked(given, variables, files) as server:
        if meanwhile is not None:
            asked = b""
            while not asked.endswith(b"[y/N] "):
                asked += os.read(leader, 1)
            meanwhile()
        if reply is not None:
            os.write(leader, f"{reply}\n".encode())
        shown = _read_terminal(leader)
        return _exit_code(server), shown


def _read_at_start(variables: Iterable[str]) -> bool:
    """Whether Python itself reads one of these, so that they must be there when it starts."""
    return any(name.startswith(("PYTHON", "LC_", "LANG")) for name in variables)


def _pipe(data: bytes) -> int:
    """The reading end of a pipe that these bytes come through, as far as they are read."""
    reading, writing = os.pipe()

    def feed() -> None:
        with suppress(BrokenPipeError), os.fdopen(writing, "wb", buffering=0) as end:
            left = memoryview(data)
            while left:
                left = left[end.write(left) :]

    threading.Thread(target=feed, daemon=True).start()
    return reading


@functools.cache
def server_address() -> str:
    """The address of this test process's own server, which ends with it."""
    folder = tempfile.mkdtemp()
    address = str(Path(folder) / "commands")
    process = subprocess.Popen(
        [sys.executable, command_server.__file__, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.read(1) == b"\n"
    process.stdout.close()

    def end(stdin: Any = process.stdin) -> None:
        stdin.close()
        process.wait()
        shutil.rmtree(folder)

    atexit.register(end)
    return address


def list_files(store: Path) -> dict[str, bytes]:
    """Every file of a store."""
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in store.rglob("*")
        if path.is_file()
    }


def list_offsets(found: Finished) -> list[tuple[int, int]]:
    """Where the records are that were printed."""
    return [(record["partition"], record["offset"]) for record in found.json()]


def list_group_offsets(store: Path, group: str = "etl") -> dict[tuple[str, int], int | None]:
    """Where a group is, by topic and partition."""
    found = txnlog.open(str(store)).groups.describe(group).offsets
    return {(at.topic, at.partition): at.offset for at in found}


def _read_terminal(leader: int) -> str:
    """All that is shown on a terminal of ours, up to its end; it is closed then."""
    shown = b""
    try:
        while chunk := os.read(leader, 65536):
            shown += chunk
    except OSError:  # Linux says so when the other end is closed
        pass
    os.close(leader)
    return shown.decode().replace("\r\n", "\n")
