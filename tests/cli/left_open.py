"""Transactions whose producer is gone, as of hours ago."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from txnlog.clock import SystemClock
from txnlog.storage import open_storage
from txnlog.store import attach

HOUR_MS = 3_600_000


class Earlier(SystemClock):
    """A machine's clock as it was some hours ago: what it wrote is old now."""

    def __init__(self, hours: int) -> None:
        self._behind_ms = hours * HOUR_MS

    def now_ms(self) -> int:
        return super().now_ms() - self._behind_ms


def leave_open(path: Path, name: str, hours: int) -> None:
    """Begin a transaction hours ago in ``empty``, and let its producer be gone."""
    store = attach(open_storage(str(path)), clock=Earlier(hours))
    producer = store.producer(transactional_id=name, transaction_timeout_ms=60_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("empty", name)
    producer.flush()
    begun_s = Earlier(max(hours, 0)).now_ms() / 1000
    for state in (path / "transactions" / quote(name)).iterdir():
        # By the disk's clock, too.
        os.utime(state, (begun_s, begun_s))
