"""What is asked of the roots themselves, counted: descriptions go past the storage over them."""

from __future__ import annotations

import os

from txnlog.replication.roots.epochs import Member, Root
from txnlog.replication.roots.members import MemberOpener
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.storage.base import Storage
from txnlog.storage.counting import CountingStorage


class _CountedOpener(MemberOpener):
    """Opens members whose requests are counted, each by its kind."""

    def __init__(self, opener: MemberOpener, counting: CountingStorage) -> None:
        super().__init__(opener.options)
        self._opener = opener
        self._counting = counting

    def root(self, url: str | os.PathLike[str]) -> Storage:
        return self._counting.beside(self._opener.root(url))

    def controller(self, url: str | os.PathLike[str]) -> Storage:
        return self._counting.beside(self._opener.controller(url))

    def at(self, root: Root, member: Member) -> Storage:
        return self._counting.beside(self._opener.at(root, member))


def counted(storage: ReplicatedStorage, counting: CountingStorage) -> ReplicatedStorage:
    """Wrap a set of roots: what is asked of its controller and of each root is counted there.

    To look at it: what its roots are on (``local_path``) cannot be told through what counts.
    """
    opener = storage.open_member
    controller = counting.beside(storage.agreement.controller.storage)
    clock = storage.agreement.clock
    if isinstance(opener, MemberOpener):
        found = ReplicatedStorage(controller, _CountedOpener(opener, counting), clock=clock)
    else:
        found = ReplicatedStorage(controller, lambda *of: counting.beside(opener(*of)), clock=clock)
    found.agreement.begin_as(storage.agreement)
    return found
