"""Filesystems that let two writers win are refused: at creation, and before a first write."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from werkzeug.serving import make_server

from tests.support.tiers import more
from txnlog.errors import ObjectNotFound, PutIfAbsentBroken, StorageError, StoreNotFound
from txnlog.replication.roots.epochs import Root
from txnlog.replication.roots.members import MemberOpener
from txnlog.replication.roots.old_incarnations import delete_incarnation
from txnlog.storage import open_storage
from txnlog.storage import probe as probe_module
from txnlog.storage.adapters.s3 import S3Storage
from txnlog.storage.base import PARALLEL_REQUESTS, Storage
from txnlog.storage.counting import CountingStorage
from txnlog.storage.probe import (
    CREATION_ROUNDS,
    FIRST_WRITE_ROUNDS,
    check_before_first_write,
    probe,
)
from txnlog.storage.server_storage import check_once
from txnlog.store import attach

T = TypeVar("T")

_COUNTER = itertools.count()


def in_memory() -> Storage:
    return open_storage(f"memory://probe-{next(_COUNTER)}")


class Races(CountingStorage):
    """Keeps every promise; knows whether its callers race."""

    racing = False

    def race(self, call: Callable[[int, int], T], rounds: int) -> list[list[T]]:
        self.racing = True
        try:
            return super().race(call, rounds)
        finally:
            self.racing = False


class LooksThenWrites(Races):
    """In some races two creates look before either writes: both win, and the last one's bytes stay.

    Which races is decided by a seed; what is not raced is created properly.
    """

    def __init__(self, inner: Storage, seed: int, share: float) -> None:
        super().__init__(inner)
        self._chance = random.Random(seed)
        self._share = share
        self._met: dict[str, threading.Barrier | None] = {}
        self._looked: Counter[str] = Counter()
        self._mutex = threading.Lock()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        with self._mutex:
            if self.racing and name not in self._met:
                lies = self._chance.random() < self._share
                self._met[name] = threading.Barrier(3) if lies else None
            met = self._met.get(name)
            self._looked[name] += 1
            looked = self._looked[name]
        if met is None or looked > 3:
            return super().put_if_absent(name, data)
        if looked == 3:
            met.wait()  # whoever looked when it was there, but only then
            return super().put_if_absent(name, data)
        with self._mutex:
            self.inner.delete([name])
            self.inner.put(name, data)
        met.wait()
        return True


@pytest.mark.parametrize("seed", [*range(10), *more(range(10, 40))])
def test_a_server_that_fails_in_some_races_is_refused(seed: int) -> None:
    """In each of 40 tries, though only three races of ten show it."""
    liar = LooksThenWrites(in_memory(), seed, 0.3)
    with pytest.raises(
        PutIfAbsentBroken, match=r"2 of (4|16) racing creates succeeded.*looks first"
    ):
        attach(liar, create=True)
    assert list(liar.list_all("")) == []
    with pytest.raises(StoreNotFound):
        attach(liar)


class CannotBeRead(LooksThenWrites):
    """And what several winners leave behind is so torn that the server refuses to read it."""

    def get(self, name: str) -> bytes:
        if self._met.get(name) is not None:
            raise StorageError("the checksum does not match")
        return super().get(name)


class ReplacesWhatItRefuses(Races):
    """Says that a name is taken, and writes all the same; in a race it behaves."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        created = super().put_if_absent(name, data)
        if not created and not self.racing:
            self.inner.delete([name])
            self.inner.put(name, data)
        return created


class ListsWhatIsDeleted(Races):
    """Listings go on to show an object for a while when it is gone."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._shown: list[str] = []

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        self._shown = super().list_names(folder, start_after) or self._shown
        return self._shown


@pytest.mark.parametrize(
    ("liar", "told"),
    [
        (ReplacesWhatItRefuses, "a refused create replaced the object"),
        (ListsWhatIsDeleted, "or showed what was deleted"),
    ],
)
def test_a_server_that_fails_without_a_race_is_refused(liar: type[Races], told: str) -> None:
    """One request after the other is enough to see it."""
    with pytest.raises(PutIfAbsentBroken, match=told):
        probe(liar(in_memory()))


def test_a_torn_object_does_not_hide_who_has_won() -> None:
    """An error of a read is tried again later; two winners are the end of it."""
    with pytest.raises(PutIfAbsentBroken, match=r"2 of (4|16) racing creates"):
        probe(CannotBeRead(in_memory(), 0, 1.0))


class FailsReads(Races):
    """A refused racer cannot read."""

    def get(self, name: str) -> bytes:
        if self.racing:
            raise StorageError("the connection was reset")
        return super().get(name)


def test_a_loser_that_cannot_read_has_seen_nothing() -> None:
    """It is not a proof of anything: the error is raised."""
    storage = FailsReads(in_memory())
    with pytest.raises(StorageError, match="connection was reset"):
        probe(storage)
    assert list(storage.list_all("")) == []


def test_a_server_that_fails_in_most_races_is_refused_before_a_first_write() -> None:
    """The shorter check, against what was measured of one: 97 races of 100 show it."""
    for seed in range(40):
        liar = LooksThenWrites(in_memory(), seed, 0.97)
        with pytest.raises(PutIfAbsentBroken, match="racing creates succeeded"):
            check_before_first_write(liar)
        assert list(liar.list_all("")) == []


class ShowsHalf(Races):
    """A large object can be read while it is written."""

    def get(self, name: str) -> bytes:
        data = super().get(name)
        return data[: len(data) // 2] if self.racing and len(data) > 1000 else data


class ListsLate(Races):
    """A created object is not listed at once."""

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        return super().list_names(folder, start_after)[1 if self.racing else 0 :]


class ReadsLate(Races):
    """A created object is not found at once."""

    def get(self, name: str) -> bytes:
        if self.racing:
            raise ObjectNotFound(f"there is no {name}")
        return super().get(name)


class KeepsAnothers(Races):
    """The winner is told that it has won, and a loser's bytes are kept."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        won = super().put_if_absent(name, data)
        if won and self.racing:
            self.inner.delete([name])
            self.inner.put(name, data.replace(b"racer 0", b"racer 9"))
        return won


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (ShowsHalf, "a refused create read something else.*objects whole"),
        (ListsLate, "a refused create did not list the object.*strong consistency"),
        (ReadsLate, "a refused create read something else"),
        (KeepsAnothers, "a race left other bytes than its winner's"),
    ],
)
def test_losers_must_see_the_winners_object(kind: type[Races], why: str) -> None:
    """A refused writer reads and lists at once: half an object, or none, is not an object store."""
    storage = kind(in_memory())
    with pytest.raises(PutIfAbsentBroken, match=why):
        probe(storage)
    assert list(storage.inner.list_all("")) == []


class LosesResponses(Races):
    """The winner is told that the name is taken, as after a repetition by the client."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        super().put_if_absent(name, data)
        return False


def test_a_lost_response_is_no_reason_to_refuse() -> None:
    """Nobody was told that it has won, and one racer's whole object is there."""
    assert probe(LosesResponses(in_memory())).checks


class Fails(Races):
    """One racer's request fails."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if b"race 02, racer 07" in data:
            raise StorageError("the connection was reset")
        return super().put_if_absent(name, data)


def test_an_error_ends_the_races() -> None:
    """It is raised, not taken for an answer; nothing is left, nobody waits for the next round."""
    storage = Fails(in_memory())
    with pytest.raises(StorageError, match="connection was reset"):
        probe(storage)
    assert list(storage.list_all("")) == []
    assert storage.counts["put_if_absent"] <= 2 + 3 * PARALLEL_REQUESTS


def test_racers_begin_at_the_same_moment() -> None:
    """All of a round are under way before one of them ends, in round after round."""
    everybody = threading.Barrier(PARALLEL_REQUESTS)

    def call(number: int, racer: int) -> tuple[int, int]:
        everybody.wait(30)
        return number, racer

    raced = in_memory().race(call, 3)
    assert raced == [[(number, racer) for racer in range(PARALLEL_REQUESTS)] for number in range(3)]


def test_what_the_probes_cost() -> None:
    """Requests: two creates and 16 for each round of races, and a few reads and listings.

    A round is four races of 4, or one of 16: five objects in two rounds, each read once, and by two
    of those who were refused in a round.
    """
    storage = CountingStorage(in_memory())
    for rounds, check in (
        (CREATION_ROUNDS, probe),
        (FIRST_WRITE_ROUNDS, check_before_first_write),
    ):
        check(storage)
        spent = storage.take()
        assert spent.pop("put_if_absent") == 2 + rounds * PARALLEL_REQUESTS
        assert spent.pop("get") <= 1 + 2 * rounds + 5 * rounds // 2
        assert spent.pop("list") <= 2 + 2 * rounds
        assert spent == {"delete": 1, "get_range": 1}
    assert CREATION_ROUNDS >= 20
    assert FIRST_WRITE_ROUNDS >= 6


# -- once per process ----------------------------------------------------------------------------


def test_a_check_is_made_once() -> None:
    """Sixteen threads begin to write at once: one checks, the others wait for what it finds."""
    server, checks, waiting = object(), [], threading.Barrier(16)
    another = threading.Event()

    def check() -> None:
        checks.append(1)
        if len(checks) > 1:
            another.set()
        another.wait(0.2)  # time for a second check to begin, if nothing holds it back

    def write(_: int) -> None:
        waiting.wait(30)
        check_once(server, check)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(write, range(16)))
    assert checks == [1]


def test_a_refusal_is_remembered_and_a_failure_is_not() -> None:
    """A server that lies sometimes must not be asked until it happens to pass."""
    server = object()
    answers: Iterator[Exception] = iter([StorageError("down"), PutIfAbsentBroken("2 of 16 won")])

    def check() -> None:
        raise next(answers)

    with pytest.raises(StorageError, match="down"):
        check_once(server, check)
    for _ in range(2):
        with pytest.raises(PutIfAbsentBroken, match="2 of 16 won"):
            check_once(server, check)


# -- over real HTTP ------------------------------------------------------------------------------

_SECRET = "hunter2/hunter2+hunter2"


@pytest.fixture
def bucket(s3_options: dict[str, Any]) -> str:
    """A bucket that this process knows nothing of yet."""
    import s3fs

    name = f"probe-{os.getpid()}-{next(_COUNTER)}"
    s3fs.S3FileSystem(**s3_options).call_s3("create_bucket", Bucket=name)
    return name


def count_probes(requests: list[Any], since: int = 0) -> int:
    """How many creates of probes the server was asked for."""
    return sum(r.method == "PUT" and "/.probe/" in r.path for r in requests[since:])


_SHORT = 2 + FIRST_WRITE_ROUNDS * PARALLEL_REQUESTS


@contextmanager
def lying_server() -> Iterator[tuple[str, list[str]]]:
    """An endpoint over the same buckets: of creates of one name that overlap it lets two win.

    It looks at the condition when a request comes, and writes when another has come too.
    """
    from moto.moto_server.werkzeug_app import create_backend_app

    application = create_backend_app("s3")
    lock = threading.Lock()
    waiting: dict[str, threading.Event] = {}
    met: set[str] = set()
    asked: list[str] = []

    def lies(environ: dict[str, Any], start_response: Any) -> Any:
        path, conditional = environ["PATH_INFO"], "HTTP_IF_NONE_MATCH" in environ
        first, second = None, False
        with lock:
            asked.append(f"{environ['REQUEST_METHOD']} {path}")
            if conditional and path in waiting:
                waiting.pop(path).set()
                met.add(path)
                second = True
            elif conditional and path not in met:
                first = waiting[path] = threading.Event()
        if first is not None:
            first.wait(0.2)
            with lock:
                waiting.pop(path, None)
        if second or (first is not None and first.is_set()):
            del environ["HTTP_IF_NONE_MATCH"]
        with lock:
            return list(application(environ, start_response))

    server = make_server("127.0.0.1", 0, lies, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.more
@pytest.mark.s3
def test_a_store_is_not_written_to_through_a_server_that_lies(
    s3_options: dict[str, Any], bucket: str
) -> None:
    """The store was made elsewhere: it can be read; the first write is refused, and each later."""
    url = f"s3://{bucket}/store"
    honest = attach(open_storage(url, s3_options), create=True)
    honest.topics.create("t")
    with honest.producer() as producer:
        producer.send("t", b"x")
    with lying_server() as (endpoint, asked):
        options = {**s3_options, "endpoint_url": endpoint, "secret": _SECRET}
        with pytest.raises(PutIfAbsentBroken, match=r"of (4|16) racing creates succeeded"):
            attach(open_storage(f"s3://{bucket}/new", options), create=True)
        store = attach(open_storage(url, options))
        assert store.scan("t").to_arrow().column("value").to_pylist() == [b"x"]
        with pytest.raises(PutIfAbsentBroken, match=rf"{url} .*Nothing was written") as caught:
            store.topics.create("u")
        assert _SECRET not in str(caught.value)
        before = len(asked)
        with pytest.raises(PutIfAbsentBroken, match=r"of (4|16) racing creates succeeded"):
            attach(open_storage(url, options)).topics.create("u")
        assert not [text for text in asked[before:] if text.startswith("PUT")]
        assert store.topics.list() == ["t"]
    assert not honest.storage.list_folders(".probe")


@pytest.mark.more
@pytest.mark.s3
def test_who_made_the_store_checks_no_more(
    s3_options: dict[str, Any], s3_requests: list[Any], bucket: str
) -> None:
    """The probe at creation is all, for this process and bucket, whatever else it makes there."""
    since = len(s3_requests)
    store = attach(open_storage(f"s3://{bucket}/store", s3_options), create=True)
    assert count_probes(s3_requests, since) == 2 + CREATION_ROUNDS * PARALLEL_REQUESTS
    since = len(s3_requests)
    store.topics.create("t")
    attach(open_storage(f"s3://{bucket}/another", s3_options), create=True).topics.create("t")
    assert count_probes(s3_requests, since) == 0


@pytest.mark.more
@pytest.mark.s3
def test_a_short_check_is_not_enough_to_make_a_store(
    s3_options: dict[str, Any], s3_requests: list[Any], bucket: str
) -> None:
    """A process that has only written there runs all the races when it creates a store."""
    assert S3Storage(f"{bucket}/other", s3_options).put_if_absent("a", b"x")
    since = len(s3_requests)
    attach(open_storage(f"s3://{bucket}/store", s3_options), create=True)
    assert count_probes(s3_requests, since) == 2 + CREATION_ROUNDS * PARALLEL_REQUESTS


@pytest.mark.s3
def test_only_who_puts_entries_checks(
    s3_options: dict[str, Any], s3_requests: list[Any], bucket: str
) -> None:
    """Tasks that upload and readers pay nothing. Who puts pays once, however it opens."""
    since = len(s3_requests)
    storage = S3Storage(f"{bucket}/store", s3_options)
    storage.put("segment", b"x")
    with storage.upload("large") as upload:
        upload.write(b"x")
    assert storage.list_names("") == ["large", "segment"]
    assert count_probes(s3_requests, since) == 0
    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(lambda n: storage.put_if_absent(f"log/{n}", b"x"), range(16)))
    assert count_probes(s3_requests, since) == _SHORT
    assert S3Storage(f"{bucket}/other", s3_options).put_if_absent("a", b"x")
    assert count_probes(s3_requests, since) == _SHORT
    assert storage.list_folders("") == ["log"]


@pytest.mark.s3
def test_an_incarnation_that_is_deleted_says_nothing_of_its_server(
    s3_options: dict[str, Any],
    s3_requests: list[Any],
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A root comes back while a process that knew its former folder begins to write there."""
    root = f"s3://{bucket}/root"
    opener = MemberOpener(s3_options, [root])
    member = opener.at(Root(root), "r0-0", "made")
    create_twice = probe_module._check_create_twice

    def delete_then(*told: Any) -> None:
        create_twice(*told)
        delete_incarnation(opener.at(Root(root), "r0-0", "made"), "r0-0-made.json")

    monkeypatch.setattr(probe_module, "_check_create_twice", delete_then)
    since = len(s3_requests)
    assert member.put_if_absent("a", b"x")
    probed = {one.path for one in s3_requests[since:] if "/.probe/" in one.path}
    assert probed
    assert all(path.startswith(f"/{bucket}/root/.probe/") for path in probed)


_FORKS = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
from txnlog.storage import open_storage
storage = open_storage(sys.argv[1], json.loads(sys.argv[2]))
def write(name):
    assert storage.put_if_absent(name, b"x")
def in_child(name):
    child = os.fork()
    if child == 0:
        write(name)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
in_child("before")
write("parent")
in_child("after")
"""


@pytest.mark.more
@pytest.mark.s3
def test_a_forked_process_checks_at_most_once(
    s3_options: dict[str, Any], s3_requests: list[Any], bucket: str
) -> None:
    """A child that was forked before checks itself; one that was forked after knows already."""
    import json

    since = len(s3_requests)
    arguments = [sys.executable, "-c", _FORKS, f"s3://{bucket}/a", json.dumps(s3_options)]
    subprocess.run(arguments, check=True, timeout=60)
    assert count_probes(s3_requests, since) == 2 * _SHORT
