"""What all tests share: storages of each kind, clocks, and one S3 server for the whole run."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

import tests
import txnlog
from tests.support.steps import new_store
from tests.support.storage.disturbed_storages import HookedStorage
from tests.support.tiers import leave_to_more
from txnlog.admin.topics import TYPED_DEFAULTS
from txnlog.storage import open_storage
from txnlog.storage.adapters.local import LocalStorage
from txnlog.storage.adapters.memory import MemoryStorage
from txnlog.storage.base import Storage
from txnlog.storage.probe import probe
from txnlog.store import Store
from txnlog.testing import HeapStorage, VirtualClock

# Processes that tests start, Spark's workers too, import what is installed and not the work tree.
os.environ["PYTHONSAFEPATH"] = "1"

# Nor do they see its other folders: they find `tests` by what lies here.
_CHILDREN = str(Path(__file__).parent / "support" / "children")
_INHERITED = os.environ.get("PYTHONPATH")
os.environ["PYTHONPATH"] = os.pathsep.join([_CHILDREN, *([_INHERITED] if _INHERITED else [])])

# JVMs of tests live for seconds: the first compiler's code will do, and `make test` has archived
# Spark's classes. What does not fit the archive goes without it, and must not say so on stdout.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
_ARCHIVED = f" -Xlog:disable -XX:SharedArchiveFile={_ARCHIVE}" if _ARCHIVE.exists() else ""
os.environ.setdefault("SPARK_LAUNCHER_OPTS", JVM_OPTIONS)
os.environ.setdefault("SPARK_SUBMIT_OPTS", JVM_OPTIONS + _ARCHIVED)

_COUNTER = itertools.count()


def pytest_configure() -> None:
    """Whatever else is called ``tests`` is not what the tests import from."""
    if list(tests.__path__) != [str(Path(__file__).parent)]:
        where = ", ".join(tests.__path__)
        raise pytest.UsageError(f"`tests` is imported from {where}: take that off Python's path")


def pytest_report_header() -> str:
    """Which txnlog it is that is tested."""
    return f"txnlog: {Path(txnlog.__file__).parent}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before `-m` chooses by marks: which cases are left to `make test-more`."""
    leave_to_more(items)


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the collector need not look through it."""
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class S3Request:
    """What the S3 server was asked, and the access key that it was signed with."""

    method: str
    path: str
    key_id: str


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Without what the collector finds of the loops that servers of earlier tests ran in."""

    def is_of_this_test(record: logging.LogRecord) -> bool:
        return record.name != "asyncio"

    caplog.handler.addFilter(is_of_this_test)
    yield caplog
    caplog.handler.removeFilter(is_of_this_test)


@pytest.fixture
def early_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment has a file from its first batch on, and indexes from its second, however small."""
    monkeypatch.setattr("txnlog.write.segment_uploads.SHARED_FILE_BYTES", 0)
    monkeypatch.setattr("txnlog.names.INDEXED_FROM_BYTES", 0)


@pytest.fixture
def record_format(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The default format of typed topics: see ``typed_formats``."""
    chosen = str(request.param)
    if chosen == "auto":
        monkeypatch.setattr("txnlog.segments.writer.PARQUET_FROM_BYTES", 200)
    monkeypatch.setitem(TYPED_DEFAULTS, "record.format", chosen)
    return chosen


@pytest.fixture(scope="session")
def s3_requests() -> list[S3Request]:
    """All requests that the S3 server has got so far, whichever process sent them."""
    return []


@pytest.fixture(scope="session")
def s3_options(s3_requests: list[S3Request]) -> Iterator[dict[str, Any]]:
    """Storage options of a real S3 server on a free loopback port, with a bucket ``test``."""
    from tests.support.storage.moto_server import options_of, serving_s3

    def note(environ: Any) -> None:
        _, _, signed = environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")
        key_id, _, _ = signed.partition("/")
        s3_requests.append(S3Request(environ["REQUEST_METHOD"], environ["PATH_INFO"], key_id))

    server = serving_s3(note)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    options = options_of(server.server_port)
    import s3fs

    s3fs.S3FileSystem(**options).call_s3("create_bucket", Bucket="test")
    yield options
    server.shutdown()
    thread.join()


@pytest.fixture(scope="session", autouse=True)
def probe_each_kind_once() -> Iterator[None]:
    """In this process the first store in memory is probed, and the first on local disk.

    All races for each of a thousand stores would take a minute. Storages that wrap another are
    probed each time, and tests/storage probes them all.
    """
    kinds: set[type[Storage]] = {MemoryStorage, LocalStorage}

    def probe_first(storage: Storage) -> None:
        if type(storage) in kinds:
            probe(storage)
            kinds.remove(type(storage))
        elif type(storage) not in (MemoryStorage, LocalStorage):
            probe(storage)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("txnlog.store.probe", probe_first)
        yield


@pytest.fixture(autouse=True)
def empty_memory() -> Iterator[None]:
    """Delete a test's objects in fsspec's memory filesystem: each listing there reads all."""
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture(params=["memory", "local", pytest.param("s3", marks=pytest.mark.s3)])
def any_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """An empty storage of each supported kind."""
    if request.param == "memory":
        return open_storage(f"memory://test-{next(_COUNTER)}")
    if request.param == "local":
        return open_storage(str(tmp_path / "store"))
    options = request.getfixturevalue("s3_options")
    return open_storage(f"s3://test/store-{next(_COUNTER)}", options)


@pytest.fixture
def memory_storage() -> Storage:
    """An empty storage in memory."""
    return open_storage(f"memory://test-{next(_COUNTER)}")


@pytest.fixture
def disk(tmp_path: Path) -> Storage:
    """An empty storage on the local filesystem."""
    return open_storage(str(tmp_path / "store"))


@pytest.fixture
def clock() -> VirtualClock:
    """A clock that stands still unless a test moves it."""
    return VirtualClock()


@pytest.fixture
def heap(clock: VirtualClock) -> HeapStorage:
    """An empty storage of dictionaries, the quickest one, whose times are the clock's."""
    storage = HeapStorage()
    storage.time_ms = lambda: clock.time_ms
    return storage


@pytest.fixture
def store(request: pytest.FixtureRequest, clock: VirtualClock) -> Store:
    """A store in memory with a topic ``t`` of one partition, or what ``@pytest.mark.store`` asks.

    ``on`` is the fixture that it lies on, by the system's clock if that is a disk; ``topics`` and
    the like are those of ``new_store``.
    """
    mark = request.node.get_closest_marker("store")
    asked = {"on": "memory_storage", **(mark.kwargs if mark else {})}
    on = asked.pop("on")
    return new_store(request.getfixturevalue(on), None if on == "disk" else clock, **asked)


@pytest.fixture
def hooked(store: Store) -> HookedStorage:
    """The store's storage, with something that happens before a request."""
    return HookedStorage(store.storage)


@pytest.fixture
def unlogged() -> Iterator[None]:
    """No warnings are logged: a run has one for each epoch."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def frozen_heap() -> Iterator[None]:
    """A child collects what its test made, and not what the tests before it have left.

    Among that may be a session of Spark's, whose objects speak to its JVM when they go.
    """
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def short_chapters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry of a log is a chapter of its own: it is closed behind the next checkpoint."""
    monkeypatch.setattr("txnlog.log.chapters.CHAPTER", 1)
    monkeypatch.setattr("txnlog.log.chapters.FANOUT", 4)
    monkeypatch.setattr("txnlog.log.chapters.STAY_OPEN", 0)
