"""Files in a store's folders whose names no object can have: nobody is stopped by them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import txnlog
from tests.support.replication.replica_folders import FIRST, make, skip_probes, values, write
from txnlog.names import TopicPartition
from txnlog.replication import Replicas
from txnlog.replication.roots.listings import Listings
from txnlog.results import MaintenanceFailure
from txnlog.testing import VirtualClock

STRAYS = (b"back\\slash", b"back\\slash.json", b"\xff.log", b"00000000000000000001.json\\", b"\xff")


@pytest.fixture(params=[1, 2], ids=["one root", "two roots"])
def store(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store with a bit of everything, and strays in each of its folders."""
    skip_probes(monkeypatch)
    url = str(tmp_path / ("a" if request.param == 1 else "control"))
    clock = VirtualClock()
    one_or_two = (
        txnlog.open(url, create=True, clock=clock) if request.param == 1 else make(tmp_path)
    )
    fill(one_or_two)
    for folder, _, _ in [*os.walk(os.fsencode(tmp_path / "a")), *os.walk(os.fsencode(url))]:
        for name in STRAYS if b"/." not in folder.removeprefix(os.fsencode(tmp_path)) else ():
            path = os.path.join(folder, name)  # noqa: PTH118 - no path of text can be that
            with open(path, "wb") as stray:  # noqa: PTH123
                stray.write(b"stray")
            os.utime(path, (1, 1))
    return url


def fill(store: txnlog.Store) -> None:
    store.topics.create("t", partitions=1)
    write(store, "1")
    with store.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", value=b"2")
            producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "g")
    store.storage.put_if_absent("staging/left", b"")


def test_nobody_is_stopped(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    clock = VirtualClock(seed=2)
    opened = txnlog.open(store, clock=clock)
    write(opened, "3")
    clock.time_ms += 40 * 86_400_000
    assert not [step for step in opened.maintain() if isinstance(step, MaintenanceFailure)]
    assert {found.state for found in opened.examine(with_contents=True)} <= {"ok", "note"}
    assert values(opened) == ["1", "2", "3"]
    assert opened.groups.describe("g").offsets[0].offset == 1
    if "one root" in request.node.name:
        return
    replicas = Replicas(opened)
    assert replicas.describe(with_lag=True).condition == "whole"
    assert [*replicas.verify(with_contents=True, repair=True)] == []
    replicas.add(str(tmp_path / "c"))
    replicas.remove("r0")
    replicas.add(str(tmp_path / "a"))
    replicas.forget("r0-0")
    assert [root.old for root in replicas.describe().replicas] == [(), (), ()]
    assert values(txnlog.open(store, clock=clock)) == ["1", "2", "3"]


@pytest.mark.parametrize(
    "path", ["topics/.DS_Store", "topics/notes.txt", "topics/b@d/data/0/x.log", "groups/notes.txt"]
)
def test_what_somebody_has_put_beside_the_topics(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_probes(monkeypatch)
    store = make(tmp_path)
    fill(store)
    stray = tmp_path / FIRST / path
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_bytes(b"stray")
    assert not [step for step in store.maintain() if isinstance(step, MaintenanceFailure)]
    replicas = Replicas(store)
    assert {one.kind for one in replicas.verify(with_contents=True)} <= {"extra"}
    replicas.remove("r1")
    replicas.add(str(tmp_path / "b"))
    replicas.forget("r1-0")
    replicas.elect("r1")
    assert replicas.describe().in_sync == ("r0-0", "r1-1")


def test_a_file_is_no_folder() -> None:
    """Its name may go on as that of a folder that comes after it."""
    with Listings(["r0-0"]) as listings:
        listings.add("r0-0", ((f"topics/{name}", 1) for name in ("a", "a-b/x", "a-c", "b/x/y")))
        assert [*listings.folders("topics")] == ["a-b", "b"]
