"""Puts one object at the leader, which decides the race for its name, and at the other members."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial

from txnlog.errors import ObjectNotFound
from txnlog.replication.roots.agreement import Agreement, MemberFailed
from txnlog.replication.roots.copies import help_out, put_at, put_at_all
from txnlog.replication.roots.epochs import Epoch, Member
from txnlog.replication.roots.same_bytes import is_sound, says_the_same
from txnlog.replication.roots.soundness import differs, leaders_bytes
from txnlog.storage.fork_safe_lock import ForkSafeLock


class PutIfAbsent:
    """The steps of a put-if-absent; each runs under one epoch, and returns whether our object won.

    ``need`` raises NotEnoughReplicas under an epoch with too few members in sync.
    """

    def __init__(
        self, agreement: Agreement, name: str, data: bytes, need: Callable[[Epoch], None]
    ) -> None:
        self._agreement = agreement
        self._name = name
        self._data = data
        self._need = need
        self._tried: set[Member] = set()
        self._won: set[Member] = set()
        self._lacked: set[Member] = set()
        """Followers that lacked the object: our bytes there do not prove the leader wrong."""

    def leader_first(self, epoch: Epoch) -> bool:
        """Put the object at the leader, which decides, then at all others.

        Returns whether it is ours. Raises MemberFailed.
        """
        self._need(epoch)
        again = self._begin(epoch)
        if not self._wins(epoch):
            return self._is_ours(epoch) and again
        put_at_all(self._agreement, epoch, epoch.members[1:], self._name, self._data)
        return True

    def side_by_side(self, epoch: Epoch) -> bool:
        """Put an object at all members in parallel, because nobody ever puts other bytes.

        If the leader has other bytes all the same (in place of a damaged object, say), the other
        members are compared with those. Returns whether the object is ours. Raises MemberFailed.
        """
        self._need(epoch)
        again = self._begin(epoch)
        puts: list[Callable[[], bool | MemberFailed]] = [partial(self._wins, epoch)]
        puts += [partial(self._try_at, epoch, member) for member in epoch.members[1:]]
        wins, *others = self._agreement.controller.storage.gather(puts)
        if not (wins or self._is_ours(epoch)):
            return False
        for failed in others:
            if isinstance(failed, MemberFailed):
                raise failed
        return bool(wins) or again

    def _begin(self, epoch: Epoch) -> bool:
        """Note that this leader is asked; True if an earlier attempt may have put our object."""
        again = bool(self._tried)
        self._tried.add(epoch.leader)
        return again

    def _wins(self, epoch: Epoch) -> bool:
        leader, data = epoch.leader, self._data
        if leader not in self._won and self._agreement.ask(
            epoch,
            leader,
            lambda storage: storage.put_if_absent(self._name, data),
            put_bytes=len(data),
        ):
            self._won.add(leader)
        return leader in self._won

    def _try_at(self, epoch: Epoch, member: Member) -> bool | MemberFailed:
        try:
            put = put_at(self._agreement, epoch, member, self._name, self._data)
            if put:
                self._lacked.add(member)
            return put
        except MemberFailed as failed:
            return failed

    def _is_ours(self, epoch: Epoch) -> bool:
        """Whether the leader has our bytes; False, too, if the object was deleted meanwhile.

        The caller goes on from the object that the leader has, so all members are given that first.
        """
        agreement, name = self._agreement, self._name
        try:
            found = leaders_bytes(agreement, epoch, name)
            agreement.ask_large(epoch, epoch.leader, lambda storage: storage.confirm(name))
            if not says_the_same(name, found, self._data) and is_sound(name, found) is not False:
                for member in epoch.members[1:]:
                    if member in self._lacked:
                        raise differs(epoch, member, name)
            help_out(agreement, epoch, name, found, epoch.members[1:])
        except ObjectNotFound:
            return False
        return found == self._data


_MOST_NAMES = 100_000


class Everywhere:
    """Names that all members of an epoch were seen to have while it was the newest one.

    Every later in-sync set has them too, since its members are of this one, or have copied from it.
    An unclean election ends that. Of many names the oldest are forgotten. Safe to use from several
    threads.
    """

    def __init__(self) -> None:
        self._names: OrderedDict[str, None] = OrderedDict()
        self._unclean = -1
        self._lock = ForkSafeLock()

    def add(self, epoch: Epoch, paths: Iterable[str]) -> None:
        with self._lock.mutex:
            self.follow(epoch)
            if epoch.last_unclean < self._unclean:
                return
            self._names.update(dict.fromkeys(paths))
            while len(self._names) > _MOST_NAMES:
                self._names.popitem(last=False)

    def has(self, path: str) -> bool:
        return path in self._names

    def drop(self, paths: Iterable[str]) -> None:
        with self._lock.mutex:
            for path in paths:
                self._names.pop(path, None)

    def follow(self, epoch: Epoch) -> None:
        """Forget everything if there was an unclean election."""
        with self._lock.mutex:
            if epoch.last_unclean > self._unclean:
                self._names.clear()
                self._unclean = epoch.last_unclean
