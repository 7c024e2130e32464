"""``disk://``: a filesystem of fsspec that txnlog does not know, and other processes find too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem


class PlainDisk(LocalFileSystem):
    """The local disk; it does nothing without the option that a store must be opened with."""

    protocol = "disk"

    def __init__(self, *, Level: int = 0, password: str = "", **more: Any) -> None:  # noqa: N803
        super().__init__(**more)
        if (Level, password) != (7, "hunter2hunter2"):
            raise PermissionError("the options did not arrive")

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return LocalFileSystem._strip_protocol(str(path).removeprefix("disk://"))


def write_entry_point(folder: Path) -> None:
    """Make a folder that, on Python's path, tells fsspec of ``disk://``; this process knows it."""
    info = folder / "plain_disk-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plain-disk\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[fsspec.specs]\ndisk = {__name__}:PlainDisk\n")
    fsspec.register_implementation("disk", PlainDisk, clobber=True)
