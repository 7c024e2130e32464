"""What an operator asks of the roots of a replicated store, and does to them."""

from __future__ import annotations

from txnlog.errors import InvalidOption, NotEnoughReplicas
from txnlog.log.open_logs import Logs
from txnlog.replicas.description import Replicas, describe
from txnlog.replicas.epochs import root_of, without
from txnlog.replicas.joining import Joined, join
from txnlog.replicas.opening import prepare_root
from txnlog.replicas.replicated_storage import ReplicatedStorage
from txnlog.storage.forwarding import ForwardingStorage


class ReplicaAdmin:
    """The methods of a store that are about its replicas."""

    _logs: Logs

    def _replicated(self) -> ReplicatedStorage:
        storage = self._logs.storage
        while isinstance(storage, ForwardingStorage):  # one that counts requests, for example
            storage = storage.inner
        if not isinstance(storage, ReplicatedStorage):
            raise InvalidOption(f"{storage.url} has no replicas: it is a store on one root")
        return storage

    def replicas(self) -> Replicas:
        """Who leads, who is in sync, who copies to become so, and who is out.

        Raises:
            InvalidOption: the store is not replicated.
            StorageError: the controller fails.
        """
        return describe(self._replicated())

    def add_replica(self, url: str) -> Joined:
        """Bring a root in, a new one or one that was out, and wait until it is in sync.

        It comes as a new incarnation, an empty folder, and copies everything; what it held before
        stays beside that. If this is killed or fails, call it again: that begins anew.

        Args:
            url: the root's path or URL.

        Raises:
            InvalidOption: the store is not replicated, or the root is in sync already.
            NotAStore, StoreExists: the folder holds something else.
            NotEnoughReplicas: the set has changed meanwhile: try again.
            StorageError: the root or the controller fails.
        """
        storage = self._replicated()
        return join(storage.agreement, *prepare_root(storage, url))

    def remove_replica(self, root: str) -> None:
        """Take a root out of the set, such as before its disk is exchanged.

        Args:
            root: its name, as :meth:`replicas` tells it. Nothing in it is deleted.

        Raises:
            InvalidOption: the store is not replicated, or there is no such root in the set.
            NotEnoughReplicas: no other one could lead, or the set has changed meanwhile.
        """
        agreement = self._replicated().agreement
        epoch = agreement.refresh()
        member = next((one for one in epoch.members if root_of(one) == root), None)
        if member is None:
            raise InvalidOption(f"{root} is none of {', '.join(epoch.members)}")
        why = "an operator takes it out"
        if member == epoch.leader:
            done = len(epoch.in_sync) > 1 and agreement.put_out(epoch, member, why)
        else:
            done = agreement.propose(without(epoch, member, agreement.proposer(why)))
        if not done:
            raise NotEnoughReplicas(
                f"{root} was not taken out: it leads and no other one in sync answers, or the set "
                f"has changed since epoch {epoch.number}"
            )
