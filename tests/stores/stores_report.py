"""What was measured of servers, as benchmarks/STORES.md: a section for each, newest figures only.

The sections of servers that did not run stay as they are. Of a narrowed run each figure takes the
place of the older one, with its own date.
"""

from __future__ import annotations

import datetime as dt
import os
import platform
import re
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.stores.servers import StoreServer

REPORT = Path(__file__).parents[2] / "benchmarks" / "STORES.md"
_HEAD = """# Filesystems and servers

Measured by `make test-stores`, which starts each server on the machine of the tests, with its data
on a local disk: what they share is the machine, so the figures compare adapters and protocols, not
services. docs/STORAGE.md says what they mean.
"""
_CLIENTS = ("s3fs", "aiobotocore", "gcsfs", "adlfs", "hdfs-native", "asyncssh", "deltalake")


@dataclass
class Report:
    """Rows by server, what did not run, and why."""

    rows: dict[str, dict[str, str]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    """Servers of which a test has failed: their older figures stay."""
    versions: dict[str, str] = field(default_factory=dict)
    not_measured: dict[str, list[str]] = field(default_factory=dict)
    """By server, what has an older figure in the file, which stays."""

    def begin(self, server: StoreServer) -> None:
        """A server runs."""
        self.rows.setdefault(server.name, {})
        self.versions[server.name] = server.version

    def add(self, server: StoreServer, what: str, figure: object) -> None:
        """Something was measured."""
        self.rows[server.name][what] = str(figure)

    def merge(self, other: Report) -> None:
        """Take what another process has measured, of other servers."""
        self.rows.update(other.rows)
        self.missing.update(other.missing)
        self.failed += other.failed
        self.versions.update(other.versions)

    def summary(self) -> list[str]:
        """For people, at the end of a run."""
        lines = [
            f"{name} {self.versions[name]}: {len(rows)} figures" for name, rows in self.rows.items()
        ]
        lines += [
            f"{name}: a test has failed, older figures stay" for name in sorted(set(self.failed))
        ]
        lines += [
            f"{name}: older figures stay for {', '.join(what)}"
            for name, what in self.not_measured.items()
        ]
        return [*lines, *(f"{name} did not run: {why}" for name, why in self.missing.items())]

    def write(self, path: Path = REPORT) -> None:
        """Put the sections of what was measured in place of older ones."""
        measured = {name: rows for name, rows in self.rows.items() if name not in self.failed}
        if not any(measured.values()):
            return
        text = path.read_text() if path.exists() else ""
        sections = {
            part.partition("\n")[0].split()[0]: part.strip()
            for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]
        }
        for name, rows in measured.items():
            section = sections.get(name, "")
            # Figures of another version are no longer this server's.
            same = section.startswith(f"{name} {self.versions[name]}\n")
            before = _measured_before(section) if same else {}
            left_out = before.keys() - rows.keys()
            if rows and left_out:
                self.not_measured[name] = sorted(left_out)
                head, _, _ = section.partition("\n| what |")
                sections[name] = f"{head}\n{_table(before | _dated(rows))}"
            elif rows:
                sections[name] = self._section(name, rows)
        body = "\n\n".join(f"## {sections[name]}" for name in sorted(sections))
        path.write_text(f"{_HEAD}\n{body}\n")

    def _section(self, name: str, rows: dict[str, str]) -> str:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        machine = f"{os.cpu_count()} cores ({platform.machine()}), {memory:.0f} GiB"
        lines = [
            f"{name} {self.versions[name]}",
            "",
            f"{_today()}, {machine}, {_load()}; "
            f"{platform.system()}, Python {platform.python_version()}, " + ", ".join(_installed()),
            "",
            _table(rows),
        ]
        return "\n".join(lines)


def _today() -> dt.date:
    return dt.datetime.now(dt.UTC).date()


def _load() -> str:
    return f"load average {os.getloadavg()[2]:.1f}"


def _dated(rows: dict[str, str]) -> dict[str, str]:
    return {what: f"{figure} ({_today()}, {_load()})" for what, figure in rows.items()}


def _table(rows: dict[str, str]) -> str:
    lines = [f"| {what} | {figure} |" for what, figure in sorted(rows.items())]
    return "\n".join(["| what | figure |", "|---|---|", *lines])


def _measured_before(section: str) -> dict[str, str]:
    """The rows of a section, by what they are about."""
    found = re.findall(r"^\| (?!what )(.+?) \| (.+) \|$", section, flags=re.MULTILINE)
    return dict(found)


def _installed() -> list[str]:
    found = []
    for name in _CLIENTS:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return found
