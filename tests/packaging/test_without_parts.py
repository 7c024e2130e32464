"""txnlog without a part that can be left out: its folder is gone, and nothing else notices."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import txnlog
from tests.support.checkout import ROOT
from txnlog.hooks import PARTS

SAMPLE = (
    *("admin/test_retention.py", "admin/test_upkeep.py", "cli/test_cli_maintain.py"),
    *("cli/test_cli_store.py", "doctor/test_data_files.py", "doctor/test_rule_violations.py"),
    *("read/test_consumer.py", "storage/test_open_storage.py", "store/test_golden_stores.py"),
    "ui/test_ui_pages.py",
)
EVERYDAY = """
import contextlib, sys, txnlog

store = txnlog.open("store", create=True)
store.topics.create("t", partitions=2)
with store.producer(transactional_id="id") as producer:
    producer.init_transactions()
    with producer.transaction():
        producer.send("t", value=b"1")
store = txnlog.open("store")
with store.consumer("t", auto_offset_reset="earliest", stop_at_end=True) as consumer:
    assert [record.value for record in consumer] == [b"1"]
assert store.scan("t").to_arrow().num_rows == 1
store.maintain()
assert {finding.state for finding in store.examine()} == {"ok"}
with contextlib.suppress(txnlog.errors.StoreNotFound):
    txnlog.open("nothing")
print(sorted(name for name in sys.modules if name.startswith("txnlog.replication")))
"""


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that imports a copy of the package, the parts left out."""
    folder = tmp_path_factory.mktemp("without")
    ignored = shutil.ignore_patterns("__pycache__", *PARTS)
    shutil.copytree(Path(txnlog.__file__).parent, folder / "txnlog", ignore=ignored)
    assert not any((folder / "txnlog" / part).exists() for part in PARTS)
    path = os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def run(environment: dict[str, str], cwd: Path, *arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, env=environment, cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_without_its_parts_a_store_works(without: dict[str, str], tmp_path: Path) -> None:
    """It is written and read, maintained and examined; the command has no verbs of theirs."""
    assert run(without, tmp_path, "-c", EVERYDAY) == "[]\n"
    shown = run(without, tmp_path, "-m", "txnlog.cli", "--help")
    assert ("\n  topics " in shown, "\n  replicas " in shown) == (True, False)
    run(without, tmp_path, "-m", "txnlog.cli", "doctor", "--store", "store")


def test_an_everyday_store_loads_little_of_its_parts(tmp_path: Path) -> None:
    """What they register, and what tells whether a folder is theirs; nothing that reads roots."""
    tell = "print(sorted(name for name in sys.modules if name.startswith('txnlog.replication')))"
    names = "import sys, txnlog; [getattr(txnlog, name) for name in dir(txnlog)]"
    assert run({**os.environ}, tmp_path, "-c", f"{names}\n{tell}") == "[]\n"
    opened = "import sys, txnlog; txnlog.open('store', create=True).topics.create('t')"
    found = run({**os.environ}, tmp_path, "-c", f"{opened}\n{tell}")
    assert ast.literal_eval(found) == [
        "txnlog.replication",
        "txnlog.replication.openers",
        "txnlog.replication.root_names",
    ]


@pytest.mark.more
def test_without_its_parts_the_rest_passes_its_tests(
    without: dict[str, str], tmp_path: Path
) -> None:
    """A sample over all rooms, in a process of its own."""
    files = [str(ROOT / "tests" / name) for name in SAMPLE]
    options = ("-n", "0", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'pytest'}")
    marks = "not slow and not spark and not cluster and not stores and not browser"
    shown = run(without, ROOT, "-m", "pytest", *options, "-m", marks, *files)
    assert f"txnlog: {without['PYTHONPATH'].split(os.pathsep)[0]}" in shown
    assert " passed" in shown
