"""What all tests of replicas share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import txnlog
from tests.replicas.stalled_roots import LAG_MS, Gate, MakeStall, Stall
from tests.support.replication.replica_folders import make, skip_probes


@pytest.fixture(autouse=True)
def unprobed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe is tested elsewhere."""
    skip_probes(monkeypatch)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Before requests to roots; it is open before the next test begins."""
    gate = Gate(monkeypatch)
    yield gate
    gate.end()


@pytest.fixture
def lagging(gate: Gate, tmp_path: Path) -> txnlog.Store:
    """Two roots, of which one that does not answer for 0.2 s is slow."""
    return make(tmp_path, **{"replica.lag.time.max.ms": LAG_MS})


@pytest.fixture
def make_stall(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeStall]:
    """Make a :class:`Stall` that is over before the next test begins."""
    made: list[Stall] = []

    def make_one(kind: str, *folders: Path) -> Stall:
        made.append(Stall(monkeypatch, kind, *folders))
        return made[-1]

    yield make_one
    for stall in made:
        stall.end()
