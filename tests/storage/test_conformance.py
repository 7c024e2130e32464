"""What every storage adapter must do. An adapter that passes can carry a store.

The checks are those of ``python -m txnlog.testing.conformance``, each over an empty storage of each
kind. With ``TXNLOG_TEST_STORE_URL`` in the environment they also run below that URL, with
``TXNLOG_TEST_STORE_OPTIONS`` (JSON) as its storage options.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.support.storage.fake_webhdfs import run_fake_webhdfs
from txnlog.errors import PutIfAbsentBroken
from txnlog.storage import open_storage, threads
from txnlog.storage.base import PARALLEL_REQUESTS, Storage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.storage.probe import probe
from txnlog.testing import HeapStorage
from txnlog.testing.conformance.interface import (
    CHECKS,
    Check,
    folders_go_with_their_last_object,
    long_listings_are_complete,
)

pytestmark = pytest.mark.rule("hazard 1")

_SINGLE = itertools.count()
_GIVEN_URL = os.environ.get("TXNLOG_TEST_STORE_URL", "")
_GIVEN_OPTIONS = json.loads(os.environ.get("TXNLOG_TEST_STORE_OPTIONS") or "{}")

KINDS = [
    *("memory", "local", "single", "heap"),
    pytest.param("s3", marks=pytest.mark.s3),
    pytest.param("webhdfs", marks=pytest.mark.more),
]
TELLS_AGES = {"local", "s3", "single", "webhdfs"}


class FilesInPlace(MemoryFileSystem):
    """A filesystem that txnlog has no adapter for."""

    protocol = "inplace"


fsspec.register_implementation("inplace", FilesInPlace, clobber=True)


@pytest.fixture(params=[*KINDS, *(["given"] if _GIVEN_URL else [])])
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of storage; of the one for a single writer too, whose threads may race."""
    found: str = request.param
    return found


@pytest.fixture
def webhdfs_url() -> Iterator[str]:
    """A folder of an HDFS that answers in this process."""
    with run_fake_webhdfs() as hdfs:
        yield f"webhdfs://127.0.0.1:{hdfs.port}/conformance"


@pytest.fixture
def any_storage(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """An empty storage of each kind."""
    if kind == "heap":
        yield HeapStorage()
        return
    url, options = f"memory://conformance-{next(_SINGLE)}", None
    if kind == "local":
        url = str(tmp_path / "store")
    elif kind == "s3":
        options = request.getfixturevalue("s3_options")
        url = f"s3://test/conformance-{next(_SINGLE)}"
    elif kind == "webhdfs":
        url = request.getfixturevalue("webhdfs_url")
    elif kind == "single":
        url = f"inplace://conformance-{next(_SINGLE)}"
    elif kind == "given":
        url, options = f"{_GIVEN_URL}/conformance-{secrets.token_hex(8)}", _GIVEN_OPTIONS
    storage = open_storage(url, options, unsafe_single_writer=kind == "single")
    yield storage
    if kind == "given":
        storage.delete([name for name, _ in storage.list_all("")])


@pytest.mark.rule("hazard 7", "hazard 8")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_interface(check: Check, any_storage: Storage, kind: str) -> None:
    """Each promise of the interface."""
    if check is long_listings_are_complete and kind in ("memory", "single", "s3", "webhdfs"):
        # fsspec's memory filesystem has no pages, and each create reads all names;
        # test_s3_storage has S3's pages.
        check = partial(check, count=100)
    if check is folders_go_with_their_last_object and kind == "single":
        pytest.skip("what becomes of empty folders is up to the filesystem")
    check(any_storage)


def test_who_tells_the_age_of_an_object(any_storage: Storage, kind: str) -> None:
    """The usual kinds do: vacuum deletes nothing of whose age it is not sure."""
    any_storage.put("one", b"1")
    told = any_storage.modified_ms("one") is not None
    assert told == (kind in TELLS_AGES) or kind == "given"


class IgnoresCondition(ForwardingStorage):
    """A server that takes the header and ignores it."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self.inner.delete([name])
        return super().put_if_absent(name, data)


def test_the_probe_fails_where_the_condition_is_ignored(any_storage: Storage) -> None:
    """A storage that does not keep its promise is refused, with a remedy."""
    with pytest.raises(PutIfAbsentBroken, match="unsafe_single_writer"):
        probe(IgnoresCondition(any_storage))


def test_an_interrupted_gather_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C calls that run have ended, and no other begins behind what cleans up."""
    released = threading.Event()

    stop = threads._Round.stop

    def release_and_stop(calls: threads._Round[None]) -> None:
        released.set()
        stop(calls)

    monkeypatch.setattr(threads._Round, "stop", release_and_stop)
    busy = threading.Barrier(PARALLEL_REQUESTS + 1)
    began: list[int] = []
    ended: list[int] = []

    def call(number: int) -> None:
        began.append(number)
        if number < PARALLEL_REQUESTS:
            busy.wait(30)
        assert released.wait(30)
        ended.append(number)

    def calls() -> Iterator[Callable[[], None]]:
        for number in range(3 * PARALLEL_REQUESTS):
            yield partial(call, number)
        busy.wait(30)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_storage(f"memory://conformance-{next(_SINGLE)}").gather(calls())
    assert sorted(began) == sorted(ended) == list(range(PARALLEL_REQUESTS))


def test_gathered_calls_are_made_while_others_run() -> None:
    """What is to be sent need not all be there at once: the first call runs before the last."""
    began = threading.Event()

    def begin() -> bool:
        began.set()
        return True

    def calls() -> Iterator[Callable[[], bool]]:
        yield begin
        yield lambda: True
        assert began.wait(30)
        yield began.is_set

    storage = open_storage(f"memory://conformance-{next(_SINGLE)}")
    assert storage.gather(calls()) == [True, True, True]
