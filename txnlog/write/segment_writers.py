"""A segment's writer, by the settings of its topic."""

from __future__ import annotations

from txnlog.config import TopicConfig
from txnlog.log.uploads import TopicSpec
from txnlog.names import parquet_name
from txnlog.segments.batch_encoder import SupportsWrite
from txnlog.segments.batch_header import tag_of
from txnlog.segments.writer import SegmentWriter
from txnlog.state.producers import ProducerRef
from txnlog.state.transaction import TransactionRef


def new_segment_writer(
    sink: SupportsWrite,
    spec: TopicSpec,
    partition: int,
    name: str,
    *,
    stores_offsets: bool = False,
    max_record_bytes: int | None = None,
    producer: ProducerRef | TransactionRef | None = None,
) -> SegmentWriter:
    """The writer of a new segment; if it becomes a Parquet file ``names.parquet_name`` of ``name``.

    ``stores_offsets``: its records may have offsets with gaps. ``max_record_bytes``: instead of the
    topic's ``max.message.bytes``. ``producer``: whose records they are; None: not known, or those
    of several.
    """
    config = TopicConfig.of(spec.config)
    return SegmentWriter(
        sink,
        record_format=config.record_format,
        compression=config.compression,
        level=config.compression_level,
        max_record_bytes=max_record_bytes or config.max_message_bytes,
        index_interval_bytes=config.index_interval_bytes,
        tag=tag_of(name),
        segment_bytes=config.segment_bytes,
        stores_offsets=stores_offsets,
        parquet_compression=config.parquet_compression,
        parquet_level=config.parquet_compression_level,
        producer=None if producer is None else (producer.producer_id, producer.producer_epoch),
        origin={
            "txnlog.topic": spec.topic,
            "txnlog.topic_id": spec.topic_id,
            "txnlog.partition": str(partition),
            "txnlog.segment": parquet_name(name),
        },
    )
