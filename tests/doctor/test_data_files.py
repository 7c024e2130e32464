"""Segments and other files: missing, damaged, or of no use to anybody."""

from __future__ import annotations

from pathlib import Path

from tests.doctor.broken_store import SMALL, examine
from txnlog.storage.adapters.local import LocalStorage
from txnlog.store import attach


def test_files_that_are_gone_short_or_nobodys() -> None:
    """Missing and truncated files are damage; what no entry places is told."""
    storage = SMALL.copy()
    first, second, *_ = sorted(
        name for name, _ in storage.list_all("topics/a/data") if name.endswith(".log")
    )
    storage.delete([first])
    short = storage.get(second)[:-1]
    storage.delete([second])
    storage.put(second, short)
    storage.put("topics/a/data/0/nobodys-0.log", b"x" * 10)
    storage.put("staging/t-000000.json", b"{}")
    found = {finding.path: finding for finding in examine(storage)}
    assert {found[first].state, found[second].state} == {"damage"}
    assert found["topics/a/data/0/nobodys-0.log"].state == "note"
    assert found["staging/t-000000.json"].check == "files"
    assert len(found) == 4


def test_contents_are_read_only_when_asked() -> None:
    """A flipped bit in a segment is found by reading it, which costs what it holds."""
    storage = SMALL.copy()
    victim = next(name for name, _ in storage.list_all("topics/b/data"))
    data = bytearray(storage.get(victim))
    data[-9] ^= 1
    storage.delete([victim])
    storage.put(victim, bytes(data))
    assert examine(storage) == []
    (found,) = examine(storage, with_contents=True)
    assert (found.state, found.path) == ("damage", victim)


def test_orphans_are_told_from_uploads_by_their_age(tmp_path: Path) -> None:
    """By the storage's own clock; nothing is deleted."""
    store = attach(LocalStorage(str(tmp_path)), create=True)
    store.topics.create("a")
    stray = tmp_path / "topics/a/data/0/w-0.log"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"x" * 10)
    (young,) = [f for f in store.examine(with_probe=False) if f.state != "ok"]
    assert (young.state, young.size_bytes) == ("note", 10)
    (old,) = [f for f in store.examine(with_probe=False, orphan_age_ms=0) if f.state != "ok"]
    assert (old.state, old.path, old.size_bytes) == ("orphan", "topics/a/data/0/w-0.log", 10)
    assert stray.exists()
