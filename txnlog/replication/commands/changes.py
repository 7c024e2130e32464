"""``txnlog replicas``: what changes the roots of a store, who leads them and what they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.assignments import parse_settings
from txnlog.cli.input.options import DryRunOption, SettingsOption, YesOption
from txnlog.cli.output.confirmation import confirm, note_dry_run
from txnlog.cli.output.fields import Field, flag, names, number, show_time, size, text, time
from txnlog.cli.output.store_fields import STORE, setting_fields
from txnlog.cli.output.streams import warn
from txnlog.cli.session import Session
from txnlog.replication.commands.roots import open_roots, print_set

if TYPE_CHECKING:
    from txnlog.replication import (
        ControllerMove,
        Election,
        Forgotten,
        Joined,
        LostRange,
        Reassigned,
    )


def create_replicas(
    session: Session,
    roots: Annotated[
        list[str],
        typer.Argument(metavar="ROOT ROOT...", help="Paths or URLs; the first one leads."),
    ],
    controller: Annotated[
        str,
        typer.Option(metavar="URL", help="Where it is recorded which roots are in sync."),
    ],
    config: SettingsOption = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="If the store exists, show it as it is.")
    ] = False,
) -> None:
    """Create a store on several roots, and show it.

    Each has a full copy. The controller is a folder of its own, best on something that does not
    fail with the roots. The store's settings are fixed then; `replicas config` changes those of its
    replicas.

    \b
    Example:
      txnlog replicas create /data/disk1/store /data/disk2/store \\
          --controller /data/control --config min.insync.replicas=1
    """
    at = session.at(roots[0])
    if not if_not_exists:
        at.refuse_existing()
    from txnlog.replication import open_replicas

    made = open_replicas(
        roots,
        controller=controller,
        create=True,
        storage_options=at.storage_options,
        config=parse_settings(config or ()),
    )
    with session.output.document() as document:
        document.fields(STORE, made.store)


JOINED: list[Field[Joined]] = [
    text("member", "MEMBER", lambda joined: joined.member),
    number("epoch", "IN SYNC SINCE EPOCH", lambda joined: joined.epoch),
    number("object_count", "OBJECTS", lambda joined: joined.objects),
    size("size_bytes", "BYTES", lambda joined: joined.bytes),
    number("kept_count", "KEPT OBJECTS", lambda joined: joined.kept_objects),
    size("kept_bytes", "KEPT BYTES", lambda joined: joined.kept_bytes),
]


def add_replica(
    session: Session,
    url: Annotated[str, typer.Argument(metavar="ROOT", help="Path or URL of the root.")],
    rack: Annotated[
        str | None,
        typer.Option(metavar="LABEL", help="Its rack: data is spread over racks."),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Bring in a root, new or old; wait until it is in sync.

    It starts with a new folder beside what it has, and everything, or its share where
    replication.factor says so, is copied through this command, while others write. Of what it had
    it keeps the data that is whole. If it is killed or fails, run it again.

    \b
    Example:
      txnlog replicas add /data/disk3/store --dry-run
      txnlog replicas add /data/disk3/store
    """
    joined = open_roots(session).add(url, rack=rack, dry_run=dry_run)
    with session.output.document() as document:
        document.fields(JOINED, joined)
    note_dry_run(dry_run)


def remove_replica(
    session: Session,
    root: Annotated[str, typer.Argument(metavar="ROOT", help="Its name, such as r1.")],
    force: Annotated[
        bool, typer.Option("--force", help="Copy nothing first: data may be at too few roots.")
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Take a root out of the set, and show the set. Nothing in the root is deleted.

    It stays out until `replicas add` brings it in. If it leads, another one in sync does from
    then on. Where replication.factor is set, data that too few others have is copied first.
    Asks first on a terminal; elsewhere it needs --yes.

    \b
    Example:
      txnlog replicas remove r1 --dry-run
      txnlog replicas remove r1 --yes
    """
    replicas = open_roots(session)
    planned = replicas.remove(root, force=force, dry_run=True)
    if not dry_run:
        before = replicas.describe()
        left = [one.root for one in before.replicas if one.state in ("leader", "in sync")]
        left = [name for name in left if name != root]
        what = f"take {root} out, which leaves {', '.join(left)} in sync"
        if len(left) < before.min_insync:
            what += f", fewer than min.insync.replicas ({before.min_insync}): writers would fail"
        if copied := sum(one.copied for one in planned):
            what += f", when {copied} data files are copied to others"
        confirm(what, yes=yes)
        replicas.remove(root, force=force)
    print_set(session.output, replicas.describe())
    note_dry_run(dry_run)


ELECTION: list[Field[Election]] = [
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
LOST_RANGES: list[Field[LostRange]] = [
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
        typer.Argument(metavar="ROOT", help="Its name, such as r1."),
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
        document.fields(ELECTION, planned)
        document.rows("older", "Older lost records", LOST_RANGES, planned.older)
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


def configure_replicas(
    session: Session,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="The settings from now on."),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Back to its default."),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Change settings of the replicas. If one is wrong, none is changed. Shows the settings.

    \b
    Example:
      txnlog replicas config
      txnlog replicas config min.insync.replicas=2
      txnlog replicas config --unset replica.auto.return --dry-run
    """
    changes = {**parse_settings(settings or []), **dict.fromkeys(unset or [])}
    replicas = open_roots(session)
    found = replicas.alter(changes, dry_run=dry_run or not changes)
    session.output.rows(setting_fields("store"), found)
    note_dry_run(dry_run)


REASSIGNED: list[Field[Reassigned]] = [
    text("topic", "TOPIC", lambda done: done.topic),
    number("copied_count", "COPIED", lambda done: done.copied),
    size("copied_bytes", "BYTES COPIED", lambda done: done.copied_bytes),
    number("deleted_count", "DELETED", lambda done: done.deleted),
    size("deleted_bytes", "BYTES DELETED", lambda done: done.deleted_bytes),
    number("lacking_count", "LACKING", lambda done: done.lacking),
]


def reassign_replicas(
    session: Session,
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC", help="Only these."),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Move data to the roots where it belongs.

    After replication.factor, racks or the set of roots have changed, or a root was put out: see
    `replicas config`. Copies are made first; then surplus ones are deleted. It may run while others
    write, and be killed anywhere: run it again. LACKING are files of which there are still too few
    copies, because no root that answers has them, or too few can take them.

    \b
    Example:
      txnlog replicas config replication.factor=2 replica.rack.r0=hall-1
      txnlog replicas reassign --dry-run
      txnlog replicas reassign orders
    """
    done = open_roots(session).reassign(topics or None, dry_run=dry_run)
    session.output.rows(REASSIGNED, done)
    note_dry_run(dry_run)


MOVED: list[Field[ControllerMove]] = [
    text("controller", "CONTROLLER", lambda moved: moved.url),
    number("epoch", "EPOCH", lambda moved: moved.epoch),
    names("told", "TOLD", lambda moved: moved.told),
    names("untold", "NOT TOLD", lambda moved: moved.untold),
]


def move_controller(
    session: Session,
    url: Annotated[str, typer.Argument(metavar="URL", help="Path or URL of an empty folder.")],
    dry_run: DryRunOption = False,
) -> None:
    """Move the controller to another place, while others write. It must still be reachable.

    Every process that uses the store moves there by itself; it must already have what is needed to
    reach a new server. TOLD are the roots that name the new place: by these, or by its own URL, the
    store is found when the old place is gone. Leave that as it is until no process can be asleep
    that knows no other. If this is killed or fails, or a root was not told, run it again.

    \b
    Example:
      txnlog replicas move-controller /data/control2 --dry-run
      txnlog replicas move-controller /data/control2
    """
    options = session.storage_options_of(url)
    moved = open_roots(session).move_controller(url, storage_options=options, dry_run=dry_run)
    _print_move(session, moved, dry_run=dry_run)


def recover(
    session: Session,
    controller: Annotated[
        str, typer.Option(metavar="URL", help="Path or URL of an empty folder for it.")
    ],
    lost: Annotated[
        list[str] | None,
        typer.Option(metavar="ROOT", help="A root that is lost for good; may be repeated."),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Make a controller that is lost anew.

    At another place. Name a root as the store. What the roots keep of the controller is enough, and
    nothing that was acknowledged is lost if all of them answer. One that is lost for good is given
    up by --lost, with what it alone had. Jobs must reopen the store. Should the old place come
    back, delete it. If this is killed or fails, or a root was not told, run it again.

    \b
    Example:
      txnlog replicas recover --controller /data/control2 --dry-run
      txnlog replicas recover --controller /data/control2
    """
    from txnlog.replication import recover_controller

    options = {**session.storage_options_of(controller), **session.storage_options}
    done = recover_controller(
        *(session.named_url(), controller),
        storage_options=options,
        lost=lost or (),
        dry_run=dry_run,
    )
    _print_move(session, done, dry_run=dry_run)


def _print_move(session: Session, moved: ControllerMove, *, dry_run: bool) -> None:
    with session.output.document() as document:
        document.fields(MOVED, moved)
    if moved.untold:
        warn(f"not told, since they did not answer: {', '.join(moved.untold)}. Run it again later")
    note_dry_run(dry_run)


FORGOTTEN: list[Field[Forgotten]] = [
    text("member", "MEMBER", lambda old: old.member),
    text("url", "ROOT", lambda old: old.url),
    number("object_count", "OBJECTS", lambda old: old.objects),
    size("size_bytes", "BYTES", lambda old: old.bytes),
]


def forget_incarnations(
    session: Session,
    members: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MEMBER", help="Old incarnations, such as r1-0; all if none are named."
        ),
    ] = None,
    lost: Annotated[
        bool, typer.Option("--lost", help="Their root is gone for good: do not wait for it.")
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete what roots had before they were put out. There is no way back.

    It may hold what was never acknowledged, and is what an unclean election falls back on. One
    that takes part is refused, and one that has the only copy of data, or the only one that is
    whole: data is read for that. --lost is for named ones whose root does not answer and never
    will: what only they had is given up. Asks first on a terminal; elsewhere it needs --yes.

    \b
    Example:
      txnlog replicas forget --dry-run
      txnlog replicas forget r1-0 --yes
    """
    replicas = open_roots(session)
    if lost and not members:
        raise typer.BadParameter("--lost needs the names of what is given up")
    if not members:
        members = [member for replica in replicas.describe().replicas for member in replica.old]
    if not members:
        warn("there are no old incarnations: nothing was changed")
    elif not dry_run and (len(members) > 1 or not yes):
        for one in members:  # nothing goes, and nobody is asked, if one is refused
            replicas.forget(one, lost=lost, dry_run=True)
        confirm(f"delete what {', '.join(members)} held", yes=yes)
    doomed = [replicas.forget(one, lost=lost, dry_run=dry_run) for one in members]
    session.output.rows(FORGOTTEN, doomed)
    note_dry_run(dry_run)
