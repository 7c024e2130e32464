"""Deletes a data file at some members because others have it: never the last copies.

A process that is about to delete may sleep for any time, while others move the file. So it first
puts a note at each member where it will delete ("Moving data" in docs/REPLICATION.md). Then it
reads the notes of others, and looks for the other copies last. If two processes rely on each
other's copy, at least one finds the other's note, and deletes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import methodcaller
from typing import Annotated, Final

import msgspec

from txnlog import names
from txnlog.errors import CorruptEntry, ObjectNotFound, UnsupportedVersion
from txnlog.limits import AnyNumber, LongName
from txnlog.replication import root_names
from txnlog.replication.roots.agreement import Agreement, MemberFailed
from txnlog.replication.roots.epochs import Epoch, Member
from txnlog.replication.roots.placement import copies, keepers
from txnlog.replication.roots.slowness import time_for
from txnlog.replication.roots.soundness import CannotJudge, IsSound
from txnlog.storage import envelope
from txnlog.storage.base import Storage


class TrimNote(msgspec.Struct, frozen=True, tag_field="kind", tag="trim"):
    """The files that a process is about to delete at the member that has the note."""

    names: Annotated[tuple[LongName, ...], AnyNumber]


class _Everything(frozenset[str]):
    def __contains__(self, _: object) -> bool:
        return True


EVERYTHING: Final = _Everything()
"""Every file: a note that cannot be read counts as naming all."""
_DECODER: Final = msgspec.json.Decoder(TrimNote)
Noted = dict[Member, frozenset[str]]
_logger = logging.getLogger(__name__)


def read_notes(
    agreement: Agreement, epoch: Epoch, members: Collection[Member], *, but: str = ""
) -> Noted:
    """The files that may be deleted, by member, from all notes except ``but``; or ``EVERYTHING``.

    Raises MemberFailed. CorruptEntry: the notes cannot be listed.
    """

    def read(_: Member, storage: Storage) -> frozenset[str]:
        found: set[str] = set()
        for name in storage.list_names(root_names.MEMBER_MARKS):
            path = f"{root_names.MEMBER_MARKS}/{name}"
            if not root_names.is_trim_note(name) or path == but:
                continue
            with suppress(ObjectNotFound):  # deleted since
                data, where = storage.get(path), f"{storage.url}/{path}"
                try:
                    found.update(envelope.decode(data, _DECODER, where).names)
                except (CorruptEntry, UnsupportedVersion) as error:
                    _logger.warning(
                        "replicas: no copy of data counts at %s: %s", storage.url, error
                    )
                    return EVERYTHING
        return frozenset(found)

    try:
        return agreement.ask_all(epoch, [*members], read, within_s=time_for(epoch))
    except ObjectNotFound as error:
        raise CorruptEntry(f"the notes of {', '.join(members)} cannot be listed") from error


class OpenNote:
    """A note whose writer is about to delete files, or does so."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_used = False
        """Whether deletions have begun: from then on the note stays if the block fails.

        A deletion that is not answered may take effect late.
        """


@contextmanager
def noted(
    agreement: Agreement, epoch: Epoch, doomed: Mapping[Member, Sequence[str]]
) -> Iterator[OpenNote]:
    """Keep a note at members within the block, of files about to be deleted there.

    Raises MemberFailed.
    """
    note = OpenNote(root_names.trim_note(agreement.clock.token()))

    def tear_up() -> None:
        for member in doomed:
            agreement.ask(epoch, member, lambda storage: storage.delete([note.path]))

    try:
        for member, going in doomed.items():
            data = envelope.encode(TrimNote(tuple(going)))
            agreement.ask(epoch, member, methodcaller("put", note.path, data))
        yield note
    except BaseException:
        if not note.is_used:
            with suppress(MemberFailed):
                tear_up()
        raise
    tear_up()


def trim(
    agreement: Agreement, epoch: Epoch, surplus: Mapping[str, Collection[Member]], is_sound: IsSound
) -> list[str]:
    """Delete data files at members where they do not belong; returns the names of those deleted.

    A file stays if too few others have it, or if ``is_sound`` finds one of their copies damaged, or
    cannot judge it. Nothing is deleted under an epoch that has passed.

    Raises MemberFailed: some may be deleted.
    """
    doomed: dict[Member, list[str]] = {}
    for name, members in surplus.items():
        for member in members:
            doomed.setdefault(member, []).append(name)
    with noted(agreement, epoch, doomed) as note:
        notes = read_notes(agreement, epoch, epoch.in_sync, but=note.path)
        checks = [
            partial(_is_enough, agreement, epoch, name, members, notes, is_sound)
            for name, members in surplus.items()
        ]
        enough = agreement.controller.storage.gather(checks)
        chosen = [name for name, yes in zip(surplus, enough, strict=True) if yes]
        if not agreement.is_newest(epoch):
            return []
        note.is_used = True
        for member, listed in doomed.items():
            going = [name for name in listed if name in chosen]
            if going:
                agreement.ask(epoch, member, methodcaller("delete", going))
    return chosen


def _is_enough(
    agreement: Agreement,
    epoch: Epoch,
    name: str,
    members: Collection[Member],
    notes: Noted,
    is_sound: IsSound,
) -> bool:
    """Whether enough others have a file intact, where no process is about to delete it."""
    without = {*members, *(member for member in epoch.in_sync if name in notes[member])}
    wanted = keepers(epoch, name, without)
    if len(wanted) < copies(epoch, name):
        return False

    def durable_size(storage: Storage) -> int:
        storage.confirm(name)  # a process may be copying it there just now
        return storage.size(name)

    def is_whole(member: Member) -> bool:
        return agreement.ask(epoch, member, lambda one: is_sound(one, name)) is not False

    try:
        sizes = {agreement.ask(epoch, member, durable_size) for member in wanted}
        return len(sizes) == 1 and (names.is_accelerator(name) or all(map(is_whole, wanted)))
    except (ObjectNotFound, CannotJudge):
        return False
