"""The file that makes a folder a store: ``txnlog.json``."""

from __future__ import annotations

import msgspec


class StoreFile(msgspec.Struct, frozen=True, tag_field="kind", tag="store"):
    """A store's identity and settings; written once, never changed.

    ``closes_chapters``: writers check, after a put, whether the entry's chapter is closed, so names
    may be freed soon. False for stores that older versions have created, and may write to.
    """

    store_id: str
    created_at_ms: int
    config: dict[str, str]
    closes_chapters: bool = False


DECODER = msgspec.json.Decoder(StoreFile)
