"""Roots of a replicated store that are stopped and brought back: folders on disks, and S3 servers.

Each knows the ways in which it can go; what its users then meet is for them to find out.
"""

from __future__ import annotations

import os
import shutil
import signal
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.stores.servers import StoreServer, free_port

# A request to a server that stands still fails after some seconds, instead of a minute and a half.
_IMPATIENT = {"connect_timeout": 2, "read_timeout": 4, "retries": {"total_max_attempts": 1}}


class FailingRoot(ABC):
    """A root that can be stopped.

    Attributes:
        url: of a folder in it.
        options: its own storage options.
        ways: how it can be stopped.
    """

    url: str
    options: dict[str, Any]
    ways: tuple[str, ...]

    @abstractmethod
    def stop(self, way: str) -> None:
        """Make it fail from now on."""

    @abstractmethod
    def bring_back(self) -> None:
        """As it was."""

    @abstractmethod
    def end(self) -> None:
        """When the test is over."""


class DiskRoot(FailingRoot):
    """A folder that goes away; what it is on is not mounted, or is something else."""

    ways = ("not mounted", "gone", "no folder")

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._away = folder.with_name(f"{folder.name}-away")
        folder.mkdir()
        self.url, self.options = str(folder), {}

    def stop(self, way: str) -> None:
        self._folder.rename(self._away)
        if way == "not mounted":
            self._folder.mkdir()  # where it is mounted usually
        elif way == "no folder":
            self._folder.touch()  # every request fails with an error of the operating system

    def bring_back(self) -> None:
        if self._folder.is_dir():
            shutil.rmtree(self._folder)
        self._folder.unlink(missing_ok=True)
        self._away.rename(self._folder)

    def end(self) -> None:
        """Nothing to do."""


class ServerRoot(FailingRoot):
    """A folder on an S3 server, which is killed, or stands still, and goes on with its data."""

    ways = ("killed", "stands still")

    def __init__(self, kind: str, folder: Path) -> None:
        folder.mkdir()
        self._module = import_module(f"tests.stores.servers.{kind}")
        self._where = (folder, free_port())
        self._start()
        # Each with a name of its own: all servers have the same bucket.
        self.url = f"{self.server.url}/{folder.name}"
        self.options = {**self.server.options, "config_kwargs": _IMPATIENT}

    def _start(self) -> None:
        self._running: AbstractContextManager[StoreServer] = self._module.run(*self._where)
        self.server = self._running.__enter__()

    def stop(self, way: str) -> None:
        process = self.server.process
        assert process is not None
        self._killed = way == "killed"
        os.killpg(process.pid, signal.SIGKILL if self._killed else signal.SIGSTOP)
        if self._killed:
            process.wait()

    def bring_back(self) -> None:
        assert self.server.process is not None
        if self._killed:
            self.end()
            self._start()
        else:
            os.killpg(self.server.process.pid, signal.SIGCONT)

    def end(self) -> None:
        self._running.__exit__(None, None, None)
