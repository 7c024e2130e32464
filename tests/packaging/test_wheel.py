"""The wheel: what is in it, and what an environment that has it can import."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import txnlog
from tests.packaging.environments import build, run
from tests.support.checkout import PYPROJECT, ROOT, modules

pytestmark = pytest.mark.xdist_group("packaging")  # one process builds the wheel, once

OPTIONAL = (
    *("pyspark", "pandas", "typer", "rich"),
    *("s3fs", "gcsfs", "adlfs", "asyncssh", "requests", "hdfs_native"),
    *("jinja2", "starlette", "uvicorn"),
    *("deltalake", "pyiceberg"),
)


def listing(wheel: Path) -> list[str]:
    """Sorted names in a wheel, its metadata left out."""
    with zipfile.ZipFile(wheel) as archive:
        return sorted(name for name in archive.namelist() if ".dist-info/" not in name)


def test_wheel_holds_every_module_once_and_nothing_else(wheel: Path) -> None:
    """Each source file is in the wheel under its import path; no file is there twice."""
    expected = ["txnlog/py.typed"]
    for folder in ("static", "templates"):
        expected += [f"txnlog/ui/{folder}/{file.name}" for file in (ROOT / "ui" / folder).iterdir()]
    wing = ROOT / "txnlog/replication/templates"
    expected += [f"txnlog/replication/templates/{file.name}" for file in wing.iterdir()]
    for module in modules():
        path = module.name.replace(".", "/")
        expected.append(f"{path}/__init__.py" if module.path.stem == "__init__" else f"{path}.py")
    assert listing(wheel) == sorted(expected)


@pytest.mark.more
def test_symlinks_make_no_difference(wheel: Path, tmp_path: Path) -> None:
    """The wheel is the same whether or not the symlinks were in the sources."""
    assert listing(build(tmp_path, symlinks=True)) == listing(wheel)


def test_metadata(wheel: Path) -> None:
    """The licence is shipped and the command is declared."""
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        assert b"txnlog = txnlog.cli:main" in archive.read(f"{metadata}/entry_points.txt")
        assert b"License-Expression: Apache-2.0" in archive.read(f"{metadata}/METADATA")
        assert archive.read(f"{metadata}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_every_module_can_be_imported(python: Path, tmp_path: Path) -> None:
    """With all extras, every module imports, warns of nothing, and comes from the wheel."""
    names = [module.name for module in modules() if not module.name.endswith("__main__")]
    code = "\n".join(
        (
            "import importlib, json, sys",
            f"paths = [importlib.import_module(name).__file__ for name in {names!r}]",
            "print(json.dumps(paths))",
        )
    )
    paths = json.loads(run(python, "-W", "error", "-c", code, cwd=tmp_path))
    assert len(paths) == len(names)
    assert [path for path in paths if not path.startswith(str(python.parents[1]))] == []


def test_core_needs_no_extra(python: Path, tmp_path: Path) -> None:
    """Without the optional packages all of txnlog outside spark, cli and ui still imports."""
    names = [module.name for module in modules() if module.layer in ("core", "segments")]
    names.remove("pyspark_txnlog")  # loaded by Spark alone
    # Built on the extras; loaded for their URLs alone.
    clients = ("azure_client", "gcs_client", "s3_client", "s3_files", "sftp_client")
    for adapter in (*clients, "webhdfs_client"):
        names.remove(f"txnlog.storage.adapters.{adapter}")
    of_iceberg = (
        "iceberg",
        "iceberg_columns",
        "iceberg_manifests",
        "fresh_pieces",
        "fresh_table",
        "plain_entries",
    )
    for table in ("delta", "latest_view", *of_iceberg):
        names.remove(f"txnlog.tables.{table}")
    code = "\n".join(
        (
            "import importlib, sys",
            "class Missing:",
            "    def find_spec(self, name, path=None, target=None):",
            f"        if name.partition('.')[0] in {OPTIONAL!r}:",
            "            raise ModuleNotFoundError(name)",
            "sys.meta_path.insert(0, Missing())",
            f"[importlib.import_module(name) for name in {names!r}]",
        )
    )
    run(python, "-c", code, cwd=tmp_path)


def test_hints_for_what_is_missing_name_extras_that_there_are() -> None:
    """Each extra that a message tells people to install is one of pyproject.toml's."""
    call = r'how_to_install\(|require_package\("\w+", |needs = "[\w-]+", '
    extra = re.compile(rf'(?:{call})["\'](\S+?)["\']')
    named = {found for module in modules() for found in extra.findall(module.path.read_text())}
    assert {"azure", "cli", "delta", "gcs", "hdfs", "iceberg", "pandas", "s3", "ui"} <= named
    assert named <= PYPROJECT["project"]["optional-dependencies"].keys()


def test_a_hint_names_packages_where_the_wheel_is_installed(python: Path, tmp_path: Path) -> None:
    """What pip is told to install is what the extra brings: nothing is published as txnlog."""
    extras = PYPROJECT["project"]["optional-dependencies"]
    code = f"import txnlog.errors as e; [print(e.how_to_install(x)) for x in {list(extras)!r}]"
    hints = run(python, "-c", code, cwd=tmp_path).splitlines()
    for packages, hint in zip(extras.values(), hints, strict=True):
        pip, install, *named = shlex.split(hint)
        assert (pip, install) == ("pip", "install")
        assert {Requirement(n) for n in named} == {Requirement(package) for package in packages}


@pytest.mark.parametrize("fixture", ["bare_python", "python"])
def test_a_hint_names_the_clone_where_nothing_else_is_known(
    fixture: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In a clone that was not installed, or one that is newer than the wheel beside it."""
    (tmp_path / "txnlog").symlink_to(ROOT / "txnlog")
    extra = "s3" if fixture == "bare_python" else "newer"
    show = f"import txnlog.errors as e; print(e.how_to_install({extra!r}))"
    code = f"import sys; sys.path[:0] = ['.']; {show}"
    hint = run(request.getfixturevalue(fixture), "-c", code, cwd=tmp_path).strip()
    assert hint == f"pip install '.[{extra}]' in a clone of txnlog"


@pytest.mark.parametrize("missing", ["pyspark", "pyspark.sql.datasource"])
def test_without_spark_the_error_says_how_to_install_it(
    missing: str, python: Path, tmp_path: Path
) -> None:
    """Where the wheel was installed without the extra, or Spark is older than data sources."""
    job = "try: from txnlog.spark import TxnlogDataSource\nexcept ImportError as e: print(e)"
    code = f"import sys\nsys.modules[{missing!r}] = None\n{job}"
    message, _, package = run(python, "-c", code, cwd=tmp_path).partition(": pip install ")
    assert message == "txnlog.spark needs pyspark"
    [pyspark] = PYPROJECT["project"]["optional-dependencies"]["spark"]
    assert Requirement(package.strip("'\n")) == Requirement(pyspark)


def test_importing_txnlog_loads_no_extra(python: Path, tmp_path: Path) -> None:
    """`import txnlog`, and the use of its names, load none of the optional packages."""
    code = "\n".join(
        (
            "import sys, txnlog",
            "[getattr(txnlog, name) for name in dir(txnlog)]",
            f"print([name for name in {OPTIONAL!r} if name in sys.modules])",
        )
    )
    assert run(python, "-c", code, cwd=tmp_path).strip() == "[]"


@pytest.mark.parametrize(
    "name", ["segments", "spark", "cli", "ui", "tests", "examples", "benchmarks"]
)
def test_short_names_stay_free(python: Path, tmp_path: Path, name: str) -> None:
    """An installed txnlog takes no name that a user's own folder may have."""
    code = f"import importlib.util; print(importlib.util.find_spec({name!r}))"
    assert run(python, "-c", code, cwd=tmp_path).strip() == "None"


def test_tests_run_against_an_installed_wheel() -> None:
    """What all tests import is the wheel, not the work tree. `make test` sees to that."""
    for name in ("txnlog", "pyspark_txnlog"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert Path(spec.origin or "").is_relative_to(sys.prefix), spec.origin
    assert os.environ["PYTHONSAFEPATH"] == "1", "Spark's workers see the work tree"


def test_children_find_these_tests_and_the_same_txnlog(tmp_path: Path) -> None:
    """Whatever else is called ``tests`` on their path, and though this is where they are run."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").touch()
    code = "import tests.support.checkout, txnlog; print(*tests.__path__, txnlog.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{os.environ['PYTHONPATH']}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(ROOT / "tests"), str(txnlog.__file__)]


def test_installed_wheel_is_current() -> None:
    """The installed modules are those of the checkout, byte for byte."""
    installed = Path(txnlog.__file__ or "").parents[1]
    stale = []
    for module in modules():
        path = installed / module.name.replace(".", "/")
        path = path / "__init__.py" if module.path.stem == "__init__" else path.with_suffix(".py")
        if not path.exists() or path.read_bytes() != module.path.read_bytes():
            stale.append(module.where)
    assert stale == []


def test_every_package_is_listed() -> None:
    """A new sub-package cannot be forgotten in pyproject.toml."""
    found = {module.name for module in modules() if module.path.stem == "__init__"}
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == found
