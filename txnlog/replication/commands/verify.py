"""``txnlog replicas verify``: do the roots in sync hold the same?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.fields import Field, flag, names, size, text
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.replication import ReplicaDifference

FIELDS: list[Field[ReplicaDifference]] = [
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
    one's is), differs (nothing tells which is right) or extra (the leader does not have it: it is
    being deleted, was left by a deletion that was cut short, or was never acknowledged). What
    differs is looked at twice before it is reported.

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
        session.output.rows(FIELDS, watched, streamed=True)


def _damage(found: ReplicaDifference) -> list[str]:
    if found.is_repaired or found.kind == "extra":
        return []
    return [f"{found.name} at {', '.join(found.members)}: {found.kind}: {found.detail}"]
