"""What all tests of replicas share."""

from __future__ import annotations

import pytest

from tests.support.replication.replica_folders import skip_probes


@pytest.fixture(autouse=True)
def unprobed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe is tested elsewhere."""
    skip_probes(monkeypatch)
