"""Deletes a standby's files of older rounds, and data that the source has deleted.

The newest rounds stay, so that readers have time. Files are listed first; after that it is checked
that the standby was not promoted. So files of a promoted standby's writers are never listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain

from msgspec.structs import replace

from txnlog import names
from txnlog.admin.live_segments import placed_files
from txnlog.clock import Clock
from txnlog.config import StoreConfig
from txnlog.errors import ObjectNotFound
from txnlog.log.named_folders import list_topics
from txnlog.log.open_logs import Logs
from txnlog.log.topic_log import TopicLog
from txnlog.replication import root_names
from txnlog.replication.standby.rounds import Round, Rounds
from txnlog.replication.standby.source import SourceLog, SourceView, noticing_deletion
from txnlog.replication.standby.standby_storage import StandbyStorage
from txnlog.state.manifest import ManifestList
from txnlog.state.topic import TopicState
from txnlog.storage.base import Storage
from txnlog.storage.registry import StoreFile

KEPT_ROUNDS = 8
"""How many rounds stay for their readers."""


def sweep_rounds(rounds: Rounds, newest: Round) -> None:
    """Delete older rounds, and their files that no newer round names.

    Attempts at rounds whose numbers are taken are deleted, too: they can never become visible.

    Raises StorageError.
    """
    target, end = rounds.storage, newest.number - KEPT_ROUNDS + 1
    old = [number for number in _rounds(target) if number < end]
    if not old or (oldest := rounds.read(end)) is None:
        return
    # A version that any later round shows is one of the oldest kept round, too.
    try:
        kept = rounds.logs(oldest)
    except ObjectNotFound:
        return  # another follower's sweep has come further
    alive = {version.attempt for version in kept.values()} | {oldest.expired}
    doomed: list[str] = []
    for attempt in target.list_folders(root_names.STANDBY_LOGS):
        made_for = root_names.parse_round_token(attempt)
        if made_for is not None and made_for < end and attempt not in alive:
            doomed += _files_of(target, attempt)
    lists: set[str] = set()
    for number in old:
        one = rounds.read(number)
        if one is None:
            continue
        gone = dict(one.logs.items() - oldest.logs.items())
        if one.expired != oldest.expired:
            with suppress(ObjectNotFound):  # an earlier sweep has come that far
                gone |= rounds.expired(one).items() - kept.items()
            lists.add(one.expired)
        for log, version in sorted(gone.items()):
            if version.attempt in alive:
                root = root_names.standby_file(version.attempt, "")
                for folder in version.folders(log):
                    doomed += [name for name, _ in target.list_all(root + folder)]
    # Last what tells what else may go.
    last = [root_names.expired_list(attempt) for attempt in sorted(lists) if attempt]
    target.delete(sorted({*doomed}.difference(last)))
    target.delete(last + [root_names.round_file(number) for number in old])
    rounds.forget(end)


def delete_attempt(target: Storage, attempt: str) -> None:
    """Delete the files of an attempt that can never become visible. Raises StorageError."""
    target.delete(_files_of(target, attempt))


def _files_of(target: Storage, attempt: str) -> list[str]:
    root = root_names.standby_file(attempt, "")
    return [name for name, _ in target.list_all(root.rstrip("/"))]


def _rounds(target: Storage) -> Iterable[int]:
    found = map(names.parse_log_file, target.list_names(root_names.STANDBY))
    return [parsed[0] for parsed in found if parsed is not None]


def sweep_data(
    source: Storage,
    target: Storage,
    store_file: bytes,
    clock: Clock,
    look: Callable[[Round], SourceView],
) -> int:
    """Delete segments and manifests that neither the standby nor the source needs any more.

    A file is deleted if neither the newest round nor the source's logs, read after that, refer to
    it, and the source lacks it. The logs decide, since a disk that is not mounted lacks everything.
    The source keeps released files for ``file.delete.delay.ms``, so readers have had time. The
    newest round is put again before anything is deleted. ``look`` reads the source, and checks that
    it continues from a round.

    Returns how many files were deleted. Raises StorageError, CorruptEntry, SourceMoved.
    """
    listed = {topic: [name for name, _ in _files(target, topic)] for topic in list_topics(target)}
    rounds = Rounds(target, clock)
    standing = rounds.newest()
    if standing is None or standing.is_promoted:
        return 0
    found = StoreFile.decode(store_file, names.STORE_FILE)
    config = StoreConfig.of(found.config)
    logs = Logs(StandbyStorage(target), config, clock)
    candidates = {}
    for topic, files in listed.items():
        if names.topic_log(topic) not in standing.round.logs:
            continue  # it was copied for a later round
        log = logs.topic(topic)
        log.refresh()
        with log.lock:
            state = log.state
            candidates[topic] = _not_led_to(log, state, log.manifests.newest(), files)
    there = {one.log.log.folder: one for one in look(standing.round).logs}
    doomed = []
    for topic, files in candidates.items():
        one = there.get(names.topic_log(topic))
        unneeded = _unneeded_by(one, files) if one is not None else []
        if unneeded:
            there_still = _still_at(source, topic)
            doomed += [name for name in unneeded if name not in there_still]
    if doomed:
        # Another follower that has read the source while it had them loses its round now.
        again = replace(standing.round, number=standing.number + 1, nonce=clock.token())
        if not rounds.put(again):
            return 0  # the next one looks again
    # Indexes first: what can be opened can be read.
    for accelerators in (True, False):
        some = [name for name in doomed if names.is_accelerator(name) is accelerators]
        if some:
            target.delete(some)
    return len(doomed)


def _unneeded_by(one: SourceLog, files: Iterable[str]) -> list[str]:
    assert isinstance(one.log, TopicLog)
    assert isinstance(one.state, TopicState)
    with noticing_deletion(one.log, one.state):
        return _not_led_to(one.log, one.state, one.manifests, files)


def _not_led_to(
    log: TopicLog, state: TopicState, listing: ManifestList | None, files: Iterable[str]
) -> list[str]:
    """Those of a topic's files that neither its log nor its manifest list names."""
    placed = placed_files(log.name, log.manifests.unfold(state, segments_alone=True))
    named = listing.files if listing else set()
    return [name for name in files if not _is_named(name, placed, named)]


def _files(storage: Storage, topic: str) -> Iterable[tuple[str, int]]:
    folder = names.topic_folder(topic)
    return chain(storage.list_all(f"{folder}/data"), storage.list_all(f"{folder}/manifests"))


def _still_at(source: Storage, topic: str) -> set[str]:
    """The topic's files at the source, from one listing: asking for each could take very long."""
    return {name for name, _ in _files(source, topic)}


def _is_named(name: str, placed: set[names.FileKey], manifests: Iterable[str]) -> bool:
    parsed = names.parse_data_file(name)
    if parsed is None:
        return name.rpartition("/")[2] in manifests
    return (parsed[0], parsed[1]) in placed
