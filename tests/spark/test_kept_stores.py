"""What a process of Spark's keeps between writes: stores that are open, and modules."""

from __future__ import annotations

import gc
import logging
import shutil
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

import txnlog
from txnlog.errors import StoreNotFound
from txnlog.replication import Follower, Standby, open_replicas
from txnlog.replication.roots.replicated_storage import find_replicated
from txnlog.spark.batch import worker_objects
from txnlog.spark.options.store_options import open_kept
from txnlog.storage.base import Address


@pytest.fixture
def address(tmp_path: Path) -> Address:
    """Of a store with a topic."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    store.topics.create("t")
    return Address(store.url, {})


def test_who_writes_decides_which_roots_take_part(tmp_path: Path) -> None:
    """Also while it plans: it may read first, from a leader that is gone."""
    roots = [str(tmp_path / "a"), str(tmp_path / "b")]
    made = open_replicas(roots, controller=str(tmp_path / "control"), create=True)
    kept = find_replicated(open_kept(Address(made.store.url, {})).storage)
    assert kept is not None
    assert not kept.agreement.observes


def test_what_is_known_is_not_read_again(
    address: Address, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch costs the same, however many came before it, though its process reads no log anew."""
    caplog.set_level(logging.DEBUG, "txnlog.requests")

    def batch() -> list[str]:
        """The requests, without what they cost."""
        caplog.clear()
        kept = open_kept(address)
        kept.logs.topic_spec("t")
        return [r.getMessage().partition(":")[0] for r in caplog.records if r.name.endswith("sts")]

    def append() -> None:
        with txnlog.open(address.url).producer() as producer:
            producer.send("t", b"x")

    first = batch()
    assert sum(request.startswith("get topics/") for request in first) == 1
    counts = []
    for _ in range(40):  # checkpoints are put meanwhile
        append()
        requests = batch()
        counts.append(len(requests))
        assert "get txnlog.json" in requests
        [read] = [request for request in requests if request.startswith("get topics/")]
        assert read.count("json") == 1, "the entry that is new"
        assert not [request for request in requests if request.startswith("list ")]
    assert len({*counts}) <= 2


def test_a_store_that_was_replaced_is_opened_again(address: Address, tmp_path: Path) -> None:
    """Its logs are others: nothing of what was known holds."""
    kept = open_kept(address)
    assert open_kept(address) is kept
    assert open_kept(Address(address.url, {}, unsafe_single_writer=True)) is not kept
    shutil.rmtree(address.url)
    with pytest.raises(StoreNotFound):
        open_kept(address)
    new = txnlog.open(address.url, create=True)
    assert open_kept(address).store_id == new.store_id != kept.store_id
    assert open_kept(address) is not kept


def test_a_standby_and_replicas_are_opened_each_time(tmp_path: Path) -> None:
    """One may have been promoted since, the others have lost records in an unclean election."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    Follower(store, str(tmp_path / "standby")).follow()
    standby = Address(str(tmp_path / "standby"), {})
    assert open_kept(standby) is not open_kept(standby)
    Standby(txnlog.open(standby.url)).promote()
    assert open_kept(standby) is open_kept(standby)
    urls = [str(tmp_path / name) for name in ("a", "b", "control")]
    open_replicas([urls[0], urls[1]], controller=urls[2], create=True)
    replicated = Address(urls[2], {})
    assert open_kept(replicated) is not open_kept(replicated)


def test_few_stores_are_kept(tmp_path: Path) -> None:
    """Those that were used last."""
    stores = []
    for number in range(6):
        txnlog.open(str(tmp_path / f"{number}"), create=True)
        stores.append(open_kept(Address(str(tmp_path / f"{number}"), {})))
        assert open_kept(Address(str(tmp_path / "0"), {})) is stores[0]
    assert open_kept(Address(str(tmp_path / "5"), {})) is stores[5]
    assert open_kept(Address(str(tmp_path / "1"), {})) is not stores[1]


@pytest.fixture
def thawed() -> Iterator[None]:
    """All objects are garbage's candidates, as in a worker; afterwards as before."""
    was_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    yield
    gc.unfreeze()
    if was_frozen:
        gc.freeze()


def test_modules_are_spared_in_workers_alone(monkeypatch: pytest.MonkeyPatch, thawed: None) -> None:
    """Once, and again when more of them were loaded."""

    def is_spared(one: object) -> bool:
        """Whether the collector passes over it."""
        return all(one is not other for other in gc.get_objects())

    first = [[1]]
    worker_objects.spare_modules()
    assert not is_spared(first)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("pyspark.daemon", None))
    worker_objects.spare_modules()
    assert is_spared(first)
    assert is_spared(vars(txnlog))
    last = [[3]]
    worker_objects.spare_modules()
    assert not is_spared(last)
    monkeypatch.setitem(sys.modules, "a_module_of_this_test", sys)
    worker_objects.spare_modules()
    assert is_spared(last)
