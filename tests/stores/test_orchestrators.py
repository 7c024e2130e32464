"""Schedulers of their own make run DEPLOYMENT.md's code: as it stands there, and repeated."""

from __future__ import annotations

import re
import site
import sys
from pathlib import Path

import pytest

import txnlog
from tests.stores.servers import CannotStart, building, cache_folder, run_tool
from tests.support.checkout import ROOT
from tests.support.documents import Block, blocks_of

AROUND = """
from pathlib import Path
import sys

sys.path += {packages!r}
import txnlog

store = txnlog.open({store!r})

{load}
def rows_of(day):
    return [day.encode()]

committing = load

def load(day, rows):
    done = committing(day, rows)
    print("LOADED", day, done)
    seen = Path(store.url).parent / day
    if not seen.exists():
        seen.touch()
        raise OSError("the worker was lost after its commit")

"""
"""What the page leaves to the reader; the first attempt of each day fails after its commit."""
DAYS = ("2026-11-02", "2026-11-01", "2026-11-02")
"""The first of November had failed, and comes after the second, which is then run once more."""
ATTEMPTS = [
    *("2026-11-02 True", "2026-11-02 False"),
    *("2026-11-01 True", "2026-11-01 False"),
    "2026-11-02 False",
]
IN_DAGSTER = f"""
from dagster import materialize

for day in {DAYS}:
    assert materialize([sales], partition_key=day).success
"""


def documented(what: str) -> Block:
    """The one block of Python on the page that has this text."""
    blocks = blocks_of(ROOT / "docs" / "DEPLOYMENT.md")
    [found] = [block for block in blocks if block.language == "python" and what in block.text]
    return found


def installed(package: str, version: str) -> Path:
    """The Python of an environment that has a package, and none of ours."""
    folder = cache_folder() / f"{package}-{version}"
    python, done = folder / "bin" / "python", folder / "done"
    try:
        if not done.exists():
            with building():
                run_tool([sys.executable, "-m", "venv", "--clear", folder])
                run_tool([python, "-m", "pip", "install", "--quiet", f"{package}=={version}"])
                done.touch()
    except CannotStart as why:
        pytest.skip(f"{package} {version} cannot be had: {why}")
    return python


def write_job(script: Path, store: Path, recipe: Block) -> None:
    """The page's function and a recipe that calls it; our packages come after the environment's."""
    txnlog.open(str(store), create=True).topics.create("sales", partitions=2)
    [load] = re.findall(r"(?ms)^def load.*?(?=^print)", documented("def load(").text)
    packages = [str(ROOT), *site.getsitepackages()]
    around = AROUND.format(packages=packages, store=str(store), load=load)
    script.write_text(around + recipe.text)


def check(shown: str, store: Path) -> None:
    """Each day is there once."""
    assert re.findall(r"LOADED (.+)", shown) == ATTEMPTS
    values = txnlog.open(str(store)).scan("sales").to_arrow().column("value").to_pylist()
    assert sorted(values) == [b"2026-11-01", b"2026-11-02"]


def test_an_asset_of_dagster_is_repeated_and_a_day_comes_late(tmp_path: Path) -> None:
    """Its policy repeats what has failed."""
    script, store = tmp_path / "job.py", tmp_path / "store"
    python = installed("dagster", "1.13.29")
    write_job(script, store, documented("from dagster import"))
    with script.open("a") as appended:
        appended.write(IN_DAGSTER)
    check(run_tool([python, script], cwd=tmp_path, nice=False), store)


def test_a_task_of_airflow_is_repeated_and_a_day_comes_late(tmp_path: Path) -> None:
    """By the retries of the page, after no delay."""
    python = installed("apache-airflow", "3.3.2")
    (tmp_path / "dags").mkdir()
    script, store = tmp_path / "dags" / "job.py", tmp_path / "store"
    write_job(script, store, documented("from airflow.sdk import"))
    env = {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "0",
    }
    airflow = [python, "-m", "airflow"]
    run_tool([*airflow, "db", "migrate"], cwd=tmp_path, env=env, nice=False)
    days = [[*airflow, "dags", "test", "sales", day] for day in DAYS]
    check("".join(run_tool(day, cwd=tmp_path, env=env, nice=False) for day in days), store)
