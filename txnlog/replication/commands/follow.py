"""``txnlog replicas follow``: a standby of the store, which follows it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.options import IntervalOption
from txnlog.cli.output.fields import Field, names, number, size
from txnlog.cli.output.fields import time as time_field
from txnlog.cli.output.patience import Patience
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.replication import Followed, Follower

FIELDS: list[Field[Followed]] = [
    number("round", "ROUND", lambda done: done.round),
    time_field("reached_ms", "REACHED", lambda done: done.reached_ms),
    number("log_count", "LOGS", lambda done: done.logs),
    number("file_count", "FILES", lambda done: done.files),
    size("size_bytes", "BYTES", lambda done: done.bytes),
    names("lost", "LOST", lambda done: done.lost),
]
_SWEEP_S = 3600.0


def follow_store(
    session: Session,
    standby: Annotated[
        str, typer.Argument(metavar="URL", help="The standby's folder.", show_default=False)
    ],
    once: Annotated[bool, typer.Option("--once", help="Make one round and stop.")] = False,
    interval: IntervalOption = 10.0,
) -> None:
    """Keep a copy of the store elsewhere: a standby. Shows each round that was made.

    The folder is empty or missing at first, on any filesystem. Between rounds it shows what the
    store had at the last one, REACHED: it can be read like a store, and nobody can write to it. It
    can be ended anywhere, and the next one goes on; with --once it is for a timer. Every hour, and
    with each --once, what the store has deleted is deleted there, too.

    \b
    Example:
      txnlog replicas follow /data/standby --store /data/store --once
    """
    from txnlog.replication import Follower

    options = session.storage_options_of(standby)
    target = Follower(session.open_to_read(), standby, storage_options=options)
    if once:
        session.output.rows(FIELDS, [target.follow()])
        target.sweep()
        return
    session.output.rows(FIELDS, _follow(target, interval), live=True)


def _follow(standby: Follower, interval_s: float) -> Iterator[Followed]:
    """Rounds, for ever. Raises what following raises; a StorageError after a minute."""
    from txnlog.errors import StorageError

    patience = Patience()
    swept_s = -math.inf  # whoever is restarted often sweeps all the same
    while True:
        try:
            yield standby.follow()
            if time.monotonic() - swept_s > _SWEEP_S:
                swept_s = time.monotonic()
                standby.sweep()
        except StorageError as error:
            patience.bear(error)
        else:
            patience.end()
        time.sleep(interval_s)
