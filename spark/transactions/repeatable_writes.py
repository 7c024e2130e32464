"""Each write of a block computes its frame: what two of them share must be the same each time."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from txnlog.errors import InvalidOption
from txnlog.spark.batch.determinism import Chance, chances

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class RepeatableWrites:
    """What the writes so far have computed by chance. They may run at once, in threads."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._chances: list[Chance] = []

    def check(self, frame: DataFrame, *, allowed: bool) -> None:
        """Raise InvalidOption if another write has computed the same by chance."""
        found = chances(frame)
        with self._mutex:
            again = [chance for chance in found if chance in self._chances]
            self._chances += [chance for chance in found if chance not in again]
        if again and not allowed:
            raise InvalidOption(
                f"write(): {', '.join(map(str, again))} need not give the same values when this "
                "frame is computed, as when an earlier write of the transaction was: rows that are "
                "told apart by it would be in no write, or in both. Give the rows a column 'topic' "
                "and write them at once; or write what frame.localCheckpoint() returns; or give "
                "allow_nondeterministic=True"
            )

    def clear(self) -> None:
        """The writes so far were dropped."""
        with self._mutex:
            self._chances.clear()
