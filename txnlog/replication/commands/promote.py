"""``txnlog replicas promote``: a standby becomes a store of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnlog.cli.input.options import DryRunOption, UrlArgument, YesOption
from txnlog.cli.output.confirmation import confirm, note_dry_run
from txnlog.cli.output.fields import Field, names, number, text, time
from txnlog.cli.output.streams import warn
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.names import TopicPartition
    from txnlog.replication import Promotion

FIELDS: list[Field[Promotion]] = [
    text("url", "URL", lambda done: done.url),
    text("source", "SOURCE", lambda done: done.source),
    number("round", "ROUND", lambda done: done.round),
    time("reached_ms", "REACHED", lambda done: done.reached_ms),
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
        document.fields(FIELDS, done)
        missing = None if done.missing is None else done.missing.items()
        document.rows("missing", "missing", MISSING, missing)
    note_dry_run(dry_run)
