"""Manifests that are damaged on a root: the list that names one has its checksum."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import txnlog
from tests.support.log.settling import settle_early
from tests.support.replication.replica_folders import (
    FIRST,
    SECOND,
    make_written,
    objects,
    reopened,
    values,
    write,
)
from txnlog import names
from txnlog.errors import CorruptEntry, InvalidOption
from txnlog.replication import Replicas

pytestmark = pytest.mark.rule("R14")

ROOTS = pytest.mark.parametrize("root", [FIRST, pytest.param(SECOND, marks=pytest.mark.more)])
SENT = [str(number) for number in range(16)]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> txnlog.Store:
    """Most of what was sent is in manifests, and some of it was merged."""
    settle_early(monkeypatch)
    store = make_written(tmp_path, SENT[0])
    for value in SENT[1:8]:
        write(store, value)
    assert store.maintenance.merge("t")
    for value in SENT[8:]:
        write(store, value)
    return store


def unframed(folder: Path, suffix: str) -> list[Path]:
    found = [*(folder / names.topic_manifests("t")).glob(f"*{suffix}")]
    assert found
    return found


def damage(folder: Path, suffix: str = ".arrow", share: float = 0.5) -> list[Path]:
    found = unframed(folder, suffix)
    for path in found:
        data = bytearray(path.read_bytes())
        data[int(len(data) * share)] ^= 1
        path.write_bytes(data)
    return found


@pytest.mark.usefixtures("made")
@ROOTS
@pytest.mark.parametrize(
    ("suffix", "share"),
    [
        (".arrow", 0.5),
        (".rewrites", 0.5),
        pytest.param(".arrow", 0, marks=pytest.mark.more),
        pytest.param(".arrow", 0.99, marks=pytest.mark.more),
        pytest.param(".rewrites", 0.01, marks=pytest.mark.more),
    ],
)
def test_it_is_read_from_another_root(
    tmp_path: Path, root: str, suffix: str, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    damage(tmp_path / root, suffix, share)
    with caplog.at_level(logging.WARNING):
        store = reopened(tmp_path)
        assert values(store) == SENT
    assert sorted(Replicas(store).describe().in_sync) == ["r0-0", "r1-0"]
    if (root, suffix) == (FIRST, ".arrow"):
        assert "is read from" in caplog.text
        assert "verify --deep --repair" in caplog.text


@pytest.mark.usefixtures("made")
def test_a_manifest_that_is_damaged_everywhere(tmp_path: Path) -> None:
    for root in (FIRST, SECOND):
        damage(tmp_path / root)
    with pytest.raises(CorruptEntry, match="is damaged"):
        values(reopened(tmp_path))


@ROOTS
def test_it_is_found_and_repaired(made: txnlog.Store, tmp_path: Path, root: str) -> None:
    """Whoever has it damaged is blamed, of two roots too."""
    whole = objects(tmp_path / root)
    blamed = {str(path.relative_to(tmp_path / root)) for path in damage(tmp_path / root)}
    member = "r0-0" if root == FIRST else "r1-0"
    found = [*Replicas(made).verify(with_contents=True, repair=True)]
    assert {one.name for one in found} == blamed
    assert {(one.kind, one.members, one.is_repaired) for one in found} == {
        ("damaged", (member,), True)
    }
    assert objects(tmp_path / root) == whole


def test_who_joins_copies_what_is_whole(made: txnlog.Store, tmp_path: Path) -> None:
    whole = objects(tmp_path / FIRST)
    damage(tmp_path / FIRST)
    Replicas(made).add(str(tmp_path / "c"))
    assert objects(tmp_path / "c/incarnation-00000") == whole


def test_what_a_root_had_when_it_was_put_out_is_taken(made: txnlog.Store, tmp_path: Path) -> None:
    """Nobody in sync has it whole; until then the old incarnation stays."""
    Replicas(made).remove("r1")
    for suffix in (".arrow", ".rewrites"):
        damage(tmp_path / FIRST, suffix)
    replicas = Replicas(reopened(tmp_path))
    with pytest.raises(InvalidOption, match=r"only r1-0 has .* verify --deep --repair"):
        replicas.forget("r1-0")
    found = [*replicas.verify(with_contents=True, repair=True)]
    assert found
    assert all(one.is_repaired for one in found)
    assert values(reopened(tmp_path)) == SENT
    assert replicas.forget("r1-0").objects
    assert values(reopened(tmp_path)) == SENT
