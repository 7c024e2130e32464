"""What an operator asks about the roots of a replicated store, and does to them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from txnlog import names
from txnlog.admin.named_segments import named_segments
from txnlog.clock import Clock, SystemClock
from txnlog.config import Setting, StoreConfig
from txnlog.errors import InvalidOption, LogTruncated, NotEnoughReplicas, StorageError
from txnlog.log.open_logs import Logs
from txnlog.replicas.description import ReplicaEpoch, Replicas, describe, history
from txnlog.replicas.electing import Election, change_settings, elect, take_out
from txnlog.replicas.epochs import FACTOR, RACK, list_settings
from txnlog.replicas.forgetting import Forgotten, forget
from txnlog.replicas.joining import Joined, join
from txnlog.replicas.moving import ControllerMove, move_controller
from txnlog.replicas.opening import find_replicas, find_root, plan_join, prepare_root
from txnlog.replicas.placement import places
from txnlog.replicas.reassigning import Reassigned, reassign
from txnlog.replicas.replicated_storage import ReplicatedStorage, find_replicated
from txnlog.replicas.soundness import IsSound
from txnlog.replicas.verifying import ReplicaDifference, verify
from txnlog.replicas.watermarks import LogWatermark, watermarks
from txnlog.storage.base import Storage

_logger = logging.getLogger(__name__)


def open_replicas(
    url: str,
    *,
    storage_options: Mapping[str, object] | None = None,
    clock: Clock | None = None,
) -> ReplicaSet:
    """The roots of a replicated store, even if none in sync answers and it cannot be opened.

    Args:
        url: of its controller, or of a root that answers.
        storage_options: as for :func:`txnlog.open`.
        clock: for tests.

    Raises:
        InvalidOption: it is not a replicated store.
        StorageError: the controller fails.
    """
    clock = clock or SystemClock()
    found = find_replicas(url, storage_options, clock)
    if found is None:
        raise InvalidOption(
            f"{url} has no replicas: it is a store on one root, or no store, or not mounted"
        )
    return ReplicaSet(Logs(found, StoreConfig.of({}), clock))


class ReplicaAdmin:
    """The methods of a store about its replicas."""

    _logs: Logs

    def _replicated(self) -> ReplicatedStorage:
        found = find_replicated(self._logs.storage)
        if found is None:
            url = self._logs.storage.url
            raise InvalidOption(f"{url} has no replicas: it is a store on one root")
        return found

    def replicas(self, *, with_lag: bool = False) -> Replicas:
        """Which root leads, which are in sync, joining or out, and what each of them answers.

        A root that does not answer is waited for no longer than ten seconds.

        Args:
            with_lag: also what roots lack, or have in other sizes, and data at too few roots: roots
                are listed whole.

        Raises:
            InvalidOption: the store is not replicated.
            StorageError: the controller fails.
        """
        return describe(self._replicated(), with_lag=with_lag)

    def add_replica(self, url: str, *, rack: str | None = None, dry_run: bool = False) -> Joined:
        """Add a root, a new one or one that was out, and wait until it is in sync.

        It joins as a new incarnation, an empty folder, and copies everything, or its share if
        ``replication.factor`` is set; what it held before stays beside that. If this is killed or
        fails, call it again: that starts over.

        Args:
            url: the root's path or URL.
            rack: its rack: data is spread over racks first.
            dry_run: only say what would be copied now.

        Raises:
            InvalidOption: the store is not replicated, or the root is in sync already.
            NotAStore, StoreExists: the folder holds something else.
            NotEnoughReplicas: the set has changed meanwhile; try again.
            StorageError: the root or the controller fails.
        """
        storage = self._replicated()
        if dry_run:
            return plan_join(storage, url)
        if rack is not None:
            change_settings(storage.agreement, {f"{RACK}.{find_root(storage, url)[0]}": rack})
        return join(storage.agreement, *prepare_root(storage, url), self._sound_copies())

    def remove_replica(
        self, root: str, *, force: bool = False, dry_run: bool = False
    ) -> list[Reassigned]:
        """Take a root out of the set, for instance before its disk is replaced.

        It stays out until :meth:`add_replica` adds it again, even if ``replica.auto.return`` is
        set. Nothing in it is deleted. If ``replication.factor`` is set, data that would be at too
        few others is copied first.

        Args:
            root: its name, as in :meth:`replicas`.
            force: copy nothing: data may then be at too few roots, or at none.
            dry_run: only check whether that is possible now, and what would be copied.

        Returns:
            What was copied, by topic.

        Raises:
            InvalidOption: the store is not replicated, or there is no such root in the set.
            NotEnoughReplicas: no other one could lead, data could not be copied, or the set has
                changed meanwhile: call it again.
            StorageError: the controller fails.
        """
        agreement = self._replicated().agreement
        take_out(agreement, root, dry_run=True)
        if force or not places(agreement.refresh()):
            take_out(agreement, root, dry_run=dry_run)
            return []
        before = reassign(agreement, without=root, deletes=False, dry_run=dry_run)
        if dry_run:
            return before
        _check_copied(root, before)
        take_out(agreement, root)
        # Data put since, and data that others were about to delete because this root had it.
        after = reassign(agreement, deletes=False)
        _check_copied(f"{root}, which is out now: leave its disk as it is", after)
        return before + after

    def reassign_replicas(
        self, topics: str | Sequence[str] | None = None, *, dry_run: bool = False
    ) -> list[Reassigned]:
        """Copy data to the roots where it belongs, then delete it at those where it does not.

        For after a change of ``replication.factor``, racks or the set of roots. It lists the roots
        whole. May run while others write and in several processes, and stop anywhere.

        Args:
            topics: the names of one or several; None for all.
            dry_run: only say what would be done.

        Returns:
            What was done, for each topic with something to do.

        Raises:
            InvalidOption: the store is not replicated, or every root has everything.
            InvalidTopic: an argument is not a topic's name.
            NotEnoughReplicas: a root in sync fails, or the set keeps changing; call it again.
            StorageError: the controller fails.
        """
        chosen = [topics] if isinstance(topics, str) else topics
        return reassign(self._replicated().agreement, chosen, dry_run=dry_run)

    def elect_leader(
        self, root: str | None = None, *, unclean: bool = False, dry_run: bool = False
    ) -> Election:
        """Make a root the leader; without a name the preferred one, if it does not lead already.

        Nothing is lost if it is in sync; the old leader stays in sync if it answers. A root that is
        no longer in sync leads only with ``unclean``, and only if no root in sync answers: writes
        acknowledged since it left may be lost. If data is at some roots only, that may include
        older records: its logs are read to find them.

        Args:
            root: its name, as in :meth:`replicas`; None for ``replica.preferred.leader``.
            unclean: accept the loss of acknowledged writes. Check with ``dry_run`` first.
            dry_run: only say what would be done, and lost.

        Raises:
            InvalidOption: the store is not replicated, the root leads already, was never in sync,
                or is not in sync and ``unclean`` is False or a root in sync answers.
            NotEnoughReplicas: it does not answer, or the set has changed meanwhile; try again.
            StorageError: the controller fails, or the root while its logs are read.
            CorruptEntry: its file of the store is damaged.
        """
        return elect(
            self._replicated().agreement,
            root,
            name_segments=partial(named_segments, clock=self._logs.clock),
            unclean=unclean,
            dry_run=dry_run,
        )

    def alter_replicas(
        self, config: Mapping[str, object | None], *, dry_run: bool = False
    ) -> tuple[Setting, ...]:
        """Change settings of the replicas; None resets a key to its default.

        They apply to every process from its next look at the epochs, which comes before anything is
        acknowledged.

        Args:
            config: settings by key, such as ``{"min.insync.replicas": 2}``.
            dry_run: only say what would apply.

        Returns:
            All settings as they are then.

        Raises:
            InvalidConfig, InvalidOption: the store is not replicated, or a key or a value is
                invalid; nothing was changed.
            NotEnoughReplicas: the set has changed meanwhile; try again.
            StorageError: the controller fails.
        """
        storage = self._replicated()
        changed = change_settings(storage.agreement, config, dry_run=dry_run)
        named = [key.removeprefix(f"{FACTOR}.") for key in config if key.startswith(f"{FACTOR}.")]
        if named:
            _warn_of_unknown(storage, named)
        return list_settings(changed)

    def move_controller(
        self,
        url: str,
        *,
        storage_options: Mapping[str, object] | None = None,
        dry_run: bool = False,
    ) -> ControllerMove:
        """Move the controller to another place, while others write.

        The old place must be reachable. Processes that use the store go on at the new place by
        themselves, if they have the options to open it; leave the old place as it is until all
        processes that were asleep have gone on. If this is killed or fails, or roots did not
        answer, call it again.

        Args:
            url: an empty folder; or where the controller was before.
            storage_options: for this URL. Other processes give theirs when they open the store.
            dry_run: only check whether that is possible now.

        Raises:
            InvalidOption: the store is not replicated, the controller is there already, or that is
                a root.
            NotAStore, StoreExists: the place holds something else, or another store's epochs.
            UnsupportedFilesystem, PutIfAbsentBroken: the place cannot decide races.
            NotEnoughReplicas: another process has moved it, or the set changes; try again.
            StorageError: either place fails.
        """
        return move_controller(self._replicated(), url, storage_options, dry_run=dry_run)

    def forget_incarnation(
        self, member: str, *, lost: bool = False, dry_run: bool = False
    ) -> Forgotten:
        """Delete a root's copy from before it left the in-sync set, an old incarnation.

        If ``replication.factor`` is set it may have the only copy of data: then this is refused
        until :meth:`reassign_replicas` has copied that.

        Args:
            member: its name, such as 'r1-0', as in :meth:`replicas`. A current member is refused.
            lost: its root will never answer again: it is no longer waited for, nothing is deleted,
                and data of which it had the only copy is lost.
            dry_run: only say what would be deleted.

        Raises:
            InvalidOption: the store is not replicated; the member is current or does not exist; no
                root in sync has some of its data; or it was said to be lost, but answers.
            NotEnoughReplicas: the set has changed meanwhile; try again.
            StorageError: the root or the controller fails; call it again if some files are left.
        """
        return forget(self._replicated(), member, lost=lost, dry_run=dry_run)

    def replica_history(self) -> list[ReplicaEpoch]:
        """The history of epochs, oldest first: which root led, which were in sync, and why.

        Raises:
            InvalidOption: the store is not replicated.
            StorageError, CorruptEntry: the controller fails, or an epoch is damaged.
        """
        return history(self._replicated())

    def replica_watermarks(self) -> list[LogWatermark]:
        """The end of each log at the leader, and at every root in sync: its high watermark.

        Every root in sync is listed whole. Writes made meanwhile show as lag.

        Raises:
            InvalidOption: the store is not replicated.
            NotEnoughReplicas: the leader does not answer.
            StorageError: the controller fails.
        """
        return watermarks(self._replicated().agreement)

    def verify_replicas(
        self, *, with_contents: bool = False, repair: bool = False
    ) -> Iterator[ReplicaDifference]:
        """Compare the roots that are in sync. Memory is bounded; safe while others write.

        Differences are checked again before they are reported, since a listing is not a snapshot.

        Args:
            with_contents: read every object, and compare the bytes; else names and sizes.
            repair: copy missing files from a root that has them, if the bytes are sound, and
                replace damaged segments by sound copies. Entries are copied only from the leader to
                other roots.

        Raises:
            InvalidOption: the store is not replicated.
            StorageError: the controller, or a root in sync, fails.
        """
        judge = self._sound_copies()
        return verify(self._replicated(), judge, with_contents=with_contents, repair=repair)

    def _sound_copies(self) -> IsSound:
        from txnlog.admin.sound_copies import SoundCopies

        return SoundCopies(self._logs)


def set_factor(storage: Storage, topic: str, factor: int, *, dry_run: bool = False) -> None:
    """Set at how many roots the data of a topic is that is about to be created.

    Raises what :meth:`ReplicaAdmin.alter_replicas` does.
    """
    found = find_replicated(storage)
    if found is None:
        raise InvalidOption(f"{storage.url} has no replicas: it is a store on one root")
    change_settings(found.agreement, {f"{FACTOR}.{topic}": factor}, dry_run=dry_run)


def _warn_of_unknown(storage: ReplicatedStorage, topics: Sequence[str]) -> None:
    """Report topics that do not exist: they may come later, or be misspelt."""
    with suppress(StorageError, LogTruncated):  # applies even if no root answers
        known = storage.list_folders(names.TOPICS)
        for topic in sorted(set(topics).difference(known)):
            _logger.warning(
                "there is no topic %r yet: %s.%s applies once it is made",
                topic,
                FACTOR,
                topic,
            )


def _check_copied(root: str, done: Sequence[Reassigned]) -> None:
    lacking = sum(one.lacking for one in done)
    if lacking:
        raise NotEnoughReplicas(
            f"{lacking} data files are at too few roots without {root}: `txnlog replicas reassign` "
            "shows of which topics; `--force` takes it out all the same"
        )


class ReplicaSet(ReplicaAdmin):
    """The roots of a store, without the store. Made by :func:`txnlog.open_replicas`."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    def __repr__(self) -> str:
        return f"ReplicaSet({self._logs.storage.url!r})"

    @property
    def logs(self) -> Logs:
        """For the parts of txnlog that build on a store, not for applications."""
        return self._logs
