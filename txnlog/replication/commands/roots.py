"""``txnlog replicas describe`` and ``verify``: who is in sync, and what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.fields import Field, flag, names, number, size, text, time
from txnlog.cli.output.output import Output
from txnlog.cli.output.streams import FAILURE, warn
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.replication import (
        LogWatermark,
        Replica,
        ReplicaDifference,
        ReplicaEpoch,
        Replicas,
        ReplicasDescription,
        ScrubPass,
    )

UNKNOWN: Final = "unknown"
SET: list[Field[ReplicasDescription]] = [
    text("condition", "CONDITION", lambda found: found.condition),
    text("controller", "CONTROLLER", lambda found: found.controller),
    number("epoch", "EPOCH", lambda found: found.epoch),
    time("since_ms", "SINCE", lambda found: found.since_ms),
    text("why", "WHY", lambda found: found.why),
    text("leader", "LEADER", lambda found: found.leader),
    number("leader_since", "LEADS SINCE", lambda found: found.leader_since),
    names("in_sync", "IN SYNC", lambda found: found.in_sync),
    names("joining", "JOINING", lambda found: found.joining),
    names("out", "OUT", lambda found: found.out),
    number("min_insync_replicas", "MIN IN SYNC", lambda found: found.min_insync),
    number(
        *("under_replicated", "UNDER-REPLICATED", lambda found: found.under_replicated),
        absent=UNKNOWN,
    ),
    size("under_replicated_bytes", None, lambda found: found.under_replicated_bytes),
    number("only_out", "ONLY OUT", lambda found: found.only_out, absent=UNKNOWN),
    size("only_out_bytes", None, lambda found: found.only_out_bytes),
]
REPLICAS: list[Field[Replica]] = [
    text("root", "ROOT", lambda replica: replica.root),
    text("state", "STATE", lambda replica: replica.state),
    text("answer", "ANSWER", lambda replica: replica.answer),
    text("member", "MEMBER", lambda replica: replica.member),
    text("url", "URL", lambda replica: replica.url),
    time("answered_ms", None, lambda replica: replica.answered_ms),
    number(
        *("objects_behind", "OBJECTS BEHIND", lambda replica: replica.objects_behind),
        absent=UNKNOWN,
    ),
    size("behind_bytes", "BYTES BEHIND", lambda replica: replica.bytes_behind, absent=UNKNOWN),
    number("differing", "DIFFERING", lambda replica: replica.differing, absent=UNKNOWN),
    number("out_since_epoch", None, lambda replica: replica.since_epoch),
    time("out_since_ms", "OUT SINCE", lambda replica: replica.since_ms, wide=True),
    names("old_members", "OLD", lambda replica: replica.old),
    text("detail", "DETAIL", lambda replica: replica.detail, wide=True),
]
EPOCHS: list[Field[ReplicaEpoch]] = [
    number("epoch", "EPOCH", lambda epoch: epoch.epoch),
    time("at_ms", "AT", lambda epoch: epoch.at_ms),
    text("leader", "LEADER", lambda epoch: epoch.leader),
    names("in_sync", "IN SYNC", lambda epoch: epoch.in_sync),
    names("joining", "JOINING", lambda epoch: epoch.joining),
    names("out", "OUT", lambda epoch: epoch.out, wide=True),
    number("lost_since_epoch", "LOST SINCE", lambda epoch: epoch.unclean, wide=True),
    text("why", "WHY", lambda epoch: epoch.why),
]
SCRUB: list[Field[tuple[str | None, ScrubPass]]] = [
    time("began_ms", "BEGAN", lambda told: told[1].began_ms),
    time("ended_ms", "ENDED", lambda told: told[1].ended_ms),
    text("after", "HAS COME TO", lambda told: told[0] or None),
    number("object_count", "OBJECTS", lambda told: told[1].objects),
    size("size_bytes", "BYTES", lambda told: told[1].size_bytes),
    number("found", "FOUND", lambda told: told[1].found),
    number("repaired", "REPAIRED", lambda told: told[1].repaired),
    names("left", "LEFT", lambda told: told[1].left),
    number("under_replicated", "UNDER-REPLICATED", lambda told: told[1].under_replicated),
]
LOGS: list[Field[LogWatermark]] = [
    text("log", "LOG", lambda mark: mark.log),
    number("end_number", "END", lambda mark: mark.end_number),
    number("high_watermark", "HIGH WATERMARK", lambda mark: mark.high_watermark),
    names("behind", "BEHIND", lambda mark: mark.behind),
]


def open_roots(session: Session) -> Replicas:
    """The roots of the session's store, even if it cannot be opened.

    Raises BadParameter if no store is named, and what ``open_replicas`` raises.
    """
    from txnlog.replication import open_replicas

    return open_replicas(session.named_url(), storage_options=session.storage_options)


def print_set(
    output: Output,
    found: ReplicasDescription,
    epochs: list[ReplicaEpoch] | None = None,
    logs: list[LogWatermark] | None = None,
) -> None:
    """The in-sync set, each root, and the epochs and logs if requested."""
    with output.document() as document:
        document.fields(SET, found)
        document.rows("replicas", "Replicas", REPLICAS, found.replicas)
        if found.scrub is not None:
            passes = [(found.scrub.after, found.scrub.running), (None, found.scrub.before)]
            rows = [(after, one) for after, one in passes if one is not None]
            document.rows("scrub", "Scrub", SCRUB, rows)
        if epochs is not None:
            document.rows("epochs", "Epochs", EPOCHS, epochs)
        if logs is not None:
            document.rows("logs", "Logs", LOGS, logs)


def describe_replicas(
    session: Session,
    history: Annotated[
        bool, typer.Option("--history", help="The epochs, too: every change of the set, and why.")
    ] = False,
    lag: Annotated[
        bool, typer.Option("--lag", help="What all roots lack, too: lists them whole.")
    ] = False,
    logs: Annotated[
        bool, typer.Option("--logs", help="Each log's high watermark: lists all in sync whole.")
    ] = False,
) -> None:
    """Show the roots: who leads, who is in sync, who answers.

    CONDITION and ANSWER are explained in docs/REPLICAS.md, with what to do about each. BEHIND is
    what a root that copies, to come in, has not copied yet; with --lag also what others lack, and
    DIFFERING what they have in other sizes than the rest. OLD are incarnations, what
    a root had before it was put out; `replicas forget` deletes them. UNDER-REPLICATED, with --lag,
    are data files at fewer roots than replication.factor says; `replicas reassign` copies them,
    and those that are ONLY OUT: that logs name, and only old incarnations have.

    Exit code 1 if nothing can be read or acknowledged: offline, below minimum, no controller,
    outdated controller, read-only controller.

    \b
    Example:
      txnlog replicas describe --store /data/disk1/store
      txnlog replicas describe --history --lag -o json
    """
    replicas = open_roots(session)
    found = replicas.describe(with_lag=lag)
    epochs = replicas.history() if history else None
    offline = found.condition == "offline"
    print_set(
        session.output,
        found,
        epochs,
        replicas.watermarks() if logs and not offline else None,
    )
    if offline:
        warn("no root in sync answers: nothing can be read or written")
    elif found.condition == "no controller":
        warn(
            "the controller does not answer: everything can be read, nothing is acknowledged. If "
            "it is lost for good, `txnlog replicas recover` makes it anew"
        )
        if history:
            warn("the epochs are those that roots keep: under others nothing was written")
    elif found.condition == "outdated controller":
        warn(
            "a root has an epoch that the controller does not have: it was restored from a backup, "
            "or another one was made, and nothing above need be true. See docs/REPLICAS.md"
        )
    elif found.condition == "read-only controller":
        warn(
            "the controller answers and takes no epoch: everything can be read while all roots "
            "answer, nothing is acknowledged. Make room there, or `txnlog doctor` says why"
        )
    elif found.condition == "below minimum":
        warn(f"fewer than {found.min_insync} roots in sync answer: nothing is acknowledged")
    if found.condition not in ("whole", "degraded", "unknown"):
        raise typer.Exit(FAILURE)


DIFFERENCES: list[Field[ReplicaDifference]] = [
    text("kind", "KIND", lambda found: found.kind),
    names("members", "AT", lambda found: found.members),
    text("name", "NAME", lambda found: found.name),
    size("size_bytes", "BYTES", lambda found: found.size_bytes),
    flag("is_repaired", "REPAIRED", lambda found: found.is_repaired, "yes", "no"),
    text("detail", "DETAIL", lambda found: found.detail),
]


def verify_replicas(
    session: Session,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read everything and compare the bytes, too.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Give roots what they lack, from one that has it.")
    ] = False,
) -> None:
    """Compare the roots in sync, by names and sizes. Safe while others write.

    KIND is missing (the roots at AT lack it), damaged (theirs is not what was written, and another
    one's is), differs (nothing tells which is right) or extra (the leader does not have it, or no
    log names it: it is being put or deleted, was left by an upload or a deletion that was cut
    short, or was never acknowledged). What differs is looked at twice before it is reported.

    --repair copies what is missing, if its bytes are sound, and replaces damaged data files; it
    changes nothing else. Exit code 3 if something is missing, damaged or differs after that.

    \b
    Example:
      txnlog replicas verify
      txnlog replicas verify --deep --repair
    """
    from txnlog.replication import Replicas

    store = session.open_store() if repair else session.open_to_read()
    with DamageReporter() as reporter:
        found = Replicas(store).verify(with_contents=deep, repair=repair)
        watched = reporter.watch(found, _damage)
        session.output.rows(DIFFERENCES, watched, streamed=True)


def _damage(found: ReplicaDifference) -> list[str]:
    if found.is_repaired or found.kind == "extra":
        return []
    return [f"{found.name} at {', '.join(found.members)}: {found.kind}: {found.detail}"]
