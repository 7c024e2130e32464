"""Transactions that hang, and ids whose state is damaged."""

from __future__ import annotations

from tests.doctor.broken_store import DAY_MS, SMALL, BrokenStore, examine
from txnlog import names
from txnlog.store import attach
from txnlog.testing import VirtualClock


def test_an_id_whose_newest_state_is_damaged_is_named_with_the_way_out() -> None:
    """Which id, that readers wait for it, and the command; an older damaged state needs none."""
    for back, told in ((0, True), (1, False)):
        broken = BrokenStore()
        number, _ = broken.state("open", back)
        path = broken.path(names.transaction_log("open"), number)
        broken.replace(path, broken.storage.get(path)[:-9] + b"somewhat}")
        (found,) = examine(broken.storage)
        assert (found.state, found.check, found.subject) == ("damage", "transactions", "open")
        assert found.path == path
        assert ("txnlog txns abort --force open" in found.detail) is told


def test_a_hanging_transaction_is_told_and_left_alone() -> None:
    """Past its timeout, it is a finding of its own and no damage; the examination ends nothing."""
    storage = SMALL.copy()
    clock = VirtualClock(1_700_000_000_000 + DAY_MS, seed=9)
    before = dict(storage.list_all(""))
    found = [f for f in attach(storage, clock=clock).examine(with_probe=False) if f.state != "ok"]
    assert [(f.state, f.check, f.subject) for f in found] == [("hanging", "hanging", "open")]
    assert dict(storage.list_all("")) == before


def test_a_transaction_from_the_future_hangs() -> None:
    """Its producer's clock runs 30 days ahead: by its times nobody would end it before."""
    storage = SMALL.copy()
    before = attach(storage, clock=VirtualClock(1_700_000_000_000 - 30 * DAY_MS, seed=9))
    (found,) = [f for f in before.examine(with_probe=False) if f.state == "hanging"]
    assert found.subject == "open"
    assert f"in the future by {30 * DAY_MS}" in found.detail
