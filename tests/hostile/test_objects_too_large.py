"""An object that is to be read whole is judged by its size, before any of it is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.support.storage.fake_clouds import (
    CONTAINER,
    azure_options,
    fake_azure,
    fake_gcs,
    gcs_options,
)
from tests.support.storage.fake_webhdfs import run_fake_webhdfs
from tests.support.storage.sftp_server import run_sftp_server
from txnlog.errors import StorageError
from txnlog.inspect.files import read_file
from txnlog.storage import open_storage, whole
from txnlog.storage.base import Storage

MOST = 100_000


@pytest.fixture(params=["local", "gcs", "azure", "sftp", "webhdfs", "s3", "fsspec"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """One of each kind of client, on a server or a fake of one."""
    options: dict[str, Any] = {}
    with ExitStack() as servers:
        match request.param:
            case "gcs":
                options = gcs_options(servers.enter_context(fake_gcs()))
                url = f"gs://{CONTAINER}/s"
            case "azure":
                options = azure_options(servers.enter_context(fake_azure()))
                url = f"az://{CONTAINER}/s"
            case "sftp":
                server = servers.enter_context(run_sftp_server(tmp_path))
                url, options = f"sftp://127.0.0.1:{server.port}{tmp_path}/s", server.options()
            case "webhdfs":
                hdfs = servers.enter_context(run_fake_webhdfs())
                url, options = f"webhdfs://127.0.0.1:{hdfs.port}/s", {"user": "root"}
            case "s3":
                url, options = f"s3://test/{tmp_path.name}", request.getfixturevalue("s3_options")
            case "fsspec":
                fsspec.register_implementation("single", MemoryFileSystem, clobber=True)
                url = f"single://{tmp_path.name}"
            case _:
                url = str(tmp_path / "s")
        storage = open_storage(url, options, unsafe_single_writer=request.param == "fsspec")
        storage.trust()
        yield storage


def test_it_is_not_read_whole(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could be as large as a disk; what is smaller, and parts of it, are read as ever."""
    storage.put("large", bytes(MOST + 1))
    storage.put("small", bytes(MOST))
    storage.put("empty", b"")
    assert len(storage.get("large")) == MOST + 1  # S3's first read is another one than the next
    monkeypatch.setattr(whole, "MOST_WHOLE_BYTES", MOST)
    assert storage.get("small") == bytes(MOST)
    assert storage.get("empty") == b""
    for read in (storage.get, lambda name: storage.get_many(["small", name])):
        with pytest.raises(StorageError, match=r"large.*none of the small files.*restore") as told:
            read("large")
        assert not told.value.retriable
    assert storage.get_range("large", MOST - 10, MOST + 1) == bytes(11)
    assert storage.get("small") == bytes(MOST)


def test_nor_is_a_file_that_is_named_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index, say, that somebody has given to a user."""
    path = tmp_path / "00000000000000000000.index"
    path.write_bytes(bytes(MOST + 1))
    monkeypatch.setattr(whole, "MOST_WHOLE_BYTES", MOST)
    with pytest.raises(
        StorageError, match=r"\.index failed.*none of the small files.*restore"
    ) as told:
        read_file(str(path))
    assert not told.value.retriable
