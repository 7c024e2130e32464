"""A finding: an examination's result for one thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

State: TypeAlias = Literal["ok", "note", "orphan", "hanging", "damage", "unreadable"]
"""Not persisted, but read by programs: append only."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked, or something that is wrong with it.

    ``check`` says what was checked: probe, replicas, transactions, topic, data, group, files or
    hanging. An ``unreadable`` one was not: the storage failed, or denied it. ``rule`` is that of
    docs/PROTOCOL.md, if one is broken. ``path`` is within the store. ``size_bytes`` is an orphan's
    size.
    """

    check: str
    subject: str
    state: State
    detail: str
    rule: str | None = None
    path: str | None = None
    size_bytes: int | None = None
