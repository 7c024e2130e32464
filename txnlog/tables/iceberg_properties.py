"""What our Iceberg tables say of themselves, in properties and in summaries of snapshots."""

from __future__ import annotations

from typing import Final

TOPIC_ID: Final = "txnlog.topic-id"
END_OFFSETS: Final = "txnlog.end-offsets"
"""Of a snapshot: JSON, by partition how far it reaches."""
NEXT_ENTRY: Final = "txnlog.next-entry"
"""Of a table: how far the topic's log was read. Changes of columns are no snapshot."""
SHOWN_AT: Final = "txnlog.shown-at-ms"
"""Of a snapshot: when it was shown first, by the clock of who has shown it."""
KEEP_FILES: Final = {"gc.enabled": "false"}
"""Expiring snapshots would delete segments, which readers of the topic may still need."""
