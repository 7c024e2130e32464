"""The command is quick to start: help loads nothing that only commands need."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Any

from typer.main import get_command

from tests.support.cli.cli_command import COMMAND, environment
from txnlog.cli.app import app, summaries

HELP_CPU_S = 0.3
HEAVY = ("pyarrow", "numpy", "fsspec", "s3fs", "pyspark", "msgspec", "rich", "pandas", "crc32c")


def test_help_costs_little() -> None:
    """CPU time of the whole process, interpreter included: the best of five runs."""
    best_s = min(_cpu_s([*COMMAND, "--help"]) for _ in range(5))
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


def test_help_builds_no_command_that_nobody_asked_for() -> None:
    """The root's help knows its commands by their summaries; a verb's loads its own group."""
    script = (
        "import sys, txnlog.cli\n"
        "try: txnlog.cli.main()\n"
        "finally: print(sorted({m.split('.')[3] for m in sys.modules\n"
        "    if m.startswith('txnlog.cli.commands.')}), file=sys.stderr)\n"
    )
    for arguments, loaded in (
        (["--help"], "[]"),
        (["topics", "ls", "--help"], "['topics']"),
        (["import", "--help"], "['import_']"),
        (["consume", "--help"], "['records']"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            capture_output=True,
            text=True,
            env=environment(),
            check=True,
        )
        assert "Usage: txnlog" in done.stdout
        assert done.stderr == f"{loaded}\n"


def test_summaries_are_what_commands_say_of_themselves() -> None:
    """The root's help lists the first sentence of each command's own help."""
    root: Any = get_command(app)
    context = root.context_class(root, info_name="txnlog")
    own = {
        name: root.get_command(context, name).get_short_help_str(limit=200)
        for name in root.list_commands(context)
    }
    assert own == summaries()


def _cpu_s(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, env=environment(), check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
