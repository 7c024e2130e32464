"""``txnlog replicas elect``: a root leads, without loss, or with what it tells first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.options import DryRunOption, YesOption
from txnlog.cli.output.confirmation import confirm, note_dry_run
from txnlog.cli.output.fields import Field, flag, names, number, show_time, size, text, time
from txnlog.cli.output.streams import warn
from txnlog.cli.session import Session
from txnlog.replication.commands.roots import open_roots

if TYPE_CHECKING:
    from txnlog.replication import Election, LostRange

FIELDS: list[Field[Election]] = [
    text("leader", "LEADER", lambda election: election.leader),
    number("epoch", "EPOCH", lambda election: election.epoch),
    flag("clean", "CLEAN", lambda election: election.clean, "yes", "NO"),
    number("lost_since_epoch", "LOST SINCE EPOCH", lambda election: election.since_epoch),
    time("lost_since_ms", "LOST SINCE", lambda election: election.since_ms),
    number("missing_count", "MISSING OBJECTS", lambda election: election.missing_count),
    size("missing_bytes", "MISSING BYTES", lambda election: election.missing_bytes),
    names("missing", None, lambda election: election.missing),
    names("unseen", "UNSEEN", lambda election: election.unseen),
    number(
        *("lost_records", "LOST RECORDS", lambda election: 0 if election.clean else None),
        absent="unknown",
    ),
    number("older_records", "OLDER LOST RECORDS", lambda election: election.older_records),
    size("older_bytes", "OLDER LOST BYTES", lambda election: election.older_bytes),
    number("older_range_count", None, lambda election: election.older_range_count),
    names("unread", "UNREAD TOPICS", lambda election: election.unread),
]
LOST: list[Field[LostRange]] = [
    text("topic", "TOPIC", lambda lost: lost.topic),
    number("partition", "PARTITION", lambda lost: lost.partition),
    number("start", "FROM", lambda lost: lost.start),
    number("end", "TO", lambda lost: lost.end),
    number("records", "RECORDS", lambda lost: lost.record_count),
    size("bytes", "BYTES", lambda lost: lost.size_bytes),
    names("members", "STILL AT", lambda lost: lost.members),
]


def elect_leader(
    session: Session,
    root: Annotated[
        str | None,
        typer.Argument(metavar="ROOT", help="Its name, such as r1.", show_default=False),
    ] = None,
    preferred: Annotated[
        bool,
        typer.Option("--preferred", help="The root that replica.preferred.leader says."),
    ] = False,
    unclean: Annotated[
        bool,
        typer.Option("--unclean", help="Also one that is not in sync: shows what that loses."),
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Make a root the leader. If it is in sync nothing is lost, and the old leader stays in sync.

    With --preferred it is the root that the setting replica.preferred.leader names, the first one
    if it names none. Where it leads already that is all.

    With --unclean one that was in sync once may lead, if nobody in sync answers: what was
    acknowledged since it was put out may be lost. That is shown first, as far as roots that answer
    know what there was: MISSING is what they have and it lacks, UNSEEN are those of which nobody
    can tell, so that nobody knows how many records are lost. Where data is at some roots only,
    older records may be lost, too: these are shown by the ranges of offsets of which nobody that
    answers has a copy, or only those STILL AT which one may yet be deleted. Then it asks, or needs
    --yes.

    \b
    Example:
      txnlog replicas elect r1
      txnlog replicas elect --preferred
      txnlog replicas elect r1 --unclean --dry-run
    """
    if (root is None) != preferred or (preferred and unclean):
        raise typer.BadParameter("name a ROOT, or give --preferred, which is never unclean")
    replicas = open_roots(session)
    planned = replicas.elect(root, unclean=unclean, dry_run=True)
    if not planned.clean:
        _warn_of_loss(planned)
    if not dry_run:
        if not planned.clean:
            confirm(f"have {planned.leader} lead, and give up what it lacks", yes=yes)
        planned = replicas.elect(root, unclean=not planned.clean)
    with session.output.document() as document:
        document.fields(FIELDS, planned)
        document.rows("older", "Older lost records", LOST, planned.older)
    note_dry_run(dry_run)


def _warn_of_loss(planned: Election) -> None:
    warn(
        f"what was acknowledged from epoch {planned.since_epoch} on, after "
        f"{show_time(planned.since_ms)}, may be lost"
    )
    if planned.missing_count:
        some = ", ".join(planned.missing[-3:])
        warn(f"others have {planned.missing_count} objects that it lacks, such as {some}")
    if planned.older_records:
        first = planned.older[0]
        warn(
            f"{planned.older_records} older records may be lost, in {planned.older_range_count} "
            f"ranges of offsets, such as {first.topic} partition {first.partition} from "
            f"{first.start} to {first.end}"
        )
    if planned.unread:
        warn(f"nobody can tell what is lost of these topics: {', '.join(planned.unread)}")
    if planned.unseen:
        warn(f"nobody can tell what these have: {', '.join(planned.unseen)}")
