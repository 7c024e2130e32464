"""Makes the rounds of a standby: copies the source, then makes the copy visible by one put.

1. Before a process makes its first round, the data of all topics is copied, however long that
   takes: nobody sees it.
2. The source is read as one consistent state (``source.py``), and newer data is copied.
3. The logs of that state are put under the name of this attempt, each as a checkpoint.
4. The round is put, if absent: from then on the standby shows it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b

from txnlog import names
from txnlog.errors import (
    IllegalState,
    InvalidOption,
    NotAStore,
    ObjectNotFound,
    StorageError,
    StoreExists,
)
from txnlog.log.open_logs import Logs
from txnlog.log.topic_log import TopicLog
from txnlog.names import LogFile
from txnlog.replication import root_names
from txnlog.replication.roots.members import MarkedDisk, check_outside, is_nested
from txnlog.replication.roots.replicated_storage import find_replicated
from txnlog.replication.roots.same_bytes import put_same
from txnlog.replication.sound_copies import SoundCopies
from txnlog.replication.standby.data_files import DataFileCopier
from txnlog.replication.standby.rounds import ExpiredIds, LogVersion, Round, Rounds, StandbyState
from txnlog.replication.standby.source import (
    FollowedSource,
    SourceLog,
    SourceMoved,
    SourceView,
    noticing_deletion,
    read_newest_states,
)
from txnlog.replication.standby.standby_storage import find_shown
from txnlog.replication.standby.sweep import delete_attempt, sweep_data, sweep_rounds
from txnlog.state.topic import TopicState
from txnlog.storage import envelope, open_storage
from txnlog.storage.base import Storage
from txnlog.storage.create_once import confirm, create_once
from txnlog.storage.forwarding import logged
from txnlog.storage.probe import probe
from txnlog.storage.registry import StoreFile
from txnlog.store import Store, logs_of

_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class Followed:
    """One round and what it cost. It shows everything acknowledged at ``reached_ms``.

    ``reached_ms`` is in Unix milliseconds. ``files`` and ``bytes`` count copied data. ``lost``
    names data files that the source should have, but lacks, or has damaged everywhere.
    """

    round: int
    reached_ms: int
    logs: int
    """How many logs have changed since the round before."""
    files: int
    bytes: int
    lost: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _NewestFile:
    """The newest file of a log as an attempt has put it: the source's log must continue from it."""

    attempt: str
    number: int
    digest: bytes

    @property
    def name(self) -> str:
        return names.log_file(self.number, LogFile.ENTRY)


class Follower:
    """Keeps a standby: a copy of a store in another folder. One process is enough; more do no harm.

    Each call of ``follow`` makes one round. Until the next round the standby shows the store as it
    was then; ``txnlog.open(url)`` reads it. See docs/REPLICAS.md.

    Args:
        store: the source.
        url: the standby's path or URL, on any filesystem, or its open storage: an empty folder, or
            a standby of the same store.
        storage_options: for the standby's filesystem.
        unsafe_single_writer: as for :func:`txnlog.open`.

    Raises:
        NotAStore, StoreExists: the folder holds something else.
        InvalidOption: the folder is the source's own, or one lies in the other.
        UnsupportedFilesystem: the folder's filesystem cannot carry a store.
    """

    def __init__(
        self,
        store: Store,
        url: str | os.PathLike[str] | Storage,
        *,
        storage_options: Mapping[str, object] | None = None,
        unsafe_single_writer: bool = False,
    ) -> None:
        of = logs_of(store, "Follower")
        logs = Logs(of.storage, of.config, of.clock)  # its own: nothing else folds them
        if isinstance(url, Storage):
            opened = target = url
        else:
            opened = open_storage(url, storage_options, unsafe_single_writer=unsafe_single_writer)
            target = logged(opened)
        if logs.storage.local_path("") is not None:
            # Asked with each listing: it may be gone for a moment, between any two requests.
            disk = MarkedDisk(logs.storage, names.STORE_FILE)
            logs = Logs(disk, logs.config, logs.clock)
        self._logs = logs
        self._source = FollowedSource(logs)
        self._target = target
        self._clock = logs.clock
        self._rounds = Rounds(target, logs.clock)
        self._data = DataFileCopier(logs.storage, target, lambda: SoundCopies(self._logs))
        self._standing: StandbyState | None = None
        self._newest_files: dict[str, _NewestFile] = {}
        self._read_anew: set[str] = set()
        """Folders of logs that may not continue from the standby's state, and are read in full."""
        self._store_file = self._read_store_file()
        check_outside(opened)
        self._failed: set[str] = set()
        """Attempts of this process that no round can name any more."""
        self._began = False

    def _read_store_file(self) -> bytes:
        if self._logs.storage.url == self._target.url:
            raise InvalidOption(f"{self._target.url} is the store itself, not a standby of it")
        for url in self._logs.storage.urls():
            if is_nested(self._target.url, url):
                raise InvalidOption(
                    f"{self._target.url} and {url} are nested: choose a folder beside the store"
                )
        return self._logs.storage.get(names.STORE_FILE)

    def follow(self) -> Followed:
        """Make one round: the standby then shows the source's state as of this call.

        Raises:
            IllegalState: the standby was promoted: it is a store of its own.
            StorageError: the source or the standby fails, or another process has put the round;
                nothing is lost, the next call goes on.
            CorruptEntry: the source is damaged.
        """
        self._begin()
        is_first = self._standing is None
        standing = self._standing = self._newest()
        before = standing.round if standing else None
        files, size = self._data.files, self._data.bytes
        if is_first:
            self._copy_ahead(before)
        self._data.lost |= set(before.lost) if before else set()
        self._data.look_for_lost()
        failure: Exception | None = None
        for _ in range(_ATTEMPTS):
            try:
                view = self._source.look()
                self._check_source(view, before)
                found, changed = self._put_round(view, before)
                break
            except SourceMoved as error:
                failure = error
        else:
            raise StorageError(
                f"{self._logs.storage.url} is cleaned up faster than it can be read: {failure}"
            )
        sweep_rounds(self._rounds, found)
        return Followed(
            found.number,
            found.reached_ms,
            changed,
            self._data.files - files,
            self._data.bytes - size,
            found.lost,
        )

    def sweep(self) -> int:
        """Delete data that the standby does not refer to, and that the source no longer has.

        This lists everything, so call it now and then. Returns how many files were deleted.

        Raises:
            StorageError: the source or the standby fails; the next call goes on.
            CorruptEntry: the source is damaged.
        """

        def look(newest: Round) -> SourceView:
            self._check_store_file()
            view = self._source.look()
            self._check_source(view, newest)
            return view

        source = self._logs.storage
        try:
            return sweep_data(source, self._target, self._store_file, self._clock, look)
        except SourceMoved as error:
            raise StorageError(f"{source.url} was cleaned up while it was read: {error}") from error

    def _copy_ahead(self, before: Round | None) -> None:
        """Copy data ahead of the first round: it may take hours, and the state is read later."""
        for log in self._source.topics():
            log.refresh()
            known = before.logs.get(log.log.folder) if before else None
            # The round itself does not need data released meanwhile.
            with log.lock, suppress(SourceMoved), noticing_deletion(log, log.state):
                self._data.copy(log, log.state, known.next_entry if known else 0)

    # -- the target ------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._began:
            return
        path = root_names.STANDBY_STORE_FILE
        try:
            found = self._target.get(path)
        except ObjectNotFound:
            folders = [n for n in self._target.list_folders("") if not n.startswith(".")]
            if self._target.list_names("") or folders:
                raise NotAStore(
                    f"{self._target.url} is not empty: a standby begins in an empty folder"
                ) from None
            if not self._target.was_probed():
                probe(self._target)
            create_once(self._target, path, self._store_file, self._clock)
            found = self._target.get(path)
        if found != self._store_file:
            raise StoreExists(f"{self._target.url} is a standby of another store")
        self._began = True

    def _newest(self) -> StandbyState | None:
        found = self._rounds.newest(self._standing)
        if found is not None and found.is_promoted:
            raise IllegalState(
                f"{self._target.url} was promoted: it is a store of its own now, and does not "
                "follow. Begin a new standby in an empty folder"
            )
        return found

    # -- the source ------------------------------------------------------------------------------

    def _check_source(self, view: SourceView, before: Round | None) -> None:
        """Check that the source is still the same store, and lacks nothing that the standby has.

        A disk that is not mounted has no topics. Raises StorageError.
        """
        self._check_store_file()
        if before is not None:
            self._check_ends(view, before)

    def _check_store_file(self) -> None:
        try:
            same = self._logs.storage.get(names.STORE_FILE) == self._store_file
        except ObjectNotFound:
            same = False
        if not same:
            raise StorageError(
                f"{self._logs.storage.url} is not the store that it was: is its disk mounted?"
            )

    def _check_ends(self, view: SourceView, before: Round) -> None:
        ends = {one.log.log.folder: one.state.next_entry for one in view.logs}
        for name, (number, _) in view.heads.items():
            ends[names.transaction_log(name)] = number + 1
        for folder, known in self._logs_of(before).items():
            if folder.startswith((names.TRANSACTIONS, names.EXPIRED)) and folder not in ends:
                owner = names.transactional_id_of_folder(folder.rpartition("/")[2])
                if owner in view.expired or owner in view.damaged or owner in view.heads:
                    continue  # it has expired, or come back
            if ends.get(folder, -1) < known.next_entry:
                raise self._has_lost(folder, f"lacks entry {known.next_entry - 1}, which")

    def _has_lost(self, folder: str, what: str) -> StorageError:
        return StorageError(
            f"{self._logs.storage.url}/{folder} {what} the standby has: the source has lost data, "
            "or is another copy of it. The standby is left as it is; begin another one in an empty "
            "folder"
        )

    def _check_that_logs_go_on(self, view: SourceView, known: Mapping[str, LogVersion]) -> None:
        """Check that logs which have changed continue from the standby's state.

        Raises StorageError: one does not. SourceMoved: that cannot be known of one, so all is read
        again.
        """
        changed = [
            (one, version)
            for one in view.logs
            if (version := known.get(one.log.log.folder)) is not None
            and one.log.log.folder not in self._read_anew
            and not _version_of(one, version.attempt).shows_same(version)
        ]
        storage = self._logs.storage
        found = storage.gather(partial(self._goes_on, *one) for one in changed)
        unsure = [one for (one, _), goes_on in zip(changed, found, strict=True) if not goes_on]
        if not unsure:
            return
        for one in unsure:
            self._read_anew.add(one.log.log.folder)
            if isinstance(one.log, TopicLog):
                self._data.forget(one.log.name)
        self._logs = self._source.logs = Logs(storage, self._logs.config, self._logs.clock)
        raise SourceMoved(f"{unsure[0].log.log.folder} was cleaned up since the standby followed")

    def _goes_on(self, one: SourceLog, known: LogVersion) -> bool:
        """Whether a log continues where the standby ended; False if that cannot be known.

        A source that was restored, or has elected an unclean leader, may have other entries of the
        same numbers. Raises StorageError: it has.
        """
        shown = find_shown(self._logs.storage)
        if shown is not None and not shown.standing(fresh=False).is_promoted:
            return True  # a standby keeps no older entries, and has looked itself
        folder = one.log.log.folder
        newest = self._newest_files.get(folder)
        if newest is None or newest.attempt != known.attempt:
            newest = self._read_newest_file(folder, known.attempt)
        try:
            found = self._logs.storage.get(f"{folder}/{newest.name}")
        except ObjectNotFound:
            return False  # it was cleaned up
        if blake2b(found).digest() == newest.digest:
            return True
        if one.log.log.chapters.is_closed(newest.number):
            return False  # a stray
        raise self._has_lost(folder, f"has another entry {newest.number} than")

    def _read_newest_file(self, folder: str, attempt: str) -> _NewestFile:
        root = root_names.standby_file(attempt, folder)
        found = map(names.parse_log_file, self._target.list_names(root))
        numbers = [one[0] for one in found if one is not None and one[1] is LogFile.ENTRY]
        if not numbers:
            raise self._overtaken(root)
        number = max(numbers)
        path = f"{root}/{names.log_file(number, LogFile.ENTRY)}"
        try:
            data = self._target.get(path)
        except ObjectNotFound as error:
            raise self._overtaken(path) from error
        return _NewestFile(attempt, number, blake2b(data).digest())

    def _logs_of(self, round_: Round) -> dict[str, LogVersion]:
        """The versions of a round's logs. Raises StorageError: newer rounds have replaced it."""
        try:
            return self._rounds.logs(round_)
        except ObjectNotFound as error:
            raise self._overtaken(root_names.expired_list(round_.expired)) from error

    def _overtaken(self, path: str) -> StorageError:
        return StorageError(
            f"{self._target.url}/{path} is gone: another process follows the same store: run only "
            "one"
        )

    # -- the round -------------------------------------------------------------------------------

    def _put_round(self, view: SourceView, before: Round | None) -> tuple[Round, int]:
        self._delete_failed()
        number = self._standing.number + 1 if self._standing else 0
        attempt = root_names.round_token(number, self._clock.token())
        known = self._logs_of(before) if before else {}
        self._check_that_logs_go_on(view, known)
        logs: dict[str, LogVersion] = {}
        files: dict[str, bytes] = {}
        for one in view.logs:
            folder = one.log.log.folder
            logs[folder] = self._version(one, attempt, known.get(folder), files)
        for name, (at, state) in view.heads.items():
            folder = names.transaction_log(name)
            logs[folder] = _kept(LogVersion(attempt, at + 1), known.get(folder))
            if logs[folder].attempt == attempt:
                files[f"{folder}/{names.log_file(at, LogFile.ENTRY)}"] = envelope.encode(state)
        expired: dict[str, LogVersion] = {}
        for name, at in view.expired.items():
            folder = names.expired_log(name)
            expired[folder] = _kept(LogVersion(attempt, at + 1), known.get(folder))
            if expired[folder].attempt == attempt:
                path = f"{folder}/{names.log_file(at, LogFile.ENTRY)}"
                files[path] = self._get(path)
        listed = before.expired if before else ""
        if expired != (self._rounds.expired(before) if before else {}):
            listed = attempt if expired else ""
            if expired:
                files[root_names.EXPIRED_LIST] = envelope.encode(ExpiredIds.of(expired))
        for name in view.damaged:
            found = read_newest_states(self._logs.storage, name, self._clock)
            files |= found
            logs[names.transaction_log(name)] = LogVersion(attempt, 0)
        self._failed.add(attempt)
        self._confirm([one for one, version in logs.items() if version.attempt == attempt], view)
        self._target.put_round(
            partial(put_same, self._target, root_names.standby_file(attempt, name), data)
            for name, data in files.items()
        )
        round_ = Round(
            number,
            self._clock.token(),
            self._logs.storage.url,
            StoreFile.decode(self._store_file, names.STORE_FILE).store_id,
            view.reached_ms,
            logs,
            tuple(sorted(self._data.lost)),
            listed,
        )
        self._failed.remove(attempt)  # while it is put nobody knows
        if not self._rounds.put(round_):
            self._failed.add(attempt)
            self._standing = self._newest()
            raise StorageError(
                f"round {number} of {self._target.url} was written by another process that follows "
                "the same store: run only one"
            )
        self._standing = StandbyState(number, round_, is_promoted=False)
        self._read_anew = set()
        changed = [*logs.values(), *expired.values()]
        return round_, sum(version.attempt == attempt for version in changed)

    def _delete_failed(self) -> None:
        """Delete the files of failed attempts: a full disk takes no further round before that."""
        for attempt in [*self._failed]:
            with suppress(StorageError):  # the next time does it
                delete_attempt(self._target, attempt)
                self._failed.remove(attempt)

    def _confirm(self, folders: Collection[str], view: SourceView) -> None:
        """Make sure that the newest files of these logs are durable at the source.

        Else, after a power cut, other entries would have their numbers, and the standby would never
        show those. A source on several roots is not asked: it would need as many of them in sync as
        a writer does.

        Raises StorageError.
        """
        if find_replicated(self._logs.storage) is not None:
            return
        ends = {one.log.log.folder: one.state.newest_file for one in view.logs}
        ends |= {names.transaction_log(name): at for name, (at, _) in view.heads.items()}
        storage = self._logs.storage
        paths = (
            f"{folder}/{names.log_file(ends[folder], LogFile.ENTRY)}"
            for folder in folders
            if ends.get(folder, -1) >= 0
        )
        storage.gather([partial(confirm, storage, path) for path in paths])

    def _version(
        self, one: SourceLog, attempt: str, known: LogVersion | None, files: dict[str, bytes]
    ) -> LogVersion:
        """A round's version of a topic's or a group's log; its new files are added to ``files``."""
        state, log, folder = one.state, one.log, one.log.log.folder
        version = _version_of(one, attempt)
        is_sure = known is not None and folder not in self._read_anew
        if isinstance(log, TopicLog) and isinstance(state, TopicState):
            with noticing_deletion(log, state):
                shown = known.next_entry if known else 0
                self._data.copy(log, state, shown if is_sure else 0, shown)
            if _version_of(one, attempt) != version:
                raise SourceMoved(f"{folder} has gone on, as a look for lost data has found")
        if version.shows_same(known):
            assert known is not None
            return known
        if isinstance(log, TopicLog) and isinstance(state, TopicState):
            with noticing_deletion(log, state):
                self._data.drop_released(log, state)
        if one.manifests is not None:
            self._data.copy_manifests(log.name, one.manifests)
            path = f"{names.topic_manifests(log.name)}/{names.manifest_list(one.manifests.number)}"
            files[path] = envelope.encode(one.manifests)
        beside = [(number, LogFile.ENTRY) for number in one.files]
        beside += [(number, LogFile(outcome.value)) for number, outcome in one.markers.items()]
        for kept in beside:
            path = f"{folder}/{names.log_file(*kept)}"
            files[path] = one.data[path] if path in one.data else self._get(path)
        newest = state.newest_file
        data = files[f"{folder}/{names.log_file(newest, LogFile.ENTRY)}"]
        self._newest_files[folder] = _NewestFile(attempt, newest, blake2b(data).digest())
        path = f"{folder}/{names.log_file(state.next_entry - 1, LogFile.CHECKPOINT)}"
        files[path] = envelope.encode(state)
        return version

    def _get(self, path: str) -> bytes:
        try:
            return self._logs.storage.get(path)
        except ObjectNotFound as error:
            self._source.busy.add(path.rpartition("/")[0])
            raise SourceMoved(f"{path} was cleaned up while it was read") from error


def _version_of(one: SourceLog, attempt: str) -> LogVersion:
    return LogVersion(
        attempt,
        one.state.next_entry,
        tuple(sorted(one.state.undecided_entries())),
        one.manifests.number if one.manifests else -1,
    )


def _kept(version: LogVersion, known: LogVersion | None) -> LogVersion:
    """The known version if it shows the same state, else the new one."""
    return known if known is not None and version.shows_same(known) else version
