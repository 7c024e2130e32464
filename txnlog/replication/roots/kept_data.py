"""Finds data that a returning root still has from earlier incarnations, and need not be sent again.

"Kept objects" in docs/REPLICATION.md has the rules. The name of a file proves nothing, since the
disk may have damaged its bytes. Objects that are decided in a race are never kept: an earlier
incarnation may have one that was never acknowledged.
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
"""So many incarnations that were never in sync are looked at: those of killed attempts."""


class Kept:
    """Finds data in earlier incarnations of a joining member's root, and keeps it for the member.

    Safe to use from several threads, except :meth:`holders`.
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
        """The earlier incarnations that have a file, and its bytes at each; newest first."""
        if not names.is_unique(name) or names.is_accelerator(name):
            return ()  # to judge an index takes more than to copy it
        return [*self._listings.sizes_of(name).items()]

    def may_keep(self, name: str, size_bytes: int) -> bool:
        """Whether an earlier incarnation has a file of this name and size, which may be intact."""
        return size_bytes in [size for _, size in self.holders(name)]

    def keep(self, name: str, holders: Sequence[tuple[Member, int]]) -> int | None:
        """Give the member a file from one of its holders; returns its bytes, None if that fails."""
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
    """A root's earlier incarnations: those that joined in vain, newest first; the last in sync."""
    root, number = root_of(member), incarnation_of(member)
    last = last_in_sync(epoch, root)
    since = range(number - 1, incarnation_of(last) if last else -1, -1)
    return [*(f"{root}-{earlier}" for earlier in since[:_MOST]), *([last] if last else [])]
