"""``python scripts/compare_wheels.py A B``: fails unless two wheels hold the same files."""

from __future__ import annotations

import sys
from zipfile import ZipFile


def contents(path: str) -> dict[str, bytes]:
    """Every file of a wheel but the list of its checksums, which differs in order alone."""
    with ZipFile(path) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/RECORD")}


if __name__ == "__main__":
    first, second = map(contents, sys.argv[1:])
    different = sorted(
        name for name in first.keys() | second.keys() if first.get(name) != second.get(name)
    )
    if different:
        sys.exit(f"{sys.argv[1]} and {sys.argv[2]} differ: {', '.join(different)}")
