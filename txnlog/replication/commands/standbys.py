"""``txnlog replicas follow`` and ``promote``: a store that is copied elsewhere, and takes over."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.options import DryRunOption, IntervalOption, UrlArgument, YesOption
from txnlog.cli.output.confirmation import confirm, note_dry_run
from txnlog.cli.output.fields import Field, names, number, size, text
from txnlog.cli.output.fields import time as time_field
from txnlog.cli.output.streams import warn
from txnlog.cli.output.watch import Patience
from txnlog.cli.session import Session
from txnlog.errors import StorageError

if TYPE_CHECKING:
    from txnlog.names import TopicPartition
    from txnlog.replication import Followed, Follower, Promotion

FOLLOWED: list[Field[Followed]] = [
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
    standby: Annotated[str, typer.Argument(metavar="URL", help="The standby's folder.")],
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
        session.output.rows(FOLLOWED, [target.follow()])
        target.sweep()
        return
    session.output.rows(FOLLOWED, _follow(target, interval), live=True)


def _follow(standby: Follower, interval_s: float) -> Iterator[Followed]:
    """Rounds, for ever. Raises what following raises; a StorageError after a minute."""
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


PROMOTION: list[Field[Promotion]] = [
    text("url", "URL", lambda done: done.url),
    text("source", "SOURCE", lambda done: done.source),
    number("round", "ROUND", lambda done: done.round),
    time_field("reached_ms", "REACHED", lambda done: done.reached_ms),
    names("unfinished", "UNFINISHED", lambda done: done.unfinished),
    number(
        "missing_count",
        "MISSING",
        lambda done: None if done.missing is None else sum(done.missing.values()),
    ),
]
MISSING: list[Field[tuple[TopicPartition, int]]] = [
    text("topic", "TOPIC", lambda item: item[0].topic),
    number("partition", "PARTITION", lambda item: item[0].partition),
    number("offset_count", "MISSING", lambda item: item[1]),
]


def promote_standby(
    session: Session,
    url: UrlArgument = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Make a standby a store of its own. Shows what of its source is missing there.

    Nobody who follows can change it any more. It has what its source had at REACHED, with offsets,
    groups and transactional ids; transactions that were open then are aborted when their timeout
    has passed. If the source lives, stop those who write there, follow once more and promote:
    nothing is missing, and the store has moved. If it is ended half-way, repeat it.

    \b
    Example:
      txnlog replicas promote /data/standby --dry-run
      txnlog replicas promote /data/standby --yes
    """
    from txnlog.replication import Standby

    standby = Standby(session.at(url).open_store())
    options = session.at(url).storage_options
    done = standby.promote(options, dry_run=True)
    if done.missing is None:
        warn(f"what is missing cannot be told: {done.why_unknown}")
    if not dry_run:
        confirm(f"make {done.url} a store of its own, as of round {done.round}", yes=yes)
        done = standby.promote(options)
    with session.output.document() as document:
        document.fields(PROMOTION, done)
        missing = None if done.missing is None else done.missing.items()
        document.rows("missing", "missing", MISSING, missing)
    note_dry_run(dry_run)
