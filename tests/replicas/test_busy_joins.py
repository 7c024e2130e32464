"""A root joins while others write, merge, purge and delete: its cost, and what comes back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import txnlog
from tests.support.log.settling import settle_early
from tests.support.replication.replica_folders import make, reopened, write
from txnlog.replication import Replicas
from txnlog.replication.roots import root_join
from txnlog.replication.sound_copies import SoundCopies
from txnlog.storage.adapters.local import LocalStorage

ROUNDS = 8


class Busy:
    """A store with one of two roots out, and another process that acts while it joins again."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.store = make(folder)
        self.store.topics.create("t", config={"compression.type": "none"})
        write(self.store, "a", "b", "c")
        self.replicas = Replicas(self.store)
        self.replicas.remove("r1")
        self.other = reopened(folder)
        self.reads = 0
        self._patch = monkeypatch

    def between_listings(self, act: Callable[[txnlog.Store], object]) -> None:
        real = root_join._find_lacked

        def first(*told: Any) -> Any:
            act(self.other)
            return real(*told)

        self._patch.setattr(root_join, "_find_lacked", first)

    def behind_each_look(self, act: Callable[[txnlog.Store], object]) -> None:
        """Right after the joining process has read what the topic's log names."""
        real = SoundCopies.files

        def files(judge: SoundCopies, topic: str) -> set[str]:
            found = real(judge, topic)
            if topic == "t":
                self.reads += 1
                act(self.other)
            return found

        self._patch.setattr(SoundCopies, "files", files)

    def join(self) -> root_join.Joined:
        joined = self.replicas.add(str(self.folder / "b"))
        assert isinstance(joined, root_join.Joined)
        return joined

    def holding(self, word: bytes) -> list[Path]:
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return [path for path in files if word in path.read_bytes()]


def test_what_is_written_meanwhile_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writers put it at the joining root; and the log is read once, however busy it is."""
    busy = Busy(tmp_path, monkeypatch)
    busy.between_listings(lambda other: write(other, *(os.urandom(500).hex() for _ in range(9))))
    busy.behind_each_look(lambda other: write(other, "more"))
    assert busy.join().bytes < 2000
    assert busy.reads == 1


def test_what_comes_and_goes_meanwhile_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Manifests are joined, and the smaller ones deleted, all the time."""
    settle_early(monkeypatch)
    busy = Busy(tmp_path, monkeypatch)

    def write_on(other: txnlog.Store) -> None:
        for number in range(2 * ROUNDS):
            write(other, str(number))

    busy.between_listings(write_on)
    busy.behind_each_look(write_on)
    busy.join()
    assert busy.reads <= 2
    assert [*Replicas(reopened(tmp_path)).verify(with_contents=True)] == []


@pytest.mark.parametrize("lost", [False, True], ids=["there", "lost"])
def test_what_is_purged_meanwhile_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, lost: bool
) -> None:
    """Also where the leader has lost it, and who deletes it sleeps before it does so elsewhere."""
    busy = Busy(tmp_path, monkeypatch)
    busy.store.topics.alter("t", config={"file.delete.delay.ms": 0})
    Replicas(busy.store).add(str(tmp_path / "c"))
    with busy.store.producer() as producer:
        producer.send("t", b"of mallory", b"mallory")
    if lost:
        (doomed,) = (
            path for path in busy.holding(b"of mallory") if (tmp_path / "a") in path.parents
        )
        doomed.unlink()

    delete = LocalStorage.delete

    def delete_elsewhere(storage: LocalStorage, doomed: Iterable[str]) -> None:
        delete(storage, () if storage.url.startswith(str(tmp_path / "c")) else doomed)

    def purge(other: txnlog.Store) -> None:
        if busy.reads == 1 + lost:
            monkeypatch.setattr(LocalStorage, "delete", delete_elsewhere)
            other.maintenance.purge("t", [{"key": b"mallory"}])
            other.maintain()

    busy.behind_each_look(purge)
    busy.join()
    assert busy.reads >= 1 + lost
    (held,) = busy.holding(b"of mallory")
    assert tmp_path / "c" in held.parents


@pytest.mark.parametrize("anew", [False, True], ids=["deleted", "made anew"])
def test_nothing_of_a_deleted_topic_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, anew: bool
) -> None:
    """Its last list of manifests stays with its log; what that names is deleted."""
    settle_early(monkeypatch)
    busy = Busy(tmp_path, monkeypatch)
    for number in range(3 * ROUNDS):
        write(busy.store, str(number))
    busy.join()
    busy.store.topics.delete("t")
    if anew:
        busy.store.topics.create("t")
    for _ in range(2):
        busy.store.maintain()
    assert [*busy.replicas.verify(with_contents=True)] == []
    busy.replicas.forget("r1-0")
    busy.replicas.remove("r1")
    busy.join()
    assert [*tmp_path.glob("*/incarnation-*/topics/t/manifests/*.arrow")] == []
