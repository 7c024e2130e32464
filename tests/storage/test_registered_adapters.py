"""An adapter of somebody else's: installed as a distribution, found by its protocol, complete."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkout import ROOT

_EXAMPLE = ROOT / "examples" / "sqlite_adapter"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with the example's distribution in it, as pip installs it."""
    folder = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source") / "project"
    source.mkdir()
    for file in _EXAMPLE.iterdir():
        if file.is_file():
            (source / file.name).write_bytes(file.read_bytes())
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    given = ["--no-deps", "--no-build-isolation", "--no-index", "--target"]
    subprocess.run([*pip, *given, str(folder), str(source)], check=True, timeout=120)
    return folder


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the distributions of a site folder too."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    environment.pop("PYTHONSAFEPATH", None)
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


_STORE = """
import sys, txnlog
store = txnlog.open(sys.argv[1], create=True)
store.topics.create("t")
with store.producer(transactional_id="x") as producer:
    producer.init_transactions()
    with producer.transaction():
        producer.send("t", b"hello")
assert store.storage.inner.url if hasattr(store.storage, "inner") else store.storage.url
print(store.scan("t").to_arrow()["value"].to_pylist())
"""


def test_a_store_on_an_adapter_that_is_installed(site: Path, tmp_path: Path) -> None:
    """Nothing is imported or configured but the URL."""
    done = run(site, "-c", _STORE, f"sqlite://{tmp_path}/store.db")
    assert done.stdout == "[b'hello']\n", done.stderr


def test_an_adapter_that_cannot_be_imported_is_named(site: Path, tmp_path: Path) -> None:
    """The message says what was registered."""
    (site / "txnlog_sqlite.py").rename(tmp_path / "moved.py")
    try:
        done = run(site, "-c", _STORE, f"sqlite://{tmp_path}/store.db")
    finally:
        (tmp_path / "moved.py").rename(site / "txnlog_sqlite.py")
    assert "sqlite:// was registered as txnlog_sqlite:open_url" in done.stderr


def test_what_is_not_installed_is_not_known(tmp_path: Path) -> None:
    """Without the distribution the protocol is refused, with what there is."""
    done = run(tmp_path, "-c", _STORE, f"sqlite://{tmp_path}/store.db")
    assert "sqlite:// has no atomic put-if-absent" in done.stderr
    assert "register as txnlog.storage" in done.stderr


@pytest.mark.more
@pytest.mark.more
def test_the_example_conforms(site: Path, tmp_path: Path) -> None:
    """By the shipped suite, as its author would run it."""
    url = f"sqlite://{tmp_path}/store.db"
    done = run(site, "-m", "txnlog.testing.conformance", url, "--rounds", "20")
    assert done.returncode == 0, done.stdout + done.stderr
