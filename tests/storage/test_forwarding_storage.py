"""Storages around a storage: what they do not change they hand on, and nothing passes them by."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest.mock import create_autospec, sentinel

import pytest

from txnlog import AcksValue
from txnlog.errors import StorageError
from txnlog.names import TopicPartition
from txnlog.storage.adapters.local import LocalStorage
from txnlog.storage.base import Storage, UnfinishedUpload
from txnlog.storage.counting import CountingStorage
from txnlog.storage.forwarding import ForwardingStorage, ReadOnlyStorage
from txnlog.store import attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, ProcessStopped, VirtualClock

METHODS = sorted(
    name
    for name, member in vars(Storage).items()
    if not name.startswith("_") and (callable(member) or isinstance(member, property))
)
NOT_HANDED_ON = {"local_path", "open_file"}
CHANGES_NOTHING = {
    *(
        "address",
        "folds_case",
        "history",
        "lists_whole_folders",
        "local_path",
        "open_file",
        "shows_early",
    ),
    *("check_listing", "copies_of", "get", "get_many", "get_range", "get_ranges", "modified_ms"),
    *("list_all", "list_folders", "list_names", "list_unfinished_uploads", "size"),
    *("small_reads_at_once", "was_probed", "without_fsync", "trust", "confirm", "count_later"),
    *("as_of", "kind", "may_be_unlisted", "wait_up_to", "gather", "put_round", "race", "run_ahead"),
    *("urls", "will_write"),
}
"""Of a storage. The last ones call what they are given, or say how."""


def test_the_methods_of_a_storage_are_found() -> None:
    """The tests below do not pass because they see nothing; its one attribute is the URL."""
    assert {"put_if_absent", "get_many", "without_fsync", "trust", "race", "address"} <= {*METHODS}
    assert set(Storage.__annotations__) == {"url"}


@pytest.mark.parametrize("name", sorted({*METHODS} - NOT_HANDED_ON))
def test_every_method_is_handed_on(name: str) -> None:
    """With the same arguments, by place or by name, and the same answer; also one that is new."""
    assert name in vars(ForwardingStorage), f"{name} of Storage is not handed on"
    inner = create_autospec(Storage, instance=True)
    inner.url = "inner"
    storage = ForwardingStorage(inner)
    signature = inspect.signature(getattr(Storage, name))
    parameters = [*signature.parameters][1:]
    given = {parameter: getattr(sentinel, parameter) for parameter in parameters}
    answer = getattr(inner, name).return_value
    named = {
        p for p in parameters if signature.parameters[p].kind is inspect.Parameter.KEYWORD_ONLY
    }
    placed = [value for parameter, value in given.items() if parameter not in named]
    by_name = {parameter: given[parameter] for parameter in named}
    for found in (getattr(storage, name)(**given), getattr(storage, name)(*placed, **by_name)):
        if name == "without_fsync":
            assert found.inner is answer
        else:
            assert found is (None if signature.return_annotation == "None" else answer)
    assert len(getattr(inner, name).mock_calls) == 2
    for call in getattr(inner, name).call_args_list:
        assert {**dict(zip(parameters, call.args, strict=False)), **call.kwargs} == given
    assert (storage.url, repr(storage)) == ("inner", "ForwardingStorage('inner')")


class Shown(ReadOnlyStorage):
    """For a reason of its own."""

    def why_read_only(self) -> str:
        return "look, do not touch"


@pytest.mark.parametrize("name", sorted({*METHODS} - CHANGES_NOTHING))
def test_what_can_be_read_only_refuses_every_change(name: str) -> None:
    """Also one that is new: it is refused, or said to change nothing."""
    inner = create_autospec(Storage, instance=True)
    inner.url = "inner"
    _, *parameters = inspect.signature(getattr(Storage, name)).parameters.values()
    placed = [[p.name] for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    with pytest.raises(StorageError, match="inner: look, do not touch") as told:
        getattr(Shown(inner), name)(*placed)
    assert not told.value.retriable
    assert inner.mock_calls == []


def test_nobody_is_shown_a_way_past_what_stands_between(tmp_path: Path) -> None:
    """Opening a file by its path would not be counted, nor fail as intended."""
    inner = LocalStorage(str(tmp_path))
    assert inner.local_path("a/b") == str(tmp_path.resolve() / "a" / "b")
    assert ForwardingStorage(inner).local_path("a/b") is None


def test_what_overrides_get_sees_each_of_many() -> None:
    """A storage that refuses single objects refuses them among many too."""

    class Refusing(ForwardingStorage):
        def get(self, name: str) -> bytes:
            if name == "b":
                raise StorageError("refused")
            return super().get(name)

    class Inheriting(Refusing):
        pass

    heap = HeapStorage()
    for name in ("a", "b", "c"):
        heap.put(name, name.encode())
    for storage in (Refusing(heap), Inheriting(heap)):
        assert storage.get_many(["a", "c"]) == [b"a", b"c"]
        with pytest.raises(StorageError, match="refused"):
            storage.get_many(["a", "b"])
    faulty = FaultyStorage(heap, {1: Fault.FAIL})
    with pytest.raises(StorageError, match="injected failure of get b"):
        faulty.get_many(["a", "b", "c"])
    assert faulty.requests == ["get a", "get b", "get c"]


def test_many_objects_are_as_many_requests(tmp_path: Path) -> None:
    """They are counted one by one, and the inner storage reads them in its own way."""
    inner = LocalStorage(str(tmp_path))
    for name in ("a", "b"):
        inner.put(name, name.encode())
    calls: list[list[str]] = []

    class Watched(ForwardingStorage):
        def get_many(self, names: list[str]) -> list[bytes]:  # type: ignore[override]
            calls.append(names)
            return super().get_many(names)

    counting = CountingStorage(Watched(inner))
    assert counting.get_many(["a", "b"]) == [b"a", b"b"]
    assert counting.get_many([]) == []
    assert (calls, counting.take()) == ([["a", "b"]], {"get": 2})


def test_many_ranges_are_as_many_requests() -> None:
    """Counted one by one; who overrides ``get_range`` sees each."""
    heap = HeapStorage()
    for name in ("a", "b"):
        heap.put(name, name.encode() * 9)
    wanted = [("a", 0, 2), ("b", 3, 4)]
    counting = CountingStorage(heap)
    assert counting.get_ranges(wanted) == [b"aa", b"b"]
    assert counting.get_ranges([]) == []
    assert counting.take() == {"get_range": 2}
    faulty = FaultyStorage(heap, {1: Fault.FAIL})
    with pytest.raises(StorageError, match="injected failure of get_range b 3 4"):
        faulty.get_ranges(wanted)
    assert faulty.requests == ["get_range a 0 2", "get_range b 3 4"]


class WithUploads(HeapStorage):
    """An object store on which uploads were killed."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.uploads = [UnfinishedUpload(name, name, 0, 1) for name in names]

    def list_unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        yield from self.uploads

    def abort_uploads(self, uploads: Iterable[UnfinishedUpload]) -> None:
        for upload in uploads:
            self.uploads.remove(upload)


def test_requests_for_unfinished_uploads_are_counted() -> None:
    """A listing and an abortion of any number, as of objects."""
    counting = CountingStorage(WithUploads("a", "b"))
    found = list(counting.list_unfinished_uploads())
    assert [upload.name for upload in found] == ["a", "b"]
    counting.abort_uploads(iter(found))
    counting.abort_uploads([])
    assert list(counting.list_unfinished_uploads()) == []
    assert counting.take() == {"abort_uploads": 1, "list_uploads": 2}


def test_requests_for_unfinished_uploads_fail() -> None:
    """Before, after and in the middle, as others do; a process that was stopped makes none."""
    inner = WithUploads("a", "b", "c")
    faulty = FaultyStorage(
        inner, {0: Fault.FAIL, 2: Fault.PARTIAL, 3: Fault.LOSE_RESPONSE, 4: Fault.STOP_BEFORE}
    )
    with pytest.raises(StorageError, match="injected failure of list_uploads"):
        faulty.list_unfinished_uploads()
    found = list(faulty.list_unfinished_uploads())
    with pytest.raises(StorageError, match="in the middle of abort 3 uploads"):
        faulty.abort_uploads(found)
    assert 0 < len(inner.uploads) < 3
    with pytest.raises(StorageError, match="loss of the response"):
        faulty.abort_uploads([*inner.uploads])
    assert inner.uploads == []
    with pytest.raises(ProcessStopped):
        faulty.abort_uploads(found)
    assert [request.split()[0] for request in faulty.requests] == [
        *("list_uploads", "list_uploads", "abort", "abort", "abort")
    ]


def test_relaxed_requests_are_relaxed_and_counted(tmp_path: Path) -> None:
    """They go to the inner storage's view without fsync, and count where all others do."""
    counting = CountingStorage(LocalStorage(str(tmp_path)))
    relaxed = counting.without_fsync()
    assert isinstance(relaxed, CountingStorage)
    assert isinstance(relaxed.inner, LocalStorage)
    assert isinstance(counting.inner, LocalStorage)
    assert (counting.inner._fsync, relaxed.inner._fsync) == (True, False)
    relaxed.put("a", b"x")
    assert counting.get("a") == b"x"
    assert counting.take() == {"get": 1, "put": 1}
    assert relaxed.take() == {}
    heap = CountingStorage(HeapStorage())
    assert heap.without_fsync() is heap


def test_a_relaxed_view_fails_with_the_storage_it_is_of(tmp_path: Path) -> None:
    """It is the same process: its requests have numbers of one row, and it stops with it."""
    faulty = FaultyStorage(LocalStorage(str(tmp_path)))
    relaxed = faulty.without_fsync()
    relaxed.put("a", b"x")
    faulty.faults[2] = Fault.STOP_BEFORE
    faulty.put("b", b"x")
    with pytest.raises(ProcessStopped):
        relaxed.put("c", b"x")
    assert faulty.requests == ["put a", "put b", "put c"]
    assert faulty.stopped
    with pytest.raises(ProcessStopped):
        faulty.get("a")


def test_a_producer_without_acks_is_counted_and_does_not_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it uploads goes through the view without fsync: counted all the same."""
    counting = CountingStorage(LocalStorage(str(tmp_path)))
    store = attach(counting, create=True, clock=VirtualClock())
    store.topics.create("t")
    relaxed_uploads = []
    upload = LocalStorage.upload

    def watched(storage: LocalStorage, name: str) -> object:
        relaxed_uploads.append(not storage._fsync)
        return upload(storage, name)

    monkeypatch.setattr(LocalStorage, "upload", watched)
    chosen: tuple[AcksValue, ...] = (1, "all")
    for number, acks in enumerate(chosen):
        with store.producer(acks=acks) as producer:
            producer.send("t", b"x")
            counting.take()
            assert producer.flush() == {TopicPartition("t", 0): [range(number, number + 1)]}
            assert counting.take()["upload"] == 1
    assert relaxed_uploads == [True, False]


def test_a_wrapper_is_picklable() -> None:
    """It and its view without fsync arrive in another process around the same storage."""
    heap = HeapStorage()
    heap.put("a", b"x")
    counting = CountingStorage(heap)
    counting.get("a")
    arrived = pickle.loads(pickle.dumps(counting))
    assert (arrived.get("a"), arrived.take()) == (b"x", {"get": 1})
    assert pickle.loads(pickle.dumps(ForwardingStorage(heap))).get("a") == b"x"
