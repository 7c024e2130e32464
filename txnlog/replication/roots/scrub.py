"""Maintenance compares a share of all objects at each run, byte by byte, and repairs damage.

So damage is found before the last intact copy is lost, even if nobody reads the object. The roots
in sync keep a note of the progress, beside their marks; each run goes on behind the name in the
newest note. The note decides nothing. Without one comparing begins again, and two runs at a time
compare the same share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Annotated, ClassVar, Final

import msgspec

from txnlog.admin.storage_step import StorageStep
from txnlog.errors import ObjectNotFound, TxnlogError
from txnlog.limits import AnyNumber, Counter, LongName, TimeMs
from txnlog.replication import root_names
from txnlog.replication.roots.agreement import Agreement, MemberFailed
from txnlog.replication.roots.controller import list_numbers
from txnlog.replication.roots.epochs import Epoch, Member, counted_roots
from txnlog.replication.roots.listings import Listings
from txnlog.replication.roots.placement import copies, is_placed, topic_of
from txnlog.replication.roots.reassignment import Sizes, copy_lacking
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.replication.roots.slowness import time_for
from txnlog.replication.roots.soundness import (
    IsSound,
    NamedFiles,
    Unnamed,
    names_nothing,
    unnames_nothing,
)
from txnlog.replication.roots.verification import list_lost, verify
from txnlog.storage import envelope
from txnlog.storage.base import Storage

_MOST_NAMES: Final = 100
"""The most objects that are named of those that could not be repaired."""


class ScrubPass(msgspec.Struct, frozen=True):
    """One pass over all objects, which may take many runs; ``ended_ms`` is None while it goes on.

    ``size_bytes`` counts the copies at all roots. ``found`` counts objects that were missing or
    damaged somewhere, ``repaired`` those of them that were repaired. ``left`` names the first
    hundred that could not be. ``under_replicated`` counts data files that stay at fewer roots in
    sync than ``replication.factor`` says, which reassigning copies. Times are Unix milliseconds.
    """

    began_ms: TimeMs
    objects: Counter = 0
    size_bytes: Counter = 0
    found: Counter = 0
    repaired: Counter = 0
    left: Annotated[tuple[LongName, ...], AnyNumber] = ()
    ended_ms: TimeMs | None = None
    under_replicated: Counter = 0


class ScrubNote(msgspec.Struct, frozen=True, tag_field="kind", tag="scrub"):
    """The progress of the scrub: it goes on behind ``after``; ``before`` is the last whole pass."""

    number: Counter
    after: LongName
    running: ScrubPass
    before: ScrubPass | None = None


_DECODER: Final = msgspec.json.Decoder(ScrubNote)


@dataclass(frozen=True, slots=True)
class Scrubbed(StorageStep):
    """What one run has compared, if it found anything wrong."""

    done: ClassVar = "copies compared"
    why: ClassVar = "some were missing or damaged"

    file_count: int
    size_bytes: int
    found: int
    repaired: int


def scrub(
    storage: ReplicatedStorage,
    is_sound: IsSound,
    named: NamedFiles = names_nothing,
    unnamed: Unnamed = unnames_nothing,
) -> Scrubbed | None:
    """Compare and repair the next share; None if nothing was wrong, or the scrub is switched off.

    ``is_sound``, ``named`` and ``unnamed`` are those of :func:`verify`.

    Raises StorageError: the controller or a root in sync fails. The next run begins there again.
    """
    agreement = storage.agreement
    epoch = agreement.refresh()
    if epoch.scrub_bytes is None:
        return None
    note = newest_scrub(agreement, epoch) or ScrubNote(-1, "", ScrubPass(agreement.clock.now_ms()))
    share = _Share(note.after, epoch.scrub_bytes, named)
    found = repaired = 0
    left = [*note.running.left]
    compare = partial(verify, storage, is_sound, with_contents=True, repair=True)
    for one in compare(choose=share.choose, named=named, unnamed=unnamed):
        if one.kind == "extra":
            continue
        found, repaired = found + 1, repaired + one.is_repaired
        if not one.is_repaired and len(left) < _MOST_NAMES:
            left.append(one.name)
    was, now_ms = note.running, agreement.clock.now_ms()
    few, copied = [*_named_files(share.few, unnamed)], 0
    if few and len(epoch.in_sync) == len(counted_roots(epoch)):  # else a root may come back with it
        copied = copy_lacking(agreement, few, is_sound)
    found, repaired = found + copied, repaired + copied
    running = ScrubPass(
        was.began_ms,
        was.objects + share.objects,
        was.size_bytes + share.size_bytes,
        was.found + found,
        was.repaired + repaired,
        tuple(left),
        now_ms if share.is_over else None,
        was.under_replicated + len(few) - copied,
    )
    following = ScrubNote(note.number + 1, share.last, running, note.before)
    if share.is_over:
        following = ScrubNote(note.number + 1, "", ScrubPass(now_ms), running)
    _put(agreement, epoch, following)
    return Scrubbed(share.objects, share.size_bytes, found, repaired) if found else None


class _Share:
    """The names behind a given one, until their copies have so many bytes."""

    def __init__(self, after: str, most_bytes: int, named: NamedFiles) -> None:
        self.last = self._after = after
        self.objects = self.size_bytes = 0
        self.few: list[tuple[str, Sizes]] = []
        """Data files at fewer members in sync than there should be."""
        self.is_over = False
        self._most_bytes = most_bytes
        self._named = named

    def choose(self, listings: Listings, epoch: Epoch) -> Iterator[Iterator[str]]:
        yield self._listed(listings, epoch)
        last = None if self.is_over else self.last
        yield list_lost(listings, self._named, self._after, last)

    def _listed(self, listings: Listings, epoch: Epoch) -> Iterator[str]:
        for name, size_bytes in listings.behind(self.last):
            self.objects, self.size_bytes = self.objects + 1, self.size_bytes + size_bytes
            self.last = name
            if is_placed(epoch, name):
                sizes = listings.sizes_of(name)
                if len(sizes) < copies(epoch, name):
                    self.few.append((name, sizes))
            yield name
            if self.size_bytes >= self._most_bytes:
                return
        self.is_over = True


def _named_files(few: Iterable[tuple[str, Sizes]], unnamed: Unnamed) -> Iterator[tuple[str, Sizes]]:
    """Those of some files that a log may need: all but those that it certainly does not name."""
    for topic, some in groupby(few, lambda one: topic_of(one[0])):
        files = dict(some)
        loose = {*unnamed(str(topic), [*files])}
        yield from (one for one in files.items() if one[0] not in loose)


def newest_scrub(
    agreement: Agreement, epoch: Epoch, members: Sequence[Member] = ()
) -> ScrubNote | None:
    """The newest note of a root in sync; None if no root that answers has one.

    ``members``: those to ask, if not all in sync.
    """

    def read(storage: Storage) -> ScrubNote | None:
        for number in reversed(_numbers(storage)):
            path = root_names.scrub_note(number)
            with suppress(ObjectNotFound, TxnlogError):  # damaged: an older one will do
                return envelope.decode(storage.get(path), _DECODER, f"{storage.url}/{path}")
        return None

    def ask(member: Member) -> ScrubNote | None:
        with suppress(MemberFailed, ObjectNotFound, TxnlogError):
            return agreement.ask(epoch, member, read, within_s=time_for(epoch))
        return None

    asks = [partial(ask, member) for member in members or epoch.in_sync]
    found = [note for note in agreement.controller.storage.gather(asks) if note is not None]
    return max(found, key=lambda note: note.number, default=None)


def _put(agreement: Agreement, epoch: Epoch, note: ScrubNote) -> None:
    data = envelope.encode(note)

    def put(storage: Storage) -> None:
        older = _numbers(storage)
        storage.put_if_absent(root_names.scrub_note(note.number), data)
        storage.delete([root_names.scrub_note(number) for number in older if number < note.number])

    for member in epoch.in_sync:
        with suppress(MemberFailed, ObjectNotFound):
            agreement.ask(epoch, member, put, within_s=time_for(epoch))


def _numbers(storage: Storage) -> list[int]:
    return list_numbers(storage, root_names.SCRUB_NOTES)
