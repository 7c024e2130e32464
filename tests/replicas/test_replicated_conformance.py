"""A replicated storage is a storage: the checks that every adapter passes."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path

import pytest

from tests.support.replication.replica_folders import skip_probes
from txnlog.clock import SystemClock
from txnlog.replication.roots import find_replicas
from txnlog.storage.base import Storage
from txnlog.testing.conformance.interface import CHECKS, Check, long_listings_are_complete

_NUMBERS = itertools.count()


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Storage:
    """A root in memory and one on a disk."""
    skip_probes(monkeypatch)
    url = f"memory://replicas-{next(_NUMBERS)}"
    roots = [f"{url}/root", str(tmp_path / "root")]
    return find_replicas.make_replicas(roots, f"{url}/control", None, {}, SystemClock())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_interface(storage: Storage, check: Check) -> None:
    if check is long_listings_are_complete:
        # fsspec's memory filesystem has no pages, and each create reads all names.
        check = partial(check, count=100)
    check(storage)
