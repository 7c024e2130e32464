"""Which settings a topic may have by its kind, and which it may change to."""

from __future__ import annotations

from collections.abc import Mapping

from txnlog.config import AUTO, PARQUET, TopicConfig
from txnlog.errors import InvalidConfig


def check_record_format_change(
    before: Mapping[str, str], after: Mapping[str, str], *, is_typed: bool
) -> None:
    """Raise InvalidConfig if a topic would begin to have Parquet files, or cease to.

    Batches of typed topics are newer than its Parquet files: with them there stays what versions
    must know that read it.
    """
    old, new = TopicConfig.of(before), TopicConfig.of(after)
    if is_typed and old.record_format == AUTO and new.record_format == PARQUET:
        raise InvalidConfig(
            "topic config record.format: a typed topic with auto has batches, and stays so"
        )
    if old.has_parquet != new.has_parquet:
        raise InvalidConfig(
            "topic config record.format: a topic is made with parquet or auto, or without both, "
            "for good. Make another topic, and copy the records in a transaction"
        )


def check_typed_config(config: Mapping[str, str], *, has_key: bool) -> None:
    """Raise InvalidConfig if a topic with a schema cannot have these settings."""
    settings = TopicConfig.of(config)
    if settings.record_format == "kafka":
        raise InvalidConfig(
            "topic config record.format: kafka has keys and values, no columns of a schema; leave "
            "it out for Parquet files, or set it to columns"
        )
    if settings.compacts and not has_key:
        raise InvalidConfig(
            "topic config cleanup.policy: the topic's schema has no key to compact by: use delete, "
            "or make the topic with a key"
        )


def check_untyped_config(config: Mapping[str, str]) -> None:
    """Raise InvalidConfig if settings are only for topics with a schema."""
    if "schema.compatibility" in config:
        raise InvalidConfig("topic config schema.compatibility: the topic has no schema")
