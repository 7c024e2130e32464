"""Which settings a topic has and may have by its kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from txnlog.config import CONSTRAINT, PARQUET, TopicConfig
from txnlog.errors import InvalidConfig

TYPED_DEFAULTS: Final = {"record.format": PARQUET}
"""What topics with a schema are made with, where their defaults are others."""


def as_typed(changes: Mapping[str, str | None]) -> dict[str, str | None]:
    """Changes of settings in which None means the default of a topic with a schema."""
    return {k: TYPED_DEFAULTS.get(k) if v is None else v for k, v in changes.items()}


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
    for key in config:
        if key.startswith(CONSTRAINT):
            raise InvalidConfig(f"topic config {key}: the topic has no schema")
