"""What a root that returns has of its earlier incarnations: that need not be sent to it again.

See "Kept objects" in docs/REPLICATION.md. A name says nothing, since a disk may have damaged what
it names; and of what is decided in a race the earlier incarnation may have what was never
acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, Self

from txnlog import names
from txnlog.errors import ObjectNotFound
from txnlog.replication.roots.agreement import Agreement, MemberFailed
from txnlog.replication.roots.epochs import Epoch, Member, incarnation_of, last_in_sync, root_of
from txnlog.replication.roots.listings import Listings, add_listing
from txnlog.replication.roots.soundness import IsSound, judged

_MOST: Final = 8
"""So many that were never in sync are looked at: those of attempts that were killed."""


class Kept:
    """Finds what earlier incarnations of a joining member's root have, and has it kept.

    For several threads, but for :meth:`holders`.
    """

    def __init__(
        self,
        agreement: Agreement,
        epoch: Epoch,
        member: Member,
        is_sound: IsSound,
        listings: Listings,
    ) -> None:
        self._agreement = agreement
        self._epoch = epoch
        self._member = member
        self._is_sound = is_sound
        self._listings = listings

    @classmethod
    @contextmanager
    def of(
        cls, agreement: Agreement, epoch: Epoch, member: Member, is_sound: IsSound
    ) -> Iterator[Self]:
        """List the earlier incarnations, once; for a ``with`` statement."""
        earlier = _earlier(epoch, member)
        with Listings(earlier) as listings:
            for one in earlier:
                with suppress(MemberFailed):  # it was forgotten, mostly
                    add_listing(listings, agreement, epoch, one)
            yield cls(agreement, epoch, member, is_sound, listings)

    def holders(self, name: str) -> Sequence[tuple[Member, int]]:
        """Earlier incarnations that have something of this name, and its size; newest first."""
        if not names.is_unique(name) or names.is_accelerator(name):
            return ()  # to judge an index takes more than to copy it
        return [*self._listings.sizes_of(name).items()]

    def may_keep(self, name: str, size_bytes: int) -> bool:
        """Whether an earlier incarnation has data of this name and size: it may be whole."""
        return size_bytes in [size for _, size in self.holders(name)]

    def keep(self, name: str, holders: Sequence[tuple[Member, int]]) -> int | None:
        """Have the member keep an object of these; its size, or None: it must be copied."""
        for earlier, size_bytes in holders:
            with suppress(ObjectNotFound, MemberFailed):  # then it is copied
                if self._keep(name, earlier):
                    return size_bytes
        return None

    def _keep(self, name: str, earlier: Member) -> bool:
        ask = partial(self._agreement.ask, self._epoch)
        if not ask(earlier, lambda one: judged(self._is_sound, one, name)):
            return False
        source = self._agreement.storage(self._epoch, earlier)
        return ask(self._member, lambda one: one.take_over(name, source))


def _earlier(epoch: Epoch, member: Member) -> list[Member]:
    """The root's incarnations that had begun to join, newest first, and the last one in sync."""
    root, number = root_of(member), incarnation_of(member)
    last = last_in_sync(epoch, root)
    since = range(number - 1, incarnation_of(last) if last else -1, -1)
    return [*(f"{root}-{earlier}" for earlier in since[:_MOST]), *([last] if last else [])]
