"""Clients that are made of what the environment says, and kept for who finds it as it was.

fsspec keeps each filesystem by its arguments alone, so who opens a store after the environment has
changed would work with the former account. Knows no service.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_INSTANCES_KEPT = 16
"""fsspec keeps every instance, for stores that are opened alike. A process whose keys are renewed
every hour keeps the newest ones; whoever has another may go on with it."""


def surroundings(prefixes: tuple[str, ...], files: Mapping[str, str]) -> str:
    """A digest of what a client takes from the environment and the user's files, as it is now.

    Its variables begin with ``prefixes``. ``files`` are variables that name files, and where these
    are without them.
    """
    found: list[object] = []
    found += sorted(item for item in os.environ.items() if item[0].startswith(prefixes))
    for variable, usual in files.items():
        path = Path(os.environ.get(variable) or usual)
        try:
            about = path.expanduser().stat()
        except (OSError, RuntimeError):
            continue
        found.append((str(path), about.st_ino, about.st_size, about.st_mtime_ns))
    return hashlib.sha256(repr(found).encode(errors="surrogateescape")).hexdigest()


class KeptBySurroundings:
    """The first base of a filesystem of fsspec's that is kept by ``made_in``, too."""

    _cache: dict[str, Any]

    def __init__(self, *args: Any, made_in: str = "", **options: Any) -> None:  # noqa: ARG002
        super().__init__(*args, **options)
        for token in list(self._cache)[: 1 - _INSTANCES_KEPT]:
            self._cache.pop(token, None)
