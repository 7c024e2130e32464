"""What our Iceberg tables say of themselves, in properties and in summaries of snapshots."""

from __future__ import annotations

from typing import Final

TOPIC_ID: Final = "txnlog.topic-id"
END_OFFSETS: Final = "txnlog.end-offsets"
"""Of a snapshot: JSON, by partition how far it reaches."""
SHOWN_AT: Final = "txnlog.shown-at-ms"
"""Of a snapshot: when it was shown first, by the clock of who has shown it."""
KEEP_FILES: Final = {"gc.enabled": "false"}
"""Expiring snapshots would delete segments, which readers of the topic may still need."""
