"""What an operator asks of the roots of a replicated store, and does to them."""

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
from txnlog.replicas.verifying import ReplicaDifference, verify
from txnlog.replicas.watermarks import LogWatermark, watermarks

_logger = logging.getLogger(__name__)


def open_replicas(
    url: str,
    *,
    storage_options: Mapping[str, object] | None = None,
    clock: Clock | None = None,
) -> ReplicaSet:
    """The roots of a replicated store, also where none in sync answers: then it cannot be opened.

    Args:
        url: of its controller, or of a root that answers.
        storage_options: as of :func:`txnlog.open`.
        clock: for tests.

    Raises:
        InvalidOption: it is no replicated store.
        StorageError: the controller fails.
    """
    clock = clock or SystemClock()
    found = find_replicas(url, storage_options, clock)
    if found is None:
        raise InvalidOption(
            f"{url} has no replicas: it is a store on one root, or no store, or not mounted"
        )
    return ReplicaSet(Logs(found, StoreConfig.of({}, closes_chapters=True), clock))


class ReplicaAdmin:
    """The methods of a store that are about its replicas."""

    _logs: Logs

    def _replicated(self) -> ReplicatedStorage:
        found = find_replicated(self._logs.storage)
        if found is None:
            url = self._logs.storage.url
            raise InvalidOption(f"{url} has no replicas: it is a store on one root")
        return found

    def replicas(self, *, with_lag: bool = False) -> Replicas:
        """Who leads, who is in sync, who copies to become so, and who is out.

        Args:
            with_lag: also what those that are out lack, and what data is at too few roots: roots
                are listed whole.

        Raises:
            InvalidOption: the store is not replicated.
            StorageError: the controller fails.
        """
        return describe(self._replicated(), with_lag=with_lag)

    def add_replica(self, url: str, *, rack: str | None = None, dry_run: bool = False) -> Joined:
        """Bring a root in, a new one or one that was out, and wait until it is in sync.

        It comes as a new incarnation, an empty folder, and copies everything, or its share where
        ``replication.factor`` says so; what it held before stays beside that. If this is killed or
        fails, call it again: that starts over.

        Args:
            url: the root's path or URL.
            rack: where it stands: data is spread over racks first.
            dry_run: only tell what would be copied, as things are now.

        Raises:
            InvalidOption: the store is not replicated, or the root is in sync already.
            NotAStore, StoreExists: the folder holds something else.
            NotEnoughReplicas: the set has changed meanwhile: try again.
            StorageError: the root or the controller fails.
        """
        storage = self._replicated()
        if dry_run:
            return plan_join(storage, url)
        if rack is not None:
            change_settings(storage.agreement, {f"{RACK}.{find_root(storage, url)[0]}": rack})
        return join(storage.agreement, *prepare_root(storage, url))

    def remove_replica(
        self, root: str, *, force: bool = False, dry_run: bool = False
    ) -> list[Reassigned]:
        """Take a root out of the set, such as before its disk is exchanged.

        It stays out until :meth:`add_replica` brings it in again, also where
        ``replica.auto.return`` is set. Nothing in it is deleted. Where ``replication.factor`` says
        that not every root has everything, data that would be at too few others is copied first.

        Args:
            root: its name, as :meth:`replicas` tells it.
            force: copy nothing: data may be at too few roots then, or at none.
            dry_run: only look whether that can be done now, and what would be copied.

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
        # What was put since; and what others were about to delete, since this one had it.
        after = reassign(agreement, deletes=False)
        _check_copied(f"{root}, which is out now: leave its disk as it is", after)
        return before + after

    def reassign_replicas(
        self, topics: str | Sequence[str] | None = None, *, dry_run: bool = False
    ) -> list[Reassigned]:
        """Bring data to the roots where it belongs, then delete it at those where it does not.

        After ``replication.factor``, racks or the set of roots have changed. It lists the roots
        whole. May run while others write and in several processes, and stop anywhere.

        Args:
            topics: the names of one or several; None for all.
            dry_run: only tell what would be done.

        Returns:
            What was done, for each topic of which there was something to do.

        Raises:
            InvalidOption: the store is not replicated, or every root has everything.
            InvalidTopic: what is given is no topic's name.
            NotEnoughReplicas: a root in sync fails, or the set goes on changing: call it again.
            StorageError: the controller fails.
        """
        chosen = [topics] if isinstance(topics, str) else topics
        return reassign(self._replicated().agreement, chosen, dry_run=dry_run)

    def elect_leader(self, root: str, *, unclean: bool = False, dry_run: bool = False) -> Election:
        """Have a root lead.

        Nothing is lost if it is in sync; the old leader stays in sync if it answers. One that was
        in sync once, and is not, leads only if ``unclean`` says so, and only if none of those that
        are in sync answers: what was acknowledged since then may be lost. Where data is at some
        roots only, that may also be older records: the logs that it has are read for that.

        Args:
            root: its name, as :meth:`replicas` tells it.
            unclean: accept that what was acknowledged is lost. Look with ``dry_run`` first.
            dry_run: only tell what would be done, and lost.

        Raises:
            InvalidOption: the store is not replicated, the root leads already, was never in sync,
                or is not in sync and ``unclean`` is False or somebody in sync answers.
            NotEnoughReplicas: it does not answer, or the set has changed meanwhile: try again.
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
        """Change settings of the replicas; None takes a key back to its default.

        They hold for every process from its next look at the epochs, which comes before anything
        is acknowledged.

        Args:
            config: settings by key, such as ``{"min.insync.replicas": 2}``.
            dry_run: only tell what would hold.

        Returns:
            All settings as they are then.

        Raises:
            InvalidConfig, InvalidOption: the store is not replicated, or a key or a value is none;
                nothing was changed.
            NotEnoughReplicas: the set has changed meanwhile: try again.
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
        """Move the controller to another place, while others write. It must be reachable still.

        Whoever uses the store goes on there by himself, if he has what is needed to open it; leave
        the old place as it is until all processes that were asleep have gone on. If this is killed
        or fails, or roots did not answer, call it again.

        Args:
            url: an empty folder; or where the controller was before.
            storage_options: for this URL. Others bring theirs when they open the store.
            dry_run: only look whether that can be done now.

        Raises:
            InvalidOption: the store is not replicated, the controller is there already, or that is
                a root.
            NotAStore, StoreExists: the place holds something else, or another store's epochs.
            UnsupportedFilesystem, PutIfAbsentBroken: the place cannot decide anything.
            NotEnoughReplicas: somebody else has moved it, or the set changes: try again.
            StorageError: either place fails.
        """
        return move_controller(self._replicated(), url, storage_options, dry_run=dry_run)

    def forget_incarnation(
        self, member: str, *, lost: bool = False, dry_run: bool = False
    ) -> Forgotten:
        """Delete what a root had before it was put out, as an old incarnation.

        Where ``replication.factor`` says that not every root has everything it may have the only
        copy of data: then it is refused, until :meth:`reassign_replicas` has copied that.

        Args:
            member: its name, such as 'r1-0': :meth:`replicas` tells which there are. One that takes
                part is refused.
            lost: its root does not answer, and never will: nobody waits for it any more, nothing is
                deleted, and data of which it had the only copy is gone.
            dry_run: only tell what would be deleted.

        Raises:
            InvalidOption: the store is not replicated, it takes part, or there is none; nobody in
                sync has data that it has; or it is said to be lost, and answers.
            NotEnoughReplicas: the set has changed meanwhile: try again.
            StorageError: the root or the controller fails; if some of it is left, call it again.
        """
        return forget(self._replicated(), member, lost=lost, dry_run=dry_run)

    def replica_history(self) -> list[ReplicaEpoch]:
        """The epochs as they went, the oldest first: who led, who was in sync, and why.

        Raises:
            InvalidOption: the store is not replicated.
            StorageError, CorruptEntry: the controller fails, or an epoch is damaged.
        """
        return history(self._replicated())

    def replica_watermarks(self) -> list[LogWatermark]:
        """How far each log is at the leader, and at every root in sync: its high watermark.

        Every root in sync is listed whole. What is written meanwhile shows as behind.

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

        What differs is looked at again before it is told, since a listing is no instant.

        Args:
            with_contents: read every object, and compare the bytes; else names and sizes.
            repair: copy what a root lacks from one that has it, if its bytes are sound, and put
                sound bytes in place of a segment's that are not. Entries are given only to who
                lacks what the leader has.

        Raises:
            InvalidOption: the store is not replicated.
            StorageError: the controller, or a root in sync, fails.
        """
        from txnlog.admin.sound_copies import SoundCopies

        judge = SoundCopies(self._logs)
        return verify(self._replicated(), judge, with_contents=with_contents, repair=repair)


def _warn_of_unknown(storage: ReplicatedStorage, topics: Sequence[str]) -> None:
    """Say which topics are not there: they may come later, or be misspelt."""
    with suppress(StorageError, LogTruncated):  # where no root answers it holds all the same
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
