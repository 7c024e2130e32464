"""The result of publishing a topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TablePublication:
    """A topic as a table, after a publication.

    ``version`` is the table's: Delta's version, or the id of Iceberg's snapshot (None: it never had
    any rows). ``added_files`` and ``removed_files`` count this publication's changes;
    ``copied_files`` of the added ones hold copied rows. Both 0: the table was up to date.
    ``end_offsets`` is, by partition, how far it reaches: every record committed before that is in
    it, if the topic still had it.
    """

    topic: str
    url: str
    version: int | None
    added_files: int
    removed_files: int
    copied_files: int
    end_offsets: Mapping[int, int]
