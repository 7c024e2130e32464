"""Options of a consumer by their names, wherever they are given: those of its config in one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from txnlog import ConsumerConfig

CONFIGURED = {field.name for field in fields(ConsumerConfig)}


def consumer_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """What ``Store.consumer`` takes for these."""
    configured = {name: value for name, value in options.items() if name in CONFIGURED}
    others = {name: value for name, value in options.items() if name not in CONFIGURED}
    return {**others, "config": ConsumerConfig(**configured)}
