"""Replicated stores in three folders: two roots, `a` and `b`, and `control`."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import txnlog
from txnlog.errors import StorageError
from txnlog.replication import open_replicas, root_names
from txnlog.replication.roots import controller_move, find_replicas
from txnlog.storage.adapters.local import LocalStorage
from txnlog.testing import VirtualClock

_SEEDS = itertools.count(1)
_BEGUN_MS = VirtualClock().now_ms()
FIRST, SECOND = "a/incarnation-00000", "b/incarnation-00000"
"""The folders of the first incarnations."""


def skip_probes(patch: pytest.MonkeyPatch) -> None:
    """The probe is tested elsewhere, and takes longer than all that is done with these folders."""
    for module in (find_replicas, controller_move):
        patch.setattr(module, "probe", lambda _: None)


def make(folder: Path, **config: object) -> txnlog.Store:
    return make_with(VirtualClock(), folder, **config)


def make_with(clock: VirtualClock, folder: Path, **config: object) -> txnlog.Store:
    """Stores differ by what their clocks give at random."""
    return open_replicas(
        [str(folder / "a"), str(folder / "b")],
        controller=str(folder / "control"),
        create=True,
        config=config,
        clock=clock,
    ).store


def make_written(folder: Path, *sent: str) -> txnlog.Store:
    """With a topic ``t`` of one partition and these records in it."""
    store = make(folder)
    store.topics.create("t", partitions=1)
    write(store, *sent)
    return store


def reopened(folder: Path, which: str = "control") -> txnlog.Store:
    """The store as another process opens it, whose names and times are others than before."""
    seed = next(_SEEDS)
    return txnlog.open(str(folder / which), clock=VirtualClock(_BEGUN_MS + seed, seed=seed))


def write(store: txnlog.Store, *values: str) -> None:
    with store.producer() as producer:
        for value in values:
            producer.send("t", value=value.encode())


def values(store: txnlog.Store) -> list[str]:
    return [value.decode() for value in store.scan("t").to_arrow()["value"].to_pylist()]


def objects(folder: Path) -> dict[str, bytes]:
    found = LocalStorage(str(folder))
    return {
        name: found.get(name)
        for name, _ in found.list_all("")
        if not name.startswith((root_names.MEMBER_MARKS, "."))
    }


def lose(folder: Path) -> Callable[[], object]:
    """Take a disk away: an empty folder is in its place. Returns how to bring it back."""
    away = folder.with_name(f"{folder.name}-away")
    folder.rename(away)
    folder.mkdir()

    def bring_back() -> None:
        shutil.rmtree(folder)
        away.rename(folder)

    return bring_back


def break_sector(patch: pytest.MonkeyPatch, path: Path) -> None:
    """A file cannot be read; one that takes its place can."""

    def which(at: Path) -> tuple[int, int]:
        found = at.stat()
        return found.st_ino, found.st_mtime_ns  # a number that is free is given to the next one

    broken = which(path)

    def breaking(method: str) -> None:
        read = getattr(LocalStorage, method)

        def reads(self: LocalStorage, name: str, *more: int) -> object:
            at = Path(self.url) / name
            if at.exists() and which(at) == broken:
                raise StorageError(f"{at}: input/output error")
            return read(self, name, *more)

        patch.setattr(LocalStorage, method, reads)

    for method in ("get", "get_range", "open_file"):
        breaking(method)
