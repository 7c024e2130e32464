"""Whoever gives an object to a bucket says how it is encoded; what is made of it is bounded."""

from __future__ import annotations

import gzip

import pytest

from tests.support.storage.fake_clouds import (
    CONTAINER,
    Reply,
    azure_options,
    fake_azure,
    fake_gcs,
    gcs_options,
)
from txnlog.errors import StorageError
from txnlog.storage import open_storage, whole

STORED = gzip.compress(bytes(8 << 20))
MARKED = {"Content-Encoding": "gzip"}


def test_google_s_is_not_read_on_beyond_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was 1 MB, and took 2.5 GB, however few bytes of it were asked for."""
    monkeypatch.setattr(whole, "MOST_WHOLE_BYTES", 1 << 20)
    with fake_gcs() as cloud:
        storage = open_storage(f"gs://{CONTAINER}/s", gcs_options(cloud))
        for status in (200, 206):
            cloud.plans.append(Reply(status, STORED, MARKED))
            with pytest.raises(StorageError, match=r"none of the small files"):
                storage.get("a") if status == 200 else storage.get_range("a", 0, 10)
        cloud.plans.append(Reply(200, gzip.compress(b"small"), MARKED))
        assert storage.get("a") == b"small"


def test_azure_s_is_read_as_it_is_stored() -> None:
    """So it has the size that listings tell."""
    length = len(STORED)
    shown = {**MARKED, "Content-Range": f"bytes 0-{length - 1}/{length}", "ETag": '"1"'}
    with fake_azure() as cloud:
        storage = open_storage(f"az://{CONTAINER}/s", azure_options(cloud))
        cloud.plans.append(Reply(206, STORED, shown))
        assert storage.get("a") == STORED
