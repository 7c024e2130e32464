"""A process that has imported what the command needs, and forks itself for each command.

    python command_server.py SOCKET

What it costs to load the libraries and to build the commands is paid once. Each command is still
a process of its own, with its own arguments, environment, pipes and end. Rich is not loaded before
the fork, because it looks at the environment then. Ends with its stdin.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import struct
import sys
import tempfile
import threading
from contextlib import suppress
from typing import NoReturn

import typer.main

MODULE = "txnlog.cli"
CODE = struct.Struct("i")
_COMPLETION = frozenset({"--install-completion", "--show-completion"})
LATE = ("pandas", "s3fs", "aiobotocore.session")


def load() -> None:
    """Import every module of the package but Spark's, and what is found out late.

    Typer looks for its adapters, Arrow for pandas, and s3fs for its signer, when first used.
    """
    waiting = ["txnlog"]
    while waiting:
        package = importlib.import_module(waiting.pop())
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if found.ispkg and found.name != "txnlog.spark":
                waiting.append(found.name)
            elif not found.ispkg and not found.name.endswith(".__main__"):
                importlib.import_module(found.name)
    with suppress(ImportError):
        importlib.import_module("typer._adapters")
    for late in LATE:
        importlib.import_module(late)
    build_commands()
    assert "rich" not in sys.modules
    gc.freeze()  # commands do not look through what they share


def build_commands() -> None:
    """Let Typer make its commands of the functions once: that is most of a short command's time.

    Not where it is asked about the shell's completion: it looks at the environment while it builds.
    """
    from txnlog.cli.app import app

    build = typer.main.get_command
    built = build(app)
    typer.main.get_command = lambda typer_instance: (
        build(typer_instance) if _COMPLETION.intersection(sys.argv) else built
    )


def serve(address: str) -> None:
    """Fork for each connection, and tell there how the command has ended, until stdin is closed."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    ended, note = os.pipe()
    os.set_blocking(ended, False)
    os.set_blocking(note, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(note)
    running: dict[int, socket.socket] = {}
    os.write(1, b"\n")
    with selectors.DefaultSelector() as selector:
        for source in (0, ended, listening):
            selector.register(source, selectors.EVENT_READ)
        while True:
            ready = [key.fd for key, _ in selector.select()]
            if 0 in ready:
                return
            if ended in ready:
                os.read(ended, 4096)
                tell_ends(running)
            if listening.fileno() in ready:
                connection, _ = listening.accept()
                running[start(connection)] = connection


def tell_ends(running: dict[int, socket.socket]) -> None:
    """Send the exit codes of those that have ended."""
    while running:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        with running.pop(child) as connection, suppress(BrokenPipeError):
            connection.sendall(CODE.pack(os.waitstatus_to_exitcode(status)))


def start(connection: socket.socket) -> int:
    """Fork a process that runs one command, and return its id."""
    size, files, _, _ = socket.recv_fds(connection, 4, 3)
    request = json.loads(connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection.close()
        for number, descriptor in enumerate(files):
            os.dup2(descriptor, number)
            os.close(descriptor)
        become(*request)
    for descriptor in files:
        os.close(descriptor)
    return child


def become(arguments: list[str], variables: dict[str, str], folder: str) -> NoReturn:
    """Be ``python -m txnlog.cli ARGUMENTS`` to the end of this process.

    The end is Python's, but for what it does to memory: to tidy up there is to copy it all.
    """
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    tempfile.tempdir = None  # a library has asked for it, in another environment
    sys.argv = [MODULE, *arguments]
    code = 0
    try:
        runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - said as Python says it
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    load()
    serve(sys.argv[1])
