"""``txnlog catalog serve``: the real server, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

import txnlog
from tests.support.cli.cli_command import cli
from tests.support.tiers import more


@pytest.mark.parametrize("has_file", [False, *more([True])])
def test_it_prints_its_url_and_ends_when_interrupted(tmp_path: Path, has_file: bool) -> None:
    """The token that it made up is printed; one of a file is not. What comes later shows."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    store.topics.create("flights", schema=pa.schema([("carrier", pa.string())]))
    (tmp_path / "token").write_text("0123456789abcdef\n")
    option = ["--token-file", str(tmp_path / "token")] if has_file else []
    package = str(Path(txnlog.__file__).parent.parent)
    process = subprocess.Popen(
        [sys.executable, "-m", "txnlog.cli", "catalog", "serve", "--store", store.url, *option],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": package},
        # A shell that runs the tests in the background has its children ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        token = "0123456789abcdef"
        if not has_file:
            word, token = process.stdout.readline().split()
            assert (word, len(token)) == ("token", 43)
        catalog = load_catalog("mine", type="rest", uri=url, token=token)
        assert catalog.load_table("topics.flights").scan().to_arrow().num_rows == 0
        with store.producer() as producer:
            producer.send("flights", {"carrier": "AA"})
        found = catalog.load_table("topics.flights").scan().to_arrow()
        assert found["carrier"].to_pylist() == ["AA"]
        process.send_signal(signal.SIGINT)
        assert (*process.communicate(timeout=30), process.returncode) == ("", "", 130)
    finally:
        process.kill()
        process.wait()


def test_what_it_cannot_serve_is_said(own_store: Path, tmp_path: Path) -> None:
    serve = ("catalog", "serve", "--store", own_store)
    done = cli(*serve, "--host", "0.0.0.0")
    assert (done.code, done.out) == (1, "")
    assert "--token-file" in done.err
    done = cli(*serve, "--token-file", tmp_path / "none")
    assert (done.code, done.out) == (1, "")
    assert "cannot be read" in done.err
