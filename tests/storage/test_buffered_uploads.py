"""Where uploads wait that are sent whole: local temporary files, each of one process."""

from __future__ import annotations

import gc
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from txnlog.errors import StorageError
from txnlog.storage.buffered_uploads import Spool, SpooledUpload

pytestmark = pytest.mark.usefixtures("frozen_heap")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files are made."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_spool_holds_what_was_written_until_it_is_closed(folder: Path) -> None:
    """By its name too, at once; then the file is gone."""
    spool = Spool()
    assert spool.write(b"ab") + spool.write(b"") + spool.write(b"c" * 100_000) == 100_002
    assert spool.read() == Path(spool.name).read_bytes() == b"ab" + b"c" * 100_000
    spool.close()
    spool.close()
    assert spool.closed
    assert not list(folder.iterdir())
    with pytest.raises(ValueError, match="closed"):
        spool.write(b"x")


def test_a_spool_that_nobody_holds_is_deleted(folder: Path) -> None:
    """An upload that was forgotten leaves nothing."""
    spool = Spool()
    assert len(list(folder.iterdir())) == 1
    del spool
    gc.collect()
    assert not list(folder.iterdir())


@pytest.mark.parametrize("closes", [True, False])
def test_a_child_of_a_fork_leaves_the_parents_spool(closes: bool) -> None:
    """It neither deletes the file nor writes what it holds once more, closed or let go of."""
    spool = Spool()
    spool.write(b"a")
    child = os.fork()
    if child == 0:
        try:
            if closes:
                spool.close()
            del spool
            gc.collect()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    spool.write(b"b")
    assert spool.read() == b"ab"


@pytest.mark.parametrize("fails", [False, True])
def test_a_spooled_upload_leaves_no_file_and_is_made_once(folder: Path, fails: bool) -> None:
    made: list[bytes] = []

    def create(spool: Spool) -> None:
        made.append(spool.read())
        if fails:
            raise StorageError("the connection was reset")

    upload = SpooledUpload("s3://bucket/store", "a", create)
    upload.write(b"one")
    assert list(folder.iterdir())
    with pytest.raises(StorageError, match="reset") if fails else nullcontext():
        upload.close()
    assert not list(folder.iterdir())
    upload.close()
    assert made == [b"one"]
