"""What an operator asks about the roots of a replicated store, and does to them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from txnlog import names
from txnlog.arguments import names_wrong_arguments, naming_wrong_arguments
from txnlog.clock import Clock, SystemClock
from txnlog.config import Setting, StoreConfig
from txnlog.errors import (
    InvalidOption,
    LogTruncated,
    NotEnoughReplicas,
    StorageError,
    TxnlogError,
    UnknownTopicOrPartition,
)
from txnlog.log.named_folders import list_topics
from txnlog.log.open_logs import Logs
from txnlog.replication.named_segments import named_segments
from txnlog.replication.roots.agreement import MemberFailed
from txnlog.replication.roots.controller_move import ControllerMove, move_controller
from txnlog.replication.roots.description import (
    ReplicaEpoch,
    ReplicasDescription,
    describe,
    history,
)
from txnlog.replication.roots.election import Election, change_settings, elect, take_out
from txnlog.replication.roots.epoch_notes import note_epoch
from txnlog.replication.roots.epochs import FACTOR, RACK, list_settings, split_settings
from txnlog.replication.roots.find_replicas import (
    GIVEN_TOGETHER,
    find_replicas,
    find_root,
    make_replicas,
    plan_join,
    prepare_root,
)
from txnlog.replication.roots.old_incarnations import Forgotten, forget
from txnlog.replication.roots.outdated_controller import check_controller
from txnlog.replication.roots.placed_data import IsReplaced
from txnlog.replication.roots.placement import places
from txnlog.replication.roots.reassignment import Reassigned, reassign
from txnlog.replication.roots.recovery import recover
from txnlog.replication.roots.replicated_storage import ReplicatedStorage, find_replicated
from txnlog.replication.roots.root_join import Joined, join
from txnlog.replication.roots.verification import ReplicaDifference, share_logs, verify
from txnlog.replication.roots.watermarks import LogWatermark, watermarks
from txnlog.storage import check_location
from txnlog.storage.create_once import confirm
from txnlog.storage.forwarding import logged
from txnlog.store import Store, attach, logs_of

if TYPE_CHECKING:
    from txnlog.replication.sound_copies import SoundCopies

_logger = logging.getLogger(__name__)


@naming_wrong_arguments
def open_replicas(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    controller: str | os.PathLike[str] | None = None,
    create: bool = False,
    storage_options: Mapping[str, object] | None = None,
    config: Mapping[str, object] | None = None,
    clock: Clock | None = None,
) -> Replicas:
    """The roots of a replicated store; with ``create``, make one if it is missing.

    They are opened even if none in sync answers, so that ``store`` cannot be.

    Args:
        urls: of its controller, or of a root that answers. With ``create`` those of two roots or
            more, empty folders, each for a full copy; the first one leads.
        controller: with ``create``: the folder that records which roots are in sync. Later this
            URL, or that of any root, is enough.
        create: make the store; if it exists on these roots it is opened.
        storage_options: as for :func:`txnlog.open`.
        config: settings of a new store and of its replicas: see docs/SETTINGS.md and
            docs/REPLICAS.md.
        clock: for tests.

    Raises:
        InvalidOption: it is not a replicated store, or an argument makes no sense.
        StoreExists: the controller has other roots, or a root belongs to another store.
        NotAStore: a folder holds something else.
        StorageError: the controller fails.
    """
    clock = clock or SystemClock()
    given = [urls] if isinstance(urls, str | os.PathLike) else urls
    roots = [check_location(url, storage_options) for url in given]
    if create and controller is not None and len(roots) > 1:
        settings, others = split_settings(config)
        made = make_replicas(roots, controller, storage_options, settings, clock)
        store = attach(logged(made), create=True, config=others, clock=clock)
        # Whoever began may have been killed before all roots had it; with too few it is for later.
        with suppress(NotEnoughReplicas), made.wait_up_to(0):
            confirm(made, names.STORE_FILE)
        return Replicas(store)
    if create or controller is not None or len(roots) != 1 or config:
        raise InvalidOption(GIVEN_TOGETHER)
    found = find_replicas(roots[0], storage_options, clock)
    if found is None:
        raise InvalidOption(
            f"{roots[0]} has no replicas: it is a store on one root, or no store, or not mounted"
        )
    return Replicas(Logs(found, StoreConfig.of({}), clock))


@naming_wrong_arguments
def recover_controller(
    root: str | os.PathLike[str],
    controller: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, object] | None = None,
    lost: str | Sequence[str] = (),
    clock: Clock | None = None,
    dry_run: bool = False,
) -> ControllerMove:
    """Make a controller that is lost anew at another place, from what the roots keep of it.

    All roots must answer; then nothing that was acknowledged is lost. Processes that have the store
    open must reopen it. The old place must never be used again: delete it, should it come back. If
    this is killed or fails, or roots were not told, call it again.

    Args:
        root: the URL of a root of the store.
        controller: an empty folder, for the new controller.
        storage_options: as for :func:`txnlog.open`, for all roots too.
        lost: names of roots, or one, lost for good: what they alone had may be lost, too.
        clock: for tests.
        dry_run: only check whether that is possible now.

    Raises:
        InvalidOption: the old controller answers; or that is no root, or one without epochs; or the
            new place is a root, or below one, or was the controller.
        CorruptEntry: the newest epoch of a root cannot be read.
        NotEnoughReplicas: a root that must answer does not.
        StoreExists: the new place is not empty, or somebody else recovers the controller.
        StorageError: a root or the new place fails.
    """
    check_location(root, storage_options)
    check_location(controller, storage_options)
    clock = clock or SystemClock()
    gone = [lost] if isinstance(lost, str) else lost
    return recover(root, controller, storage_options, clock, lost=gone, dry_run=dry_run)


@names_wrong_arguments()
class Replicas:
    """The roots of a replicated store, for operators.

    Args:
        store: an open one that lies on several roots; :func:`open_replicas` needs no open store.

    Raises:
        InvalidOption: the store is not replicated.
    """

    def __init__(self, store: Store | Logs) -> None:
        self._store = store if isinstance(store, Store) else None
        self._logs = store if isinstance(store, Logs) else logs_of(store, "Replicas")
        found = find_replicated(self._logs.storage)
        if found is None:
            url = self._logs.storage.url
            raise InvalidOption(f"{url} has no replicas: it is a store on one root")
        self._roots = found

    def __repr__(self) -> str:
        return f"Replicas({self._logs.storage.url!r})"

    @property
    def store(self) -> Store:
        """The store on these roots, opened at the first use. Raises as :func:`txnlog.open` does."""
        if self._store is None:
            self._store = attach(logged(self._logs.storage), clock=self._logs.clock)
        return self._store

    def _go_by_controller(self) -> ReplicatedStorage:
        """Check the controller before a change, and go by it alone from now on.

        Raises OutdatedController; StorageError: the controller fails.
        """
        self._roots.agreement.find_kept = None
        check_controller(self._roots.agreement, self._roots.open_member)
        return self._roots

    @property
    def logs(self) -> Logs:
        """For the parts of txnlog that build on a store, not for applications."""
        return self._logs

    def describe(self, *, with_lag: bool = False) -> ReplicasDescription:
        """Which root leads, which are in sync, joining or out, and what each of them answers.

        A root that does not answer is waited for no longer than ten seconds.

        Args:
            with_lag: also what roots lack, or have in other sizes, and data at too few roots: roots
                are listed whole.

        Raises:
            StorageError: the controller fails.
        """
        judge = self._sound_copies()
        return describe(self._roots, with_lag=with_lag, named=judge.needed, unnamed=judge.unnamed)

    def add(self, url: str, *, rack: str | None = None, dry_run: bool = False) -> Joined:
        """Add a root, a new one or one that was out, and wait until it is in sync.

        It joins as a new incarnation, an empty folder, and copies everything, or its share if
        ``replication.factor`` is set. Of what it held before it keeps the data that is whole: on
        disks that takes no room, nor time but for reading it. If this is killed or fails, call it
        again: what was copied counts as held before.

        Args:
            url: the root's path or URL.
            rack: its rack: data is spread over racks first.
            dry_run: only say what would be copied now.

        Raises:
            InvalidOption: the root is in sync already.
            NotAStore, StoreExists: the folder holds something else.
            NotEnoughReplicas: the set has changed meanwhile; try again.
            StorageError: the root or the controller fails.
        """
        storage = self._go_by_controller()
        if dry_run:
            return plan_join(storage, url)
        if rack is not None:  # before the folder is marked
            label = {f"{RACK}.{find_root(storage, url)[0]}": rack}
            change_settings(storage.agreement, label, dry_run=True)
        root, url = prepare_root(storage, url)
        if rack is not None:  # before it is written to; of a folder that is refused none stays
            change_settings(storage.agreement, {f"{RACK}.{root}": rack})
        judge = self._sound_copies()
        return join(storage.agreement, root, url, judge, judge.files)

    def remove(self, root: str, *, force: bool = False, dry_run: bool = False) -> list[Reassigned]:
        """Take a root out of the set, for instance before its disk is replaced.

        It stays out until :meth:`add` adds it again, even if ``replica.auto.return`` is
        set. Nothing in it is deleted. Its logs are read, and compared with another root's. If
        ``replication.factor`` is set, data that would be at too few others is copied first.

        Args:
            root: its name, as in :meth:`describe`.
            force: copy nothing: data may then be at too few roots, or at none, and so may what
                others have lost of logs.
            dry_run: only check whether that is possible now, and what would be copied.

        Returns:
            What was copied, by topic.

        Raises:
            InvalidOption: there is no such root in the set.
            NotEnoughReplicas: no other one could lead, data could not be copied, or the set has
                changed meanwhile: call it again.
            StorageError: the controller fails.
        """
        storage = self._go_by_controller()
        agreement = storage.agreement
        take_out(agreement, root, dry_run=True)
        # It may alone have what the leader has lost.
        diverged = not (force or dry_run) and share_logs(storage, root)
        if force or not places(agreement.refresh()):
            take_out(agreement, root, dry_run=dry_run, diverged=diverged)
            return []
        judge, replaced = self._sound_copies(), self._replaced_data()
        move = partial(reassign, agreement, is_sound=judge, is_replaced=replaced, deletes=False)
        before = move(without=root, dry_run=dry_run)
        if dry_run:
            return before
        _check_copied(root, before)
        take_out(agreement, root, diverged=diverged)
        # Data put since, and data that others were about to delete because this root had it.
        after = move()
        _check_copied(f"{root}, which is out now: leave its disk as it is", after)
        return before + after

    def reassign(
        self, topics: str | Sequence[str] | None = None, *, dry_run: bool = False
    ) -> list[Reassigned]:
        """Copy data to the roots where it belongs, then delete it at those where it does not.

        For after a change of ``replication.factor``, racks or the set of roots. It lists the roots
        whole, and reads what it moves: nothing is deleted of which no other copy is whole. May run
        while others write and in several processes, and stop anywhere.

        Args:
            topics: the names of one or several; None for all.
            dry_run: only say what would be done.

        Returns:
            What was done, for each topic with something to do.

        Raises:
            InvalidOption: every root has everything.
            InvalidTopic: an argument is not a topic's name.
            UnknownTopicOrPartition: a topic does not exist and never existed.
            NotEnoughReplicas: a root in sync fails, or the set keeps changing; call it again.
            StorageError: the controller fails.
        """
        chosen = [topics] if isinstance(topics, str) else topics
        known = list_topics(self._logs.storage) if chosen else ()
        for topic in chosen or ():
            if names.check_topic(topic) not in known:
                raise UnknownTopicOrPartition(f"topic {topic!r} does not exist and never existed")
        agreement, judge = self._go_by_controller().agreement, self._sound_copies()
        replaced = self._replaced_data()
        return reassign(agreement, chosen, judge, is_replaced=replaced, dry_run=dry_run)

    def elect(
        self, root: str | None = None, *, unclean: bool = False, dry_run: bool = False
    ) -> Election:
        """Make a root the leader; without a name the preferred one, if it does not lead already.

        Nothing is lost if it is in sync; the old leader stays in sync if it answers. A root that is
        no longer in sync leads only with ``unclean``, and only if no root in sync answers: writes
        acknowledged since it left may be lost. If data is at some roots only, that may include
        older records: its logs are read to find them.

        Args:
            root: its name, as in :meth:`describe`; None for ``replica.preferred.leader``.
            unclean: accept the loss of acknowledged writes. Check with ``dry_run`` first.
            dry_run: only say what would be done, and lost.

        Raises:
            InvalidOption: the root leads already, was never in sync,
                or is not in sync and ``unclean`` is False or a root in sync answers.
            NotEnoughReplicas: it does not answer, or the set has changed meanwhile; try again.
            StorageError: the controller fails, or the root while its logs are read.
            CorruptEntry: its file of the store is damaged.
        """
        return elect(
            self._go_by_controller().agreement,
            root,
            name_segments=partial(named_segments, clock=self._logs.clock),
            unclean=unclean,
            dry_run=dry_run,
        )

    def alter(
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
            InvalidConfig, InvalidOption: a key or a value is
                invalid; nothing was changed.
            NotEnoughReplicas: the set has changed meanwhile; try again.
            StorageError: the controller fails.
        """
        storage = self._go_by_controller()
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
            InvalidOption: the controller is there already, or that is
                a root.
            NotAStore, StoreExists: the place holds something else, or another store's epochs.
            UnsupportedFilesystem, PutIfAbsentBroken: the place cannot decide races.
            NotEnoughReplicas: another process has moved it, or the set changes; try again.
            StorageError: either place fails.
        """
        moved = move_controller(self._go_by_controller(), url, storage_options, dry_run=dry_run)
        if not dry_run:
            self._keep_epoch()
        return moved

    def forget(self, member: str, *, lost: bool = False, dry_run: bool = False) -> Forgotten:
        """Delete a root's copy from before it left the in-sync set, an old incarnation.

        It may have the only copy of data, or the only one that is whole: then this is refused until
        :meth:`reassign`, or :meth:`verify`, has copied that. Data is read for it, once, at a root
        in sync, unless its own root has taken it back.

        Args:
            member: its name, such as 'r1-0', as in :meth:`describe`. A current member is refused.
            lost: its root will never answer again: it is no longer waited for, nor brought back by
                itself, nothing is deleted, and data of which it had the only copy is lost.
            dry_run: only say what would be deleted.

        Raises:
            InvalidOption: the member is current or does not exist; no
                root in sync has some of its data; or it was said to be lost, but answers.
            NotEnoughReplicas: the set has changed meanwhile; try again.
            StorageError: the root or the controller fails, or no root in sync can keep the newest
                epoch; call it again if some files are left.
        """
        storage, judge = self._go_by_controller(), self._sound_copies()
        replaced = self._replaced_data()
        return forget(storage, member, judge, is_replaced=replaced, lost=lost, dry_run=dry_run)

    def history(self) -> list[ReplicaEpoch]:
        """The history of epochs, oldest first: which root led, which were in sync, and why.

        Where the controller does not answer it is what roots keep: epochs under which nothing was
        written are missing then.

        Raises:
            StorageError, CorruptEntry: the controller fails, or an epoch is damaged.
        """
        return history(self._roots)

    def watermarks(self) -> list[LogWatermark]:
        """The end of each log at the leader, and at every root in sync: its high watermark.

        Every root in sync is listed whole. Writes made meanwhile show as lag.

        Raises:
            NotEnoughReplicas: the leader does not answer.
            StorageError: the controller fails.
        """
        return watermarks(self._roots.agreement)

    def verify(
        self, *, with_contents: bool = False, repair: bool = False
    ) -> Iterator[ReplicaDifference]:
        """Compare the roots that are in sync. Memory is bounded; safe while others write.

        Differences are checked again before they are reported, since a listing is not a snapshot.

        Args:
            with_contents: read every object, and compare the bytes; else names and sizes.
            repair: copy missing files from a root that has them, if the bytes are sound, and
                replace damaged segments and manifests by sound copies. These, and lost ones, are
                also taken from what roots had when they were put out. Entries are copied only from
                the leader to other roots.

        Raises:
            StorageError: the controller, or a root in sync, fails.
        """
        judge = self._sound_copies()
        return verify(
            self._go_by_controller(),
            judge,
            with_contents=with_contents,
            repair=repair,
            named=judge.needed,
            unnamed=judge.unnamed,
        )

    def _keep_epoch(self) -> None:
        """Let the members in sync that answer keep the newest epoch; best effort."""
        agreement = self._roots.agreement
        with suppress(MemberFailed, TxnlogError):
            note_epoch(agreement, agreement.refresh())

    def _sound_copies(self) -> SoundCopies:
        from txnlog.replication.sound_copies import SoundCopies

        return SoundCopies(self._logs)

    def _replaced_data(self) -> IsReplaced:
        from txnlog.replication.replaced_data import ReplacedData

        return ReplacedData(self._logs)


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
