"""The file that makes a folder a store: ``txnlog.json``."""

from __future__ import annotations

import msgspec


class StoreFile(msgspec.Struct, frozen=True, tag_field="kind", tag="store"):
    """A store's identity and settings; written once, never changed."""

    store_id: str
    created_at_ms: int
    config: dict[str, str]


DECODER = msgspec.json.Decoder(StoreFile)
