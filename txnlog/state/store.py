"""The file that makes a folder a store: ``txnlog.json``."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from txnlog.config import check_stored_store_config
from txnlog.limits import MOST_MARK_BYTES, Name, Settings, TimeMs


class StoreFile(msgspec.Struct, frozen=True, tag_field="kind", tag="store"):
    """A store's identity and settings; written once, never changed."""

    most_bytes: ClassVar[int] = MOST_MARK_BYTES

    store_id: Name
    created_at_ms: TimeMs
    config: Settings

    def __post_init__(self) -> None:
        check_stored_store_config(self.config)


DECODER = msgspec.json.Decoder(StoreFile)
