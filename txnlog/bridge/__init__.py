"""Topics of a running Kafka, in and out: each record once.

    from txnlog.bridge import KafkaSource

    KafkaSource(store, "broker:9092", ["orders"]).run(until_end=True)

Needs the extra ``kafka``. See docs/MOVING_FROM_KAFKA.md.
"""

from txnlog.bridge.base import BridgeCommit
from txnlog.bridge.group_offsets import TranslatedOffset, translate_offsets
from txnlog.bridge.sink import KafkaSink
from txnlog.bridge.source import KafkaSource

__all__ = ["BridgeCommit", "KafkaSink", "KafkaSource", "TranslatedOffset", "translate_offsets"]
