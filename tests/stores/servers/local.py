"""No server: a folder on the disk that the others have their data on, to compare them with."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.stores.servers import StoreServer

KNOWN_CLIENT = True


@contextmanager
def run(folder: Path) -> Iterator[StoreServer]:
    """A folder below ``folder``."""
    yield StoreServer("local", f"disk, {platform.system()}", str(folder / "stores"))
