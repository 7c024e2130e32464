"""Where a result was measured. No host names, no paths."""

from __future__ import annotations

import datetime as dt
import os
import platform
from importlib.metadata import PackageNotFoundError, version


def describe_machine() -> list[str]:
    """Lines of Markdown: date, cores, memory, load, versions."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(f"{name} {_version(name)}" for name in ("pyspark", "pyarrow", "numpy"))
    load = os.getloadavg()[0]
    today = dt.datetime.now(dt.UTC).date()
    return [
        f"- {today}, {os.cpu_count()} cores ({platform.machine()}), {memory:.0f} GiB of memory",
        f"- load average before: {load:.1f} (above 0.5 others were using the machine)",
        f"- {platform.system()}, Python {platform.python_version()}, {packages}",
    ]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "?"
