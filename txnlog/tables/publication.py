"""What publishing a topic has done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TablePublication:
    """A topic as a table, after a publication.

    ``version`` is the table's: Delta's version, or the id of Iceberg's snapshot (None: it has none,
    as nothing was ever in it). ``added_files`` and ``removed_files`` are what this publication has
    changed; of the added ones ``copied_files`` hold rows that were copied. Both 0: the table was as
    it should be. ``end_offsets`` is by partition what it reaches: every record that was
    committed before is in it, if the topic still had it.
    """

    topic: str
    url: str
    version: int | None
    added_files: int
    removed_files: int
    copied_files: int
    end_offsets: Mapping[int, int]
