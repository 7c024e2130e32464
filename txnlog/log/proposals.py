"""The proposals of one topic: appends that lost an entry number, which others may place.

A folder of small files, listed only by writers that have one there. Nothing depends on any of them:
if one is missing, or shows late, its own writer places the append, and one that is left over is no
longer placed (``state/proposal.py``), so any of them may be deleted at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from txnlog import names
from txnlog.clock import Clock
from txnlog.errors import CorruptEntry, ObjectNotFound, StorageError, UnsupportedVersion
from txnlog.state import envelope
from txnlog.state.proposal import DECODER, MOST_BEHIND, Proposal
from txnlog.storage.base import Storage

_logger = logging.getLogger(__name__)


class Proposals:
    """Puts, lists, reads and deletes them. No failure here matters.

    Until ``busy_until_s``, by this process's monotonic clock, an append had better be proposed at
    once: others appended a moment ago. ``own_end`` is the number after the last entry that this
    process has put after it had proposed.
    """

    def __init__(self, storage: Storage, topic: str) -> None:
        self.folder = names.topic_proposals(topic)
        self.busy_until_s = 0.0
        self.own_end = -1
        self._storage = storage

    def is_busy(self, clock: Clock) -> bool:
        """Whether an append had better be proposed at once."""
        return clock.monotonic_s() <= self.busy_until_s

    def put(self, name: str, proposal: Proposal) -> None:
        """Put one. It need not be durable: its writer can do without."""
        try:
            data = envelope.encode(proposal)
            self._storage.without_fsync().put_if_absent(f"{self.folder}/{name}", data)
        except (StorageError, TypeError, ValueError) as error:
            _logger.debug("a proposal was not put into %s: %s", self.folder, error)

    def names(self, next_entry: int) -> list[str]:
        """The names of those that may be placed as entry ``next_entry``, the oldest first."""
        oldest = names.log_file_prefix(max(next_entry - MOST_BEHIND, 0))
        try:
            found = self._storage.list_names(self.folder, oldest)
        except StorageError as error:
            _logger.debug("%s was not listed: %s", self.folder, error)
            return []
        return [name for name in found if names.parse_proposal(name) is not None]

    def read(self, chosen: Sequence[str]) -> list[Proposal | None]:
        """Proposals by their names; None for one that is gone or cannot be read."""
        return self._storage.gather([partial(self._read, name) for name in chosen])

    def _read(self, name: str) -> Proposal | None:
        path = f"{self.folder}/{name}"
        try:
            return envelope.decode(self._storage.get(path), DECODER, path)
        except ObjectNotFound:
            return None
        except (StorageError, CorruptEntry, UnsupportedVersion) as error:
            _logger.debug("a proposal was passed over: %s", error)
            return None

    def delete(self, chosen: Sequence[str]) -> None:
        """Delete some that are no longer needed."""
        try:
            self._storage.delete([f"{self.folder}/{name}" for name in chosen])
        except StorageError as error:
            _logger.debug("proposals were left in %s: %s", self.folder, error)
