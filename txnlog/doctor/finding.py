"""A finding: what an examination says of one thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

State: TypeAlias = Literal["ok", "note", "orphan", "hanging", "damage", "unreadable"]
"""Persisted nowhere, but what programs look at: append only."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, or something that is wrong with it.

    ``check`` says what was looked at: probe, replicas, transactions, topic, data, group, files or
    hanging.
    What is ``unreadable`` was not: the storage failed, or denied it. ``rule`` is that
    of docs/PROTOCOL.md, if one is broken. ``path`` is within the store. ``size_bytes`` is what an
    orphan takes.
    """

    check: str
    subject: str
    state: State
    detail: str
    rule: str | None = None
    path: str | None = None
    size_bytes: int | None = None
