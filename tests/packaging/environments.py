"""Wheels that are built as a release is, and environments that have one or have none."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.checkout import CODE_FOLDERS, ROOT

OPTIONS_REDACTION = "(?i)url|^storage[.]"
STRING_REDACTION = '(?s)key: "storage[.].+?"[^ -~]+ *[}]'
"""What docs/SPARK.md gives. A configuration file would take backslashes for its own."""


def run(python: str | Path, *arguments: str, cwd: Path) -> str:
    """Output of a Python that sees neither this folder nor this user's settings."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, *arguments],
        cwd=cwd,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(folder: Path, *, symlinks: bool) -> Path:
    """The wheel of a copy of the sources, with or without the four symlinks, built offline."""
    sources = folder / "sources"
    for name in CODE_FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, sources / name, symlinks=True, ignore=ignored)
    for link in (sources / "txnlog").iterdir():
        if link.is_symlink() and not symlinks:
            link.unlink()
    for name in ("pyproject.toml", "README.md", "LICENSE", "pyspark_txnlog.py"):
        shutil.copy(ROOT / name, sources)
    command = ["-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    run(sys.executable, *command, "--wheel-dir", str(folder), str(sources), cwd=folder)
    [wheel] = folder.glob("*.whl")
    return wheel


def environment(home: Path, wheel: Path | None) -> Path:
    """The interpreter of a new environment in ``home``, with our dependencies.

    It has the wheel, or no txnlog at all: what is linked into it is all but ours, so that a
    package is never put together from two places.
    """
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    [packages] = home.glob("lib/python*/site-packages")
    for folder in filter(Path.is_dir, map(Path, site.getsitepackages())):
        for entry in folder.iterdir():
            if entry.name == "pyspark":
                # A folder of its own, because Spark's home is where its executors write.
                (packages / entry.name).mkdir()
                for part in entry.iterdir():
                    (packages / entry.name / part.name).symlink_to(part)
            elif not entry.name.startswith(("txnlog", "pyspark_txnlog", "__pycache__")):
                (packages / entry.name).symlink_to(entry)
    if wheel is not None:
        pip = ["-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index"]
        run(sys.executable, *pip, str(wheel), cwd=home)
    return python


def clean_variables(python: Path, **variables: str) -> dict[str, str]:
    """The environment variables of a Spark job that is run by ``python`` and finds nothing else."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHONPATH", "PYSPARK_", "SPARK_", "AWS_"))
        or name in ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS")
    }
    return {
        **kept,
        "PYSPARK_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONWARNINGS": "ignore:PySpark does not yet fully support",
        **variables,
    }


def spark_submit(
    python: Path, *arguments: str, cwd: Path, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Spark's own command, as it is installed beside ``python``."""
    [command] = python.parents[1].glob("lib/python*/site-packages/pyspark/bin/spark-submit")
    quiet: Sequence[str] = ("--conf", "spark.ui.showConsoleProgress=false")
    return subprocess.run(
        [str(command), *quiet, *arguments],
        cwd=cwd,
        env=clean_variables(python, **(variables or {})),
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
