"""An operator's changes: elections, with their possible losses, roots taken out, settings."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from txnlog.errors import InvalidOption, NotEnoughReplicas
from txnlog.replication.roots.agreement import Agreement, MemberFailed
from txnlog.replication.roots.epoch_notes import note_epoch
from txnlog.replication.roots.epochs import (
    Epoch,
    Member,
    changed_settings,
    configured,
    elected,
    elected_unclean,
    kept_out,
    last_in_sync,
    member_of,
    preferred_root,
    root_of,
    taken_out,
    without,
)
from txnlog.replication.roots.listings import Listings, add_listing
from txnlog.replication.roots.losses import Copies, Losses, LostRange, NameSegments, find_losses
from txnlog.replication.roots.placement import is_placed, places

_MOST_NAMES: Final = 1000


@dataclass(frozen=True, slots=True)
class Election:
    """A leader that was elected, or would be.

    A clean election loses nothing, and the fields after ``clean`` are empty. After an unclean one,
    all writes acknowledged from epoch ``since_epoch`` on, and after ``since_ms`` (Unix
    milliseconds), may be lost. Other members that answer still have ``missing_count`` objects, of
    ``missing_bytes``, which the leader lacks; ``missing`` names the first thousand. What the
    ``unseen`` members have is unknown, and so is the number of records that are lost.

    If data is at some roots only, older records may be lost, too: ``older_records`` of
    ``older_bytes``, in ``older_range_count`` ranges of offsets; ``older`` has the first thousand.
    The topics in ``unread`` may have lost more: the leader cannot read their logs. If all data is
    at all roots, these are not looked for, and are None or ().
    """

    leader: str
    epoch: int
    clean: bool
    since_epoch: int | None = None
    since_ms: int | None = None
    missing_count: int = 0
    missing_bytes: int = 0
    missing: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    older_records: int | None = None
    older_bytes: int | None = None
    older_range_count: int | None = None
    older: tuple[LostRange, ...] = ()
    unread: tuple[str, ...] = ()


def elect(
    agreement: Agreement,
    root: str | None,
    *,
    name_segments: NameSegments = lambda _: iter(()),
    unclean: bool = False,
    dry_run: bool = False,
) -> Election:
    """See :meth:`txnlog.replication.Replicas.elect`.

    ``name_segments`` yields the segments that the logs in a storage name.
    """
    epoch = agreement.refresh()
    if root is None:
        return _elect_preferred(agreement, epoch, dry_run=dry_run)
    if root not in epoch.roots:
        raise InvalidOption(f"{root} is not one of {', '.join(epoch.roots)}")
    if root_of(epoch.leader) == root:
        raise InvalidOption(f"{root} leads already, in epoch {epoch.number}")
    member = next((one for one in epoch.in_sync if root_of(one) == root), None)
    if member is not None:
        return _elect_clean(agreement, epoch, member, dry_run=dry_run)
    member = last_in_sync(epoch, root)
    if member is None:
        raise InvalidOption(f"{root} was never in sync: it cannot be elected")
    if not unclean:
        raise InvalidOption(
            f"{root} has not been in sync since epoch {epoch.left[member].epoch}: what was "
            "acknowledged since then may be lost if it leads. An unclean election elects it "
            "anyway"
        )
    return _elect_unclean(agreement, epoch, member, name_segments, dry_run=dry_run)


def _elect_preferred(agreement: Agreement, epoch: Epoch, *, dry_run: bool) -> Election:
    """Elect the preferred root, cleanly; nothing happens if it leads already."""
    root = preferred_root(epoch)
    member = member_of(epoch, root)
    if member == epoch.leader:
        return Election(epoch.leader, epoch.leader_since, clean=True)
    if member not in epoch.in_sync or member is None:
        url = epoch.roots[root].url
        raise InvalidOption(
            f"{root} is preferred, and not in sync: `txnlog replicas add {url}` brings it in. "
            "Until then another one leads"
        )
    return _elect_clean(agreement, epoch, member, dry_run=dry_run)


def _elect_clean(agreement: Agreement, epoch: Epoch, member: Member, *, dry_run: bool) -> Election:
    _check_answers(agreement, epoch, member)
    keep = agreement.answers(epoch, epoch.leader)
    who = agreement.proposer(f"an operator elects {member}")
    proposed = elected(epoch, member, who, keep=keep)
    if not dry_run:
        agreement.propose_alone(proposed)
    return Election(member, proposed.number, clean=True)


def _elect_unclean(
    agreement: Agreement,
    epoch: Epoch,
    member: Member,
    name_segments: NameSegments,
    *,
    dry_run: bool,
) -> Election:
    _check_answers(agreement, epoch, member)
    _check_gone(agreement, epoch)
    others = [one for one in (*epoch.in_sync, *epoch.joining, *epoch.left) if one != member]
    with Listings([member, *others]) as listings:
        copies = Copies(listings, epoch, member)
        try:
            _look(listings, copies, agreement, epoch, member)
        except MemberFailed as failed:
            raise _cannot_lead(epoch, member, failed) from failed
        unseen = tuple(
            one for one in others if not _is_seen(listings, copies, agreement, epoch, one)
        )
        # Data at other roots that are out is read there, and can be copied.
        lacked = listings.sum_lacked_by(
            member, lambda name: not is_placed(epoch, name), _MOST_NAMES
        )
        losses: Losses | None = None
        if places(epoch):
            named = name_segments(agreement.storage(epoch, member))
            losses = find_losses(named, copies, _MOST_NAMES)
    # That took a while: others may have written to members in sync, and disks may have failed.
    _check_gone(agreement, epoch)
    for one in (member, *(one for one in others if one not in unseen)):
        if not agreement.answers(epoch, one):
            raise NotEnoughReplicas(f"{one} has failed while its copies were counted: try again")
    who = agreement.proposer(f"an operator elects {member}, which is not in sync")
    proposed = elected_unclean(epoch, member, who)
    if not dry_run:
        agreement.propose_alone(proposed)
    left = epoch.left[member]
    election = Election(
        member,
        proposed.number,
        clean=False,
        since_epoch=proposed.unclean,
        since_ms=left.at_ms,
        missing_count=lacked.count,
        missing_bytes=lacked.size_bytes,
        missing=lacked.names,
        unseen=unseen,
    )
    if losses is None:
        return election
    return replace(
        election,
        older_records=losses.record_count,
        older_bytes=losses.size_bytes,
        older_range_count=losses.range_count,
        older=losses.ranges,
        unread=losses.unread,
    )


def _look(
    listings: Listings, copies: Copies, agreement: Agreement, epoch: Epoch, member: Member
) -> None:
    """List a member's objects, and read which of them may be deleted. Raises MemberFailed."""
    if places(epoch):
        copies.read_notes(agreement, member)
    add_listing(listings, agreement, epoch, member)


def _is_seen(
    listings: Listings, copies: Copies, agreement: Agreement, epoch: Epoch, member: Member
) -> bool:
    try:
        _look(listings, copies, agreement, epoch, member)
    except MemberFailed:
        return False
    return True


def _check_gone(agreement: Agreement, epoch: Epoch) -> None:
    """Raise InvalidOption if a member in sync answers."""
    for member in epoch.in_sync:
        if agreement.answers(epoch, member):
            raise InvalidOption(
                f"{member} is in sync and answers: with it nothing is lost, so nobody else is "
                "elected. If its data is damaged, take its disk away first"
            )


def _check_answers(agreement: Agreement, epoch: Epoch, member: Member) -> None:
    try:
        agreement.check_mark(epoch, member)
    except MemberFailed as failed:
        raise _cannot_lead(epoch, member, failed) from failed


def _cannot_lead(epoch: Epoch, member: Member, failed: MemberFailed) -> NotEnoughReplicas:
    where = epoch.roots[root_of(member)].url
    return NotEnoughReplicas(f"{member} at {where} cannot lead: {failed}")


def take_out(
    agreement: Agreement, root: str, *, dry_run: bool = False, diverged: bool = False
) -> None:
    """Propose an epoch without a root, which stays out until an operator adds it again.

    ``diverged``: the root has other bytes than those that stay.

    Raises InvalidOption: there is no such root, or it was taken out before. NotEnoughReplicas: no
    other root in sync answers, or the set has changed meanwhile. StorageError.
    """
    epoch = agreement.refresh()
    who = agreement.proposer(f"an operator takes {root} out")
    member = member_of(epoch, root)
    if member is None:
        if root not in epoch.roots:
            raise InvalidOption(f"{root} is not one of {', '.join(epoch.roots)}")
        if root in epoch.taken_out:
            raise InvalidOption(f"{root} was taken out before: `txnlog replicas add` brings it in")
        proposed = kept_out(epoch, root, who)
    elif member in epoch.joining:
        proposed = taken_out(without(epoch, member, who), root)
    else:
        # The leader first, of those that could go on.
        others = [one for one in epoch.members if one != member and one in epoch.in_sync]
        heir = next((one for one in others if agreement.answers(epoch, one)), None)
        if heir is None:
            raise NotEnoughReplicas(f"{root} was not taken out: no other one in sync answers")
        if member != epoch.leader:
            proposed = taken_out(without(epoch, member, who, diverged=diverged), root)
        else:
            proposed = taken_out(elected(epoch, heir, who, diverged=diverged), root)
    if not dry_run:
        agreement.propose_alone(proposed)


def change_settings(
    agreement: Agreement, changes: Mapping[str, object | None], *, dry_run: bool = False
) -> dict[str, str]:
    """See :meth:`txnlog.replication.Replicas.alter`; returns all settings that are not defaults."""
    epoch = agreement.refresh()
    settings = changed_settings(epoch, changes)
    if settings != epoch.settings and not dry_run:
        who = agreement.proposer(f"an operator changes {', '.join(sorted(changes))}")
        changed = configured(epoch, settings, who)
        agreement.propose_alone(changed)
        with suppress(MemberFailed):  # so that it outlives the controller; who writes does it, too
            note_epoch(agreement, changed)
    return settings
