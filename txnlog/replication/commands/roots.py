"""What the verbs share: the roots of a store, and how they are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from txnlog.cli.output.fields import Field, names, number, size, text, time
from txnlog.cli.output.output import Output
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.replication import (
        LogWatermark,
        Replica,
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
