"""A standby: how far it has followed its source, and how it becomes a store of its own."""

from __future__ import annotations

from collections.abc import Mapping

from txnlog.arguments import names_wrong_arguments
from txnlog.errors import InvalidOption, TxnlogError
from txnlog.log.open_logs import Logs
from txnlog.replication.standby import promotion
from txnlog.replication.standby.promotion import Promotion
from txnlog.replication.standby.rounds import Round
from txnlog.replication.standby.standby_storage import find_shown
from txnlog.store import Store, logs_of


@names_wrong_arguments()
class Standby:
    """A copy that follows a store, opened as one itself. :class:`Follower` makes and updates it.

    Args:
        store: what ``txnlog.open`` returns for the standby's URL.

    Raises:
        InvalidOption: the store is not a standby.
    """

    def __init__(self, store: Store) -> None:
        self._logs = logs_of(store, "Standby")
        shown = find_shown(store.storage)
        if shown is None:
            raise InvalidOption(f"{store.url} is not a standby, or was promoted: it is a store")
        self._shown = shown

    def __repr__(self) -> str:
        return f"Standby({self._shown.url!r})"

    def reached(self) -> Round:
        """The state that it shows: its newest round."""
        return self._shown.standing().round

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
            StorageError: it may be half done: call it again.
        """
        shown = self._shown
        last = (
            shown.standing().round if dry_run else promotion.promote(shown.inner, self._logs.clock)
        )
        here = Logs(shown, self._logs.config, self._logs.clock)
        missing, why = None, ""
        try:
            clock = self._logs.clock
            storage = promotion.open_source(last.source, shown.url, source_options, clock)
            source = Logs(storage, self._logs.config, self._logs.clock)
            missing = promotion.find_missing(source, here)
        except TxnlogError as error:
            why = str(error)
        return promotion.Promotion(
            shown.url,
            last.source,
            last.number,
            last.reached_ms,
            missing,
            why,
            promotion.unfinished_ids(here),
        )
