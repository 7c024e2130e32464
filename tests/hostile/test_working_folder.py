"""Whoever looks into a file does not run what lies beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

TRAPS = ("crc32c", "pyarrow", "msgspec", "numpy", "rich", "typer", "json")
FROM_ANYWHERE = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
"""As a user's shell is: the tests' own processes never look into the working folder."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A segment, beside modules that leave a trace when they are imported."""
    pq.write_table(pa.table({"value": [b"1"]}), tmp_path / "00000000000000000000.parquet")
    for name in TRAPS:
        (tmp_path / f"{name}.py").write_text(f"open('ran-{name}', 'w').close()\n")
    yield tmp_path
    assert [path.name for path in tmp_path.glob("ran-*")] == []


@pytest.mark.parametrize(
    ("started", "verb"),
    [
        ("script", "segments dump"),  # whatever the verb, its first path is the script's folder
        ("module", "segments dump"),
        *(
            pytest.param("module", verb, marks=pytest.mark.more)
            for verb in ("segments verify", "index verify", "index rebuild")
        ),
        *(
            pytest.param("script", verb, marks=pytest.mark.slow)
            for verb in ("segments verify", "index verify", "index rebuild")
        ),
    ],
)
def test_nothing_is_imported_from_the_working_folder(folder: Path, started: str, verb: str) -> None:
    """Neither by the command nor by the processes that it starts."""
    command = [str(Path(sys.executable).with_name("txnlog"))]
    if started == "module":
        command = [sys.executable, "-m", "txnlog.cli"]
    (segment,) = folder.glob("*.parquet")
    done = subprocess.run(
        [*command, *verb.split(), "--file", segment.name],
        cwd=folder,
        env=FROM_ANYWHERE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written goes nowhere but beside the file."""
    from txnlog.errors import StorageError
    from txnlog.inspect.files import replace_file

    monkeypatch.setattr("txnlog.inspect.files.secrets.token_hex", lambda _: "guessed")
    target = tmp_path / "elsewhere"
    target.write_bytes(b"mine")
    (tmp_path / ".x.index.guessed.tmp").symlink_to(target)
    with pytest.raises(StorageError, match="cannot be written"):
        replace_file(tmp_path / "x.index", b"new")
    assert target.read_bytes() == b"mine"
