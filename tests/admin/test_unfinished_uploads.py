"""Uploads that were killed on an object store: vacuum aborts those of a certain age."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from tests.support.steps import another, new_store
from txnlog.admin.vacuum import Ages, vacuum_loose_files
from txnlog.errors import StorageError
from txnlog.results import FileDeletion, MaintenanceFailure
from txnlog.storage.adapters.s3 import S3Storage
from txnlog.storage.base import Storage, UnfinishedUpload
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.store import Store
from txnlog.testing import HeapStorage, VirtualClock

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS


class WithUploads(ForwardingStorage):
    """An object store on which uploads were killed."""

    def __init__(self, inner: Storage, uploads: Sequence[UnfinishedUpload]) -> None:
        super().__init__(inner)
        self.uploads = [*uploads]
        self.failure: StorageError | None = None

    def list_unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        if self.failure is not None:
            raise self.failure
        yield from self.uploads

    def abort_uploads(self, uploads: Iterable[UnfinishedUpload]) -> None:
        for upload in uploads:
            self.uploads.remove(upload)


def killed(clock: VirtualClock, name: str, age_ms: int) -> UnfinishedUpload:
    return UnfinishedUpload(f"topics/t/data/0/{name}.log", name, clock.time_ms - age_ms, 1000)


def store_with(clock: VirtualClock, *uploads: UnfinishedUpload) -> tuple[Store, WithUploads]:
    heap = HeapStorage()
    heap.time_ms = lambda: clock.time_ms
    storage = WithUploads(heap, uploads)
    return new_store(storage, clock), storage


def aborted(store: Store, **options: Any) -> list[FileDeletion]:
    steps = another(store).maintain(**options)
    assert not [step for step in steps if isinstance(step, MaintenanceFailure)]
    return [s for s in steps if isinstance(s, FileDeletion) and s.reason == "unfinished upload"]


def test_only_those_of_the_age_go(clock: VirtualClock) -> None:
    """A week by default, from when they were begun; a dry run tells the same."""
    old = killed(clock, "old", WEEK_MS)
    young = killed(clock, "young", WEEK_MS - 1)
    store, storage = store_with(clock, old, young)
    expected = [FileDeletion(None, "unfinished upload", 1000, (old.name,))]
    assert aborted(store, dry_run=True) == expected
    assert storage.uploads == [old, young]
    assert aborted(store) == expected
    assert storage.uploads == [young]
    assert aborted(store) == []
    clock.time_ms += 1
    assert [step.paths for step in aborted(store)] == [(young.name,)]


def test_the_age_is_the_callers(clock: VirtualClock) -> None:
    store, storage = store_with(clock, killed(clock, "two", 2 * DAY_MS))
    assert aborted(store) == []
    assert len(aborted(store, orphan_age_ms=DAY_MS)) == 1
    assert storage.uploads == []


def test_without_a_clock_of_the_storage_none_go(clock: VirtualClock) -> None:
    """Whose age is not known for certain may be at work."""
    store, storage = store_with(clock, killed(clock, "old", WEEK_MS))
    assert isinstance(storage.inner, HeapStorage)
    storage.inner.time_ms = None
    assert aborted(store) == []
    assert len(storage.uploads) == 1


def test_a_server_that_lists_none_stops_nothing(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Not implemented, or not permitted: that is told, and the rest is done; an outage fails."""
    store, storage = store_with(clock)
    storage.put("staging/t-000000.json", b"x")
    clock.time_ms += WEEK_MS
    storage.failure = StorageError("listing uploads failed: not implemented")
    storage.failure.retriable = False
    with caplog.at_level(logging.WARNING):
        done = [s.reason for s in another(store).maintain() if isinstance(s, FileDeletion)]
    assert done == ["left behind"]
    assert "unfinished uploads were not looked for: listing uploads failed" in caplog.text
    storage.failure.retriable = True
    assert [type(step) for step in another(store).maintain()] == [MaintenanceFailure]


@pytest.mark.s3
def test_on_s3(s3_options: dict[str, Any]) -> None:
    """By the server's own times, below the store's prefix alone."""
    storages = [S3Storage(f"test/uploads{end}", s3_options) for end in ("", "-beside")]
    for storage in storages:
        key = {"Bucket": "test", "Key": storage._key("topics/t/data/0/killed.log")}
        begun = storage.client.files.call_s3("create_multipart_upload", **key)
        storage.client.files.call_s3(
            "upload_part", PartNumber=1, Body=b"part", UploadId=begun["UploadId"], **key
        )
    (left,) = storages[0].list_unfinished_uploads()
    young = Ages(storages[0], left.begun_ms + WEEK_MS - 1)
    assert list(vacuum_loose_files(storages[0], young, WEEK_MS)) == []
    old = Ages(storages[0], left.begun_ms + WEEK_MS)
    (told,) = vacuum_loose_files(storages[0], old, WEEK_MS, dry_run=True)
    assert list(vacuum_loose_files(storages[0], old, WEEK_MS)) == [told]
    assert (told.size_bytes, told.paths) == (4, ("topics/t/data/0/killed.log",))
    assert list(vacuum_loose_files(storages[0], old, WEEK_MS)) == []
    (theirs,) = storages[1].list_unfinished_uploads()
    storages[1].abort_uploads([theirs])
