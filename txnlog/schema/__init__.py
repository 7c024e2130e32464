"""The schema of a typed topic: which columns its records have, and how they may change.

Knows Arrow's types, and nothing of files. Every column, nested ones too, has an id of its own for
as long as the topic lives: it is written into the files, as engines that read tables expect.
"""

from __future__ import annotations

from txnlog.schema.topic_schema import (
    DELETED,
    HEADERS,
    OFFSET,
    PARTITION,
    RESERVED,
    TIMESTAMP,
    TOPIC,
    TopicSchema,
)

__all__ = [
    "DELETED",
    "HEADERS",
    "OFFSET",
    "PARTITION",
    "RESERVED",
    "TIMESTAMP",
    "TOPIC",
    "TopicSchema",
]
