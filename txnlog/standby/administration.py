"""The methods of :class:`~txnlog.store.Store` about standbys."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from txnlog.errors import InvalidOption, TxnlogError
from txnlog.log.open_logs import Logs

if TYPE_CHECKING:
    from txnlog.standby.following import Standby
    from txnlog.standby.promoting import Promotion
    from txnlog.standby.rounds import Round
    from txnlog.standby.standby_storage import StandbyStorage


class StandbyAdmin:
    """The methods of a store that are about its standbys, or about itself if it is one."""

    _logs: Logs

    def standby(
        self,
        url: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, object] | None = None,
        unsafe_single_writer: bool = False,
    ) -> Standby:
        """A standby of this store: a copy in another folder that ``standby.follow()`` updates.

        Each call of ``follow`` makes one round. Until the next one the standby shows what this
        store had then; ``txnlog.open(url)`` reads it. See docs/REPLICAS.md.

        Args:
            url: its path or URL, on any filesystem: an empty folder, or an existing standby.
            storage_options: for its filesystem.
            unsafe_single_writer: as for :func:`txnlog.open`.

        Raises:
            InvalidOption: it is this store itself.
            UnsupportedFilesystem: its filesystem cannot carry a store.
        """
        from txnlog.standby.following import Standby
        from txnlog.storage import open_storage
        from txnlog.storage.logged import logged

        target = open_storage(url, storage_options, unsafe_single_writer=unsafe_single_writer)
        logs = Logs(self._logs.storage, self._logs.config, self._logs.clock)
        return Standby(logs, logged(target))

    def _shown(self) -> StandbyStorage:
        from txnlog.standby.standby_storage import find_shown

        storage = self._logs.storage
        shown = find_shown(storage)
        if shown is None:
            raise InvalidOption(f"{storage.url} is not a standby, or was promoted: it is a store")
        return shown

    def reached(self) -> Round:
        """The state of this standby: its newest round.

        Raises:
            InvalidOption: this store is not a standby.
        """
        return self._shown().standing().round

    def promote(
        self, source_options: Mapping[str, object] | None = None, *, dry_run: bool = False
    ) -> Promotion:
        """Make this standby a store of its own, which can be written to once it is opened again.

        No process that follows can change it any more. What its source has acknowledged since the
        last round is not here; if the source can be read, the result says how much that is. If
        writers go on there, there are two stores: stop them first. If it is killed, call it again.

        Args:
            source_options: the ``storage_options`` of its source, to find out what is missing here;
                under its URL, or its server's, if that is not this standby's: only a source on
                this machine or at a place that you have named is asked.
            dry_run: only say what would be done.

        Raises:
            InvalidOption: this store is not a standby.
            StorageError: it may be half done: call it again.
        """
        from txnlog.standby import promoting

        shown = self._shown()
        last = (
            shown.standing().round if dry_run else promoting.promote(shown.inner, self._logs.clock)
        )
        here = Logs(shown, self._logs.config, self._logs.clock)
        missing, why = None, ""
        try:
            clock = self._logs.clock
            storage = promoting.open_source(last.source, shown.url, source_options, clock)
            source = Logs(storage, self._logs.config, self._logs.clock)
            missing = promoting.find_missing(source, here)
        except TxnlogError as error:
            why = str(error)
        return promoting.Promotion(
            shown.url,
            last.source,
            last.number,
            last.reached_ms,
            missing,
            why,
            promoting.unfinished_ids(here),
        )
