"""A process that has imported what the command needs, and forks itself for each command.

    python command_server.py SOCKET

What the libraries cost to load is paid once. Each command is still a process of its own, with its
own arguments, environment, pipes and end. Rich is not loaded before the fork, because it looks at
the environment then. Ends with its stdin.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import socket
import struct
import sys
from contextlib import suppress

MODULE = "txnlog.cli"
CODE = struct.Struct("i")


def load() -> None:
    """Import every module of the package but Spark's, and what Typer finds out late."""
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
    assert "rich" not in sys.modules
    gc.freeze()  # commands do not look through what they share


def serve(address: str) -> None:
    """Fork for each connection, until stdin is closed."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    os.write(1, b"\n")
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(listening, selectors.EVENT_READ)
        while True:
            ready = [key.fd for key, _ in selector.select()]
            if 0 in ready:
                return
            connection, _ = listening.accept()
            # Twice, so that the process between can wait for the command, and init for it.
            if os.fork() == 0:
                listening.close()
                if os.fork():
                    os._exit(0)
                break
            os.wait()
            connection.close()
    answer(connection)


def answer(connection: socket.socket) -> None:
    """Run one command in a child, and tell how it has ended."""
    size, files, _, _ = socket.recv_fds(connection, 4, 3)
    request = connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
    child = os.fork()
    if child == 0:
        connection.close()
        for number, descriptor in enumerate(files):
            os.dup2(descriptor, number)
            os.close(descriptor)
        become(*json.loads(request))
        return
    for descriptor in files:
        os.close(descriptor)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    connection.sendall(CODE.pack(code))
    os._exit(0)


def become(arguments: list[str], variables: dict[str, str], folder: str) -> None:
    """Be ``python -m txnlog.cli ARGUMENTS`` to the end of this process."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = [MODULE, *arguments]
    runpy.run_module(MODULE, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    load()
    serve(sys.argv[1])
