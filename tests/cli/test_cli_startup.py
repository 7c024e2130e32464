"""The command is quick to start: help loads nothing that only commands need."""

from __future__ import annotations

import resource
import subprocess
import sys

from cli_command import COMMAND, environment

HELP_CPU_S = 0.3
HEAVY = ("pyarrow", "numpy", "fsspec", "s3fs", "pyspark", "msgspec", "rich", "pandas", "crc32c")


def test_help_costs_little() -> None:
    """CPU time of the whole process, interpreter included: the best of three runs."""
    best_s = min(_cpu_s([*COMMAND, "--help"]) for _ in range(3))
    assert best_s < HELP_CPU_S


def test_help_imports_nothing_heavy() -> None:
    """Help of the root and of a verb imports neither Arrow nor a filesystem nor Spark."""
    script = (
        "import sys, txnlog.cli\n"
        "try: txnlog.cli.main()\n"
        f"finally: print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)\n"
    )
    for arguments in (["--help"], ["records", "read", "--help"], ["segments", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            capture_output=True,
            text=True,
            env=environment(),
            check=True,
        )
        assert "Usage: txnlog" in done.stdout
        assert done.stderr == "[]\n"


def _cpu_s(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, env=environment(), check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
