"""Runs the real command in a process of its own, as a user's shell would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import txnlog

FIRST_MS = 1_700_000_000_000
"""2023-11-14T22:13:20Z: the first record's time; each next one is a second later."""

COMMAND = [sys.executable, "-m", "txnlog.cli"]
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


def cli(*arguments: object, env: Mapping[str, str] | None = None) -> Finished:
    """Run ``txnlog ARGUMENTS``. However it ends, it must not show a traceback."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        env=environment(**(env or {})),
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    finished = Finished(done.returncode, done.stdout.decode(), done.stderr.decode())
    assert "Traceback" not in finished.err + finished.out, finished
    return finished


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
    found = txnlog.open(str(store)).describe_group(group).offsets
    return {(at.topic, at.partition): at.offset for at in found}


def read_terminal(leader: int) -> bytes:
    """All that is shown on a terminal of ours, up to its end; it is closed then."""
    shown = b""
    try:
        while chunk := os.read(leader, 65536):
            shown += chunk
    except OSError:  # Linux says so when the other end is closed
        pass
    os.close(leader)
    return shown
