"""A storage whose own clock is the test's, or that has none."""

from __future__ import annotations

from txnlog.storage.base import Storage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.testing import VirtualClock


class TimedStorage(ForwardingStorage):
    """Tells when objects were put by ``storage_clock``; without one it tells nothing."""

    def __init__(self, inner: Storage, storage_clock: VirtualClock | None = None) -> None:
        super().__init__(inner)
        self.storage_clock = storage_clock
        self.created_ms: dict[str, int] = {}

    def put_if_absent(self, name: str, data: bytes) -> bool:
        created = super().put_if_absent(name, data)
        if created and self.storage_clock is not None:
            self.created_ms[name] = self.storage_clock.time_ms
        return created

    def modified_ms(self, name: str) -> int | None:
        return self.created_ms.get(name)
