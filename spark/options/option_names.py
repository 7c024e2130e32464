"""The names of options, as they are documented, and those that txnlog sets for itself."""

from __future__ import annotations

from txnlog.spark.options.kafka_client_options import IGNORE_KAFKA_CLIENT_OPTIONS

STORAGE_PREFIX = "storage."
TYPED_STORAGE = "storage.json"
"""Set by txnlog itself: JSON of the storage options that are not strings, or whose names are not in
lower case, in which Spark passes all names.
"""

KAFKA_GROUP_ID = "kafka.group.id"
"""The one name that means something else with ``kafka.`` in front, as in Spark's Kafka source: the
group that a client calls itself by. It says nothing of where a read starts."""
KAFKA_SPELLINGS = (
    "isolation.level",
    "transactional.id",
    "transaction.timeout.ms",
    "compression.type",
)
"""Options of the Kafka connector with the prefix ``kafka.`` that mean the same here."""

STAGING = "txnlog.staging"
"""Set by ``transaction(...)`` on its writes, never by people: where to stage its uploads."""

FILLER = "txnlog.filler"
"""Set by ``transaction(...)`` on its writes: the first text of rows to drop."""

PINNED_SNAPSHOT = "txnlog.snapshot"
"""Set on what the driver has pinned: a token of the topics as they were then."""

PINNED_SPANS = "txnlog.spans"
"""Set on what the driver has pinned: JSON of the offsets that the data source reads, by topic and
partition: [[start, stop], ...]. What lies between them does not show, or Spark itself reads it.
"""

ORIGIN = "txnlog.origin"
"""Set by ``transaction(...)`` on its reads and writes: JSON of the block that they belong to."""

AT_TIMESTAMP = "atTimestamp"
AT_TOKEN = "atToken"  # noqa: S105 - of a snapshot
"""The snapshot of the past to read."""

PRE_IMAGES = "preImages"
"""Whether to read a feed of changes."""
SINCE_TIMESTAMP = "sinceTimestamp"
SINCE_TOKEN = "sinceToken"  # noqa: S105 - of a snapshot
"""Where a feed of changes begins, in a batch."""

READ_OPTIONS = (
    "path",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    AT_TIMESTAMP,
    AT_TOKEN,
    PRE_IMAGES,
    SINCE_TIMESTAMP,
    SINCE_TOKEN,
    "isolation.level",
    "group.id",
    KAFKA_GROUP_ID,
    "transactional.id",
    "transaction.timeout.ms",
    "maxRecords",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxBytesPerPartition",
    "openCostInBytes",
    "includeHeaders",
    "columns",
    "failOnDataLoss",
    "onCorrupt",
    "unsafeSingleWriter",
    IGNORE_KAFKA_CLIENT_OPTIONS,
)
WRITE_OPTIONS = (
    "path",
    "topic",
    "includeHeaders",
    "partitioner",
    "compression.type",
    "compression.level",
    "transactional.id",
    "transaction.timeout.ms",
    "outsideTransaction",
    "unsafeSingleWriter",
    IGNORE_KAFKA_CLIENT_OPTIONS,
)
RATE_OPTIONS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
"""Rates of streams: not for batches."""
