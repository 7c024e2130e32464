"""What every storage adapter must do. An adapter that passes can carry a store."""

from __future__ import annotations

import itertools
import operator
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from txnlog.clock import SystemClock
from txnlog.errors import InvalidOption, ObjectNotFound, PutIfAbsentBroken, StorageError
from txnlog.log.create_once import create_once
from txnlog.storage import open_storage, together
from txnlog.storage.adapters.local import LocalStorage
from txnlog.storage.adapters.s3 import S3Storage
from txnlog.storage.adapters.single_writer import SingleWriterStorage
from txnlog.storage.base import PARALLEL_REQUESTS, Storage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.storage.probe import probe
from txnlog.testing import HeapStorage

_SINGLE = itertools.count()


class FilesInPlace(MemoryFileSystem):
    """A filesystem that txnlog has no adapter for."""

    protocol = "inplace"


fsspec.register_implementation("inplace", FilesInPlace, clobber=True)


@pytest.fixture(
    params=["memory", "local", pytest.param("s3", marks=pytest.mark.s3), "single", "heap"]
)
def any_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """An empty storage of each kind; of the one for a single writer too, whose threads may race."""
    if request.param == "heap":
        return HeapStorage()
    url, options = f"memory://conformance-{next(_SINGLE)}", None
    if request.param == "local":
        url = str(tmp_path / "store")
    elif request.param == "s3":
        options = request.getfixturevalue("s3_options")
        url = f"s3://test/conformance-{next(_SINGLE)}"
    elif request.param == "single":
        url = f"inplace://conformance-{next(_SINGLE)}"
    return open_storage(url, options, unsafe_single_writer=request.param == "single")


def test_a_name_is_created_once(any_storage: Storage) -> None:
    """The primitive: the first create wins, the second learns that the name is taken."""
    assert any_storage.put_if_absent("a/b.json", b"first")
    assert not any_storage.put_if_absent("a/b.json", b"second")
    assert any_storage.get("a/b.json") == b"first"


def test_racing_creates_have_one_winner(any_storage: Storage) -> None:
    """Eight threads create each of ten names; each has one winner, whose bytes are there."""
    with ThreadPoolExecutor(8) as pool:
        for turn in range(10):
            name = f"race/{turn}"
            barrier = threading.Barrier(8)

            def race(racer: int, name: str = name, barrier: threading.Barrier = barrier) -> bool:
                barrier.wait()
                return any_storage.put_if_absent(name, b"%d" % racer)

            won = list(pool.map(race, range(8)))
            assert won.count(True) == 1
            assert any_storage.get(name) == b"%d" % won.index(True)


class LosesResponses(ForwardingStorage):
    """The first creates take effect, but their callers are told that they failed."""

    lost = 2

    def put_if_absent(self, name: str, data: bytes) -> bool:
        done = super().put_if_absent(name, data)
        if self.lost:
            self.lost -= 1
            raise StorageError("the response was lost")
        return done


def test_a_lost_response_is_found_out(any_storage: Storage) -> None:
    """Hazard 1: after an error the object is read back, and is known to be ours or not."""
    clock = SystemClock()
    assert create_once(LosesResponses(any_storage), "mine", b"nonce 1", clock)
    assert any_storage.get("mine") == b"nonce 1"
    assert not create_once(LosesResponses(any_storage), "mine", b"nonce 2", clock)


def test_partial_objects_are_never_seen(any_storage: Storage) -> None:
    """Hazard 8: a reader that polls sees a large object whole or not at all."""
    content = bytes(range(256)) * 4096 * 12
    stop = threading.Event()
    seen: list[int] = []

    def poll() -> None:
        while not stop.is_set():
            for name in ("put", "uploaded"):
                try:
                    seen.append(len(any_storage.get(f"large/{name}")))
                except ObjectNotFound:
                    continue
            assert set(any_storage.list_names("large")) <= {"put", "uploaded"}

    reader = threading.Thread(target=poll)
    reader.start()
    any_storage.put("large/put", content)
    with any_storage.upload("large/uploaded") as upload:
        for start in range(0, len(content), 1 << 20):
            upload.write(content[start : start + (1 << 20)])
    stop.set()
    reader.join()
    assert set(seen) <= {len(content)}
    assert any_storage.get("large/uploaded") == content


def test_an_upload_that_fails_leaves_nothing(any_storage: Storage) -> None:
    """Hazard 8: an exception inside an upload publishes no half file."""
    upload = any_storage.upload("half")

    def fail() -> None:
        with upload:
            upload.write(b"x" * (2 << 20))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert any_storage.list_names("") == []
    with pytest.raises(ObjectNotFound, match="half"):
        any_storage.get("half")


def test_listings_are_fresh(any_storage: Storage) -> None:
    """Hazard 7: what was put is listed at once, what was deleted is not, in any handle."""
    other: Storage = pickle.loads(pickle.dumps(any_storage))
    for number in range(20):
        any_storage.put(f"log/{number:02d}", b"x")
        assert other.list_names("log") == [f"{n:02d}" for n in range(number + 1)]
    any_storage.delete([f"log/{number:02d}" for number in range(10)] + ["log/never"])
    assert other.list_names("log") == [f"{number:02d}" for number in range(10, 20)]


def test_listings_start_after_a_name_and_stay_in_their_folder(any_storage: Storage) -> None:
    """Names compare as strings; deeper objects and neighbours of a like name are not listed."""
    for name in (
        ".dotted/log/0",
        "log/1.json",
        "log/1.commit",
        "log/2.json",
        "log/sub/3.json",
        "logs/4.json",
    ):
        any_storage.put(name, b"x")
    assert any_storage.list_names("log") == ["1.commit", "1.json", "2.json"]
    assert any_storage.list_names("log", "1.commit") == ["1.json", "2.json"]
    assert any_storage.list_names("log", "2") == ["2.json"]
    assert any_storage.list_names("log", "3") == []
    assert any_storage.list_names("missing") == []
    assert any_storage.list_folders("log") == ["sub"]
    assert any_storage.list_folders("") == [".dotted", "log", "logs"]
    assert dict(any_storage.list_all("log"))["log/sub/3.json"] == 1


def test_long_listings_are_complete(any_storage: Storage) -> None:
    """More names than one page of an object store holds; see test_s3_storage for S3's pages."""
    # fsspec's memory filesystem has no pages, and each create reads all names.
    count = 100 if any_storage.url.startswith(("s3:", "memory:")) else 1100
    names = [f"{number:05d}" for number in range(count)]
    any_storage.gather([partial(any_storage.put, f"many/{n}", b"") for n in names])
    assert any_storage.list_names("many") == names
    assert any_storage.list_names("many", "00050") == names[51:]


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [(0, 10, b"0123456789"), (3, 5, b"34"), (8, 99, b"89"), (10, 12, b""), (4, 4, b"")],
)
def test_ranged_reads(any_storage: Storage, start: int, stop: int, expected: bytes) -> None:
    """Exactly the bytes asked for, fewer only where the object ends."""
    any_storage.put("range", b"0123456789")
    assert any_storage.get_range("range", start, stop) == expected
    assert any_storage.size("range") == 10


def test_missing_objects_are_named(any_storage: Storage) -> None:
    """Reading what is not there says what is not there."""
    for call in (
        lambda: any_storage.get("no/such"),
        lambda: any_storage.get_range("no/such", 0, 1),
        lambda: any_storage.size("no/such"),
    ):
        with pytest.raises(ObjectNotFound, match="no/such"):
            call()


def test_folders_go_with_their_last_object(any_storage: Storage) -> None:
    """Whoever lists folders, as of transactional ids, does not see those of deleted ones."""
    any_storage.put("ids/old/0", b"x")
    any_storage.put("ids/new/0", b"x")
    any_storage.delete(["ids/old/0"])
    if type(any_storage).__name__ != "SingleWriterStorage":
        assert any_storage.list_folders("ids") == ["new"]
    assert [name for name, _ in any_storage.list_all("")] == ["ids/new/0"]


def test_an_upload_ends_once(any_storage: Storage) -> None:
    """Closing twice publishes once; discarding what is published leaves it; none writes later."""
    upload = any_storage.upload("data/one")
    upload.write(b"one")
    assert any_storage.list_names("data") == []
    upload.close()
    upload.close()
    upload.discard()
    assert any_storage.get("data/one") == b"one"
    with pytest.raises(ValueError, match="closed"):
        upload.write(b"more")
    with any_storage.upload("data/empty"):
        pass
    assert any_storage.get("data/empty") == b""


def test_bytes_of_any_kind_are_kept(any_storage: Storage) -> None:
    """Every byte value, nothing at all, and buffers that are not bytes."""
    content = bytes(range(256))
    any_storage.put("all", content)
    any_storage.put_if_absent("none", b"")
    with any_storage.upload("buffer") as upload:
        assert upload.write(memoryview(content)) == 256  # type: ignore[arg-type]
    assert any_storage.get("all") == any_storage.get("buffer") == content
    assert any_storage.get("none") == b""
    assert any_storage.get_range("none", 0, 5) == b""


def test_representations_travel(any_storage: Storage) -> None:
    """A storage survives pickling, with its root; its text names the root."""
    other: Storage = pickle.loads(pickle.dumps(any_storage))
    assert other.put_if_absent("here", b"x")
    assert not any_storage.put_if_absent("here", b"y")
    assert other.url == any_storage.url
    assert any_storage.url in repr(any_storage)


@pytest.mark.parametrize(
    "name", ["", "../x", "a/../../x", "/etc/x", "a//b", "./a", "a\\b", "a\0b", "\ud800"]
)
def test_no_name_leaves_the_root(any_storage: Storage, name: str) -> None:
    """Whatever a name is, it stays below the root."""
    for call in (any_storage.get, any_storage.upload, any_storage.size):
        with pytest.raises(InvalidOption):
            call(name)
    with pytest.raises(InvalidOption):
        any_storage.put_if_absent(name, b"x")
    with pytest.raises(InvalidOption):
        any_storage.delete([name])


def test_the_probe_passes_and_leaves_nothing(any_storage: Storage) -> None:
    """A storage that keeps its promise is accepted."""
    assert probe(any_storage).checks
    assert list(any_storage.list_all("")) == []


class IgnoresCondition(ForwardingStorage):
    """A server that takes the header and ignores it."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self.inner.delete([name])
        return super().put_if_absent(name, data)


def test_the_probe_fails_where_the_condition_is_ignored(any_storage: Storage) -> None:
    """A storage that does not keep its promise is refused, with a remedy."""
    with pytest.raises(PutIfAbsentBroken, match="unsafe_single_writer"):
        probe(IgnoresCondition(any_storage))


def test_gather_keeps_the_order_and_raises_the_first_error(any_storage: Storage) -> None:
    """All calls are made; the first error in order is raised."""
    done: list[int] = []

    def call(number: int) -> int:
        done.append(number)
        if number in (3, 5):
            raise StorageError(f"call {number}")
        return number

    with pytest.raises(StorageError, match="call 3"):
        any_storage.gather([partial(call, n) for n in range(8)])
    assert sorted(done) == list(range(8))
    assert any_storage.gather([partial(operator.mul, n, 2) for n in range(40)]) == list(
        range(0, 80, 2)
    )
    assert any_storage.gather(iter([lambda: 1])) == [1]
    assert any_storage.gather(iter([])) == []


def test_many_are_read_in_the_order_of_their_names(any_storage: Storage) -> None:
    """Whole objects, one for each name; one that is not there is an error."""
    names = [f"some/{n}" for n in range(40)]
    for name in names:
        any_storage.put(name, name.encode())
    names.reverse()
    assert any_storage.get_many(names) == [name.encode() for name in names]
    assert any_storage.get_many(names[:1]) == [b"some/39"]
    assert any_storage.get_many([]) == []
    with pytest.raises(ObjectNotFound, match="some/none"):
        any_storage.get_many([*names, "some/none"])


def test_an_interrupted_gather_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C calls that run have ended, and no other begins behind what cleans up."""
    released = threading.Event()

    def release_and_wait(threads: list[Future[None]]) -> object:
        released.set()
        return wait(threads)

    monkeypatch.setattr(together, "wait", release_and_wait)
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


def test_a_round_of_puts_is_there_when_it_returns(any_storage: Storage) -> None:
    """Objects and uploads, in one folder and in several; an error is raised when all have ended."""
    upload = any_storage.upload("round/one")
    upload.write(b"1")
    any_storage.put_round(
        [
            upload.close,
            partial(any_storage.put, "round/two", b"2"),
            partial(any_storage.put_if_absent, "elsewhere/three", b"3"),
        ]
    )
    for name, data in (("round/one", b"1"), ("round/two", b"2"), ("elsewhere/three", b"3")):
        assert any_storage.get(name) == data

    def fail() -> None:
        raise StorageError("no")

    with pytest.raises(StorageError, match="no"):
        any_storage.put_round([fail, partial(any_storage.put, "round/four", b"4")])
    assert any_storage.get("round/four") == b"4"


def test_ages_are_told_by_the_storages_clock_or_not_at_all(any_storage: Storage) -> None:
    """For people: a time near ours, or None; of what is not there there is none."""
    any_storage.put("a/one", b"1")
    told = any_storage.modified_ms("a/one")
    assert told is None or abs(told - SystemClock().now_ms()) < 3_600_000
    kept = isinstance(any_storage, LocalStorage | S3Storage | SingleWriterStorage)
    assert (told is not None) == kept
    if told is not None:
        with pytest.raises(ObjectNotFound):
            any_storage.modified_ms("a/none")
