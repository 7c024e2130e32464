"""Checks the roots of a replicated store: the epochs, the marks, and the members' objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import pairwise

from txnlog.doctor.examination import not_examined
from txnlog.doctor.findings import Finding, ReadFailures, State, guarded
from txnlog.errors import CorruptEntry, StorageError, TxnlogError
from txnlog.log.open_logs import Logs
from txnlog.replication import root_names
from txnlog.replication.replicas import open_replicas
from txnlog.replication.roots.agreement import MemberFailed
from txnlog.replication.roots.controller_move import names_controller
from txnlog.replication.roots.description import Lacking, count_lacking, describe
from txnlog.replication.roots.epoch_cleaning import KEPT
from txnlog.replication.roots.epochs import Epoch, incarnation_of, root_of
from txnlog.replication.roots.listings import Listings
from txnlog.replication.roots.members import MemberOpener
from txnlog.replication.roots.outdated_controller import ask_root, why_outdated
from txnlog.replication.roots.placement import places
from txnlog.replication.roots.replicated_storage import ReplicatedStorage, find_replicated
from txnlog.replication.roots.trim import EVERYTHING, read_notes
from txnlog.replication.roots.verification import ReplicaDifference, verify
from txnlog.replication.sound_copies import SoundCopies

_REMEDIES = {
    "missing": "`txnlog replicas verify --repair` copies it",
    "damaged": "`txnlog replicas verify --deep --repair` replaces it",
}
_RULES = {"missing": "R1", "differs": "R1", "undecided": "R1"}


def examine_closed(url: str, options: Mapping[str, object], why: StorageError) -> Iterator[Finding]:
    """The findings of a store that cannot be opened, since its roots fail."""
    logs = open_replicas(url, storage_options=options).logs
    yield from _examine(logs, ReadFailures(), with_contents=False)
    yield not_examined(why)


def examine(logs: Logs, failures: ReadFailures, *, with_contents: bool) -> Iterator[Finding]:
    """Yield violations at the roots; nothing for a store on one root."""
    found = _examine(logs, failures, with_contents=with_contents)
    yield from guarded("replicas", "", root_names.EPOCHS, found)


def _examine(logs: Logs, failures: ReadFailures, *, with_contents: bool) -> Iterator[Finding]:
    storage = find_replicated(logs.storage)
    if storage is None:
        return
    found = False
    parts = (
        _check_epochs(storage),
        _check_members(storage),
        _check_pointers(storage),
        _check_notes(storage),
        _compare(storage, logs, with_contents=with_contents),
    )
    for part in parts:
        try:
            for finding in part:
                found = found or finding.state in ("damage", "unreadable")
                yield finding
                if finding.rule == "R16":
                    return  # nothing that the epochs say need be true
        except CorruptEntry as error:
            found = True
            yield Finding("replicas", "", "damage", str(error))
        except StorageError as error:
            found = True
            yield failures.add("replicas", "", root_names.EPOCHS, error)
    if not found:
        epoch = storage.agreement.epoch()
        detail = f"epoch {epoch.number}, in sync: {', '.join(epoch.in_sync)}"
        yield Finding("replicas", "", "ok", detail)


def _check_epochs(storage: ReplicatedStorage) -> Iterator[Finding]:
    agreement = storage.agreement
    epochs = agreement.every()
    if agreement.lost is not None:
        detail = (
            f"the controller does not answer: {agreement.lost}. Everything can be read while all "
            "roots answer. If it is lost for good, `txnlog replicas recover` makes it anew"
        )
        yield Finding("replicas", "", "unreadable", detail, path=root_names.EPOCHS)
    if error := why_outdated(agreement, storage.open_member):
        yield Finding("replicas", "", "damage", str(error), "R16", root_names.EPOCHS)
    # With the controller only those are made anew that roots have noted.
    anew = next(one.number for one in epochs if one.controllers == epochs[-1].controllers)
    for before, after in pairwise(epochs):
        number = before.number + 1
        if after.number != number:
            is_kept = after.number > max(anew, epochs[-1].number - KEPT + 1)
            if agreement.lost is None and is_kept:
                detail = f"epoch {number} is gone, and {after.number} is there"
                yield Finding("replicas", "", "damage", detail, path=root_names.epoch_file(number))
                return
            continue  # those between have been cleaned, or no root was told of them
        if after.before != before.by:
            continue  # a late process has taken a name that was free again
        for rule, detail in epoch_violations(before, after):
            path = root_names.epoch_file(after.number)
            yield Finding("replicas", "", "damage", f"epoch {after.number}: {detail}", rule, path)
    newest = epochs[-1]
    if len(newest.in_sync) < newest.min_insync:
        detail = (
            f"{len(newest.in_sync)} in sync, min.insync.replicas is {newest.min_insync}: nothing "
            "is acknowledged. `txnlog replicas add` brings roots back"
        )
        yield Finding("replicas", "", "note", detail, "R6")


def epoch_violations(before: Epoch, after: Epoch) -> Iterator[tuple[str, str]]:
    """Rules that an epoch breaks, by the one before it: (rule, what is wrong)."""
    moves = len(after.controllers) - len(before.controllers)
    if not before.controllers and moves == 2:
        moves = 1  # it was lost before it had ever moved: its own place is named, too
    if moves not in (0, 1) or after.controllers[: len(before.controllers)] != before.controllers:
        yield (
            "R9",
            f"it says that the controller was at {', '.join(after.controllers) or 'no place'}",
        )
    if after.leader != before.leader and after.unclean is None:
        if after.leader not in before.in_sync:
            yield "R5", f"{after.leader} leads, and was not in sync"
        if after.leader_since != after.number:
            yield "R5", f"its leader is said to lead since {after.leader_since}"
    if after.unclean is not None:
        was = before.left.get(after.leader)
        if was is None or (after.unclean, after.last_unclean) != (was.epoch + 1, after.number):
            yield "R5", f"what went before does not allow its unclean election of {after.leader}"
        return
    for member in after.in_sync:
        if member in before.in_sync:
            continue
        if member not in before.joining:
            yield "R4", f"{member} is in sync, and was not joining"
        elif after.leader_since > before.joining[member]:
            yield "R4", f"{member} is in sync, and has copied from an earlier leader"
    for member, since in after.joining.items():
        if member in before.joining:
            continue
        root = before.roots.get(root_of(member))
        if root is not None and incarnation_of(member) < root.incarnations:
            yield "R4", f"{member} is joining, and was there before"
        if since != after.number:
            yield "R4", f"{member} is said to be joining since {since}"


def _check_members(storage: ReplicatedStorage) -> Iterator[Finding]:
    for replica in describe(storage).replicas:
        subject = replica.member or replica.root
        if replica.member is not None and replica.answer == "mark gone":
            detail = f"{replica.url} is not the folder of {subject}: is its disk mounted?"
            path = root_names.member_mark(subject, storage.agreement.epoch().store)
            yield Finding("replicas", subject, "damage", detail, "R7", path)
        elif replica.member is not None and replica.answer != "answers":
            detail = f"it cannot be reached at {replica.url}: {replica.detail}"
            yield Finding("replicas", subject, "unreadable", detail)
        if replica.state == "joining":
            detail = "it is joining; if nobody copies any more, `txnlog replicas add` starts over"
            yield Finding("replicas", replica.root, "note", detail)
        elif replica.state == "out":
            why = f" ({replica.detail})" if replica.detail else ""
            detail = f"it is out{why}; `txnlog replicas add {replica.url}` brings it back"
            yield Finding("replicas", replica.root, "note", detail)


def _check_pointers(storage: ReplicatedStorage) -> Iterator[Finding]:
    """After a move of the controller, each root names the new place."""
    epoch, opener = storage.agreement.refresh(), storage.open_member
    if len(epoch.controllers) < 2 or not isinstance(opener, MemberOpener):
        return
    for root, known in sorted(epoch.roots.items()):
        with suppress(TxnlogError):  # one that does not answer is told of elsewhere
            look = partial(_names_controller, opener, known.url, epoch)
            if ask_root(storage.agreement, epoch, root, look):
                continue
            detail = (
                f"nothing in {known.url} says that the controller is at {epoch.controller}: "
                f"`txnlog replicas move-controller {epoch.controller}` writes it there"
            )
            yield Finding("replicas", root, "note", detail)


def _names_controller(opener: MemberOpener, url: str, epoch: Epoch) -> bool:
    return names_controller(opener.root(url), epoch)


def _check_notes(storage: ReplicatedStorage) -> Iterator[Finding]:
    """Notes of processes that move data, or were killed: files named in one are not put again."""
    epoch = storage.agreement.refresh()
    for member in epoch.in_sync if places(epoch) else ():
        with suppress(MemberFailed):  # one that does not answer is told of elsewhere
            root, named = root_of(member), read_notes(storage.agreement, epoch, [member])[member]
            if named is EVERYTHING:
                detail = (
                    "a note of files that are to be deleted cannot be read, so `txnlog replicas "
                    f"reassign` puts none at {member}, and no copy at {member} counts. "
                    f"`txnlog replicas remove {root}`, then `add`, ends it, and copies the root's "
                    "whole share"
                )
                yield Finding("replicas", root, "damage", detail, "R11")
            elif count := len(named):
                detail = (
                    f"{count} data files will not be put at {member} again, and copies there "
                    "do not count: `txnlog replicas reassign` is under way, or was killed while it "
                    "deleted. That is harmless, since other roots have them. If none runs, "
                    f"`txnlog replicas remove {root}`, then `add`, ends it, and copies the root's "
                    "whole share"
                )
                yield Finding("replicas", root, "note", detail, "R11")


def _compare(storage: ReplicatedStorage, logs: Logs, *, with_contents: bool) -> Iterator[Finding]:
    few: list[Lacking] = []

    def look(epoch: Epoch, listings: Listings) -> None:
        few.append(count_lacking(listings, epoch))

    sound = SoundCopies(logs)
    compare = partial(verify, storage, sound, with_contents=with_contents, repair=False)
    yield from map(_told, compare(look=look, named=sound.needed, unnamed=sound.unnamed))
    for lacking in few:
        if lacking.under_replicated:
            detail = (
                f"{lacking.under_replicated} data files of {lacking.under_replicated_bytes} bytes "
                "are at fewer roots than replication.factor says: `txnlog replicas reassign` "
                "copies them"
            )
            yield Finding("replicas", "", "note", detail)


def _told(found: ReplicaDifference) -> Finding:
    state: State = "note" if found.kind == "extra" else "damage"
    detail = f"{found.kind} at {', '.join(found.members)}: {found.detail}"
    if found.is_repairable:
        detail += f"; {_REMEDIES[found.kind]}"
    rule = _RULES.get(found.kind)
    return Finding("replicas", ", ".join(found.members), state, detail, rule, found.name)
