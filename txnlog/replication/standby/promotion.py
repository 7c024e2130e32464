"""Makes a standby a store of its own, which continues from the last round.

1. The next round says that the standby was promoted. No follower, however late, puts another one.
2. The files of the last round are put where every store has them. Nobody reads them there yet.
3. The file that makes a folder a store is put. From then on the standby is a store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from txnlog import names
from txnlog.clock import Clock
from txnlog.errors import InvalidOption, NotAStore, ObjectNotFound, TxnlogError
from txnlog.log.named_folders import list_topics
from txnlog.log.open_logs import Logs
from txnlog.names import TopicPartition
from txnlog.replication import root_names
from txnlog.replication.roots.find_replicas import find_replicas
from txnlog.replication.roots.same_bytes import put_same
from txnlog.replication.standby.rounds import LogVersion, Promoted, Round, Rounds
from txnlog.storage import open_storage
from txnlog.storage.base import Storage
from txnlog.storage.create_once import create_once
from txnlog.storage.reach import Reach

_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class Promotion:
    """What a standby has that is a store of its own now, or would be.

    ``round`` is the round that it continues from, ``reached_ms`` the time of that, in Unix
    milliseconds. ``missing`` says by partition how many offsets the source had assigned beyond
    those here; None if the source could not be asked, for the reason ``why_unknown``.
    ``unfinished`` are the transactional ids whose transactions were open in that round: they are
    aborted after their timeout.
    """

    url: str
    source: str
    round: int
    reached_ms: int
    missing: Mapping[TopicPartition, int] | None
    why_unknown: str
    unfinished: tuple[str, ...]


def promote(target: Storage, clock: Clock) -> Round:
    """Make a standby a store; returns the round that it continues from. May be repeated.

    Raises InvalidOption: this is no standby, or it has no round yet. StorageError: the promotion
    may be half done, so call it again.
    """
    rounds = Rounds(target, clock)
    for _ in range(_ATTEMPTS):
        standing = rounds.newest()
        if standing is None:
            raise InvalidOption(
                f"{target.url} is not a standby, or has not finished its first round yet"
            )
        last = standing.round
        if standing.is_promoted or rounds.put(
            Promoted(standing.number + 1, clock.token(), clock.now_ms(), last)
        ):
            break
    else:
        raise InvalidOption(
            f"{target.url} is still being followed: stop that process, then promote"
        )
    files = _files(target, rounds.logs(last))
    target.put_round(partial(_move, target, at, name) for at, name in files)
    # Last: it is a store from here on.
    data = target.get(root_names.STANDBY_STORE_FILE)
    create_once(target, names.STORE_FILE, data, clock)
    return last


def _files(target: Storage, logs: Mapping[str, LogVersion]) -> Iterator[tuple[str, str]]:
    """The current and the new name of each file of the logs."""
    for log, version in logs.items():
        root = root_names.standby_file(version.attempt, "")
        for folder in version.folders(log):
            for at, _ in target.list_all(root + folder):
                yield at, at.removeprefix(root)


def _move(target: Storage, at: str, name: str) -> None:
    put_same(target, name, target.get(at))


def open_source(url: str, here: str, options: Mapping[str, object] | None, clock: Clock) -> Storage:
    """Open a standby's source, which may have several roots.

    ``url`` is the source's, as the standby names it; ``here`` is the standby's, as the user gave
    it.

    Raises TxnlogError: the source cannot be opened, or is at a place that the user has not named.
    """
    reach = Reach(options, [here])
    storage = open_storage(url, reach.options_for(url))
    try:
        storage.size(names.STORE_FILE)
    except ObjectNotFound:
        replicated = find_replicas(url, reach.named, clock)
        if replicated is None:
            raise
        return replicated
    return storage


def find_missing(source: Logs, here: Logs) -> dict[TopicPartition, int]:
    """By partition, how many offsets a source has assigned beyond those here.

    Raises TxnlogError: the source cannot be read, or is another store by now.
    """
    url = source.storage.url
    if source.storage.get(names.STORE_FILE) != here.storage.get(names.STORE_FILE):
        raise NotAStore(f"{url} is not the store that this was a standby of")
    missing = {}
    for topic in list_topics(source.storage):
        log, own = source.topic(topic), here.topic(topic)
        log.refresh()
        own.refresh()
        with log.lock, own.lock:
            state, copy = log.state, own.state
            same = state.topic_id == copy.topic_id
            for number, partition in enumerate(state.partitions):
                known = number < len(copy.partitions) and same
                end = copy.partitions[number].end_offset if known else partition.log_start_offset
                if partition.end_offset > end:
                    missing[TopicPartition(topic, number)] = partition.end_offset - end
    return missing


def unfinished_ids(here: Logs) -> tuple[str, ...]:
    """The transactional ids with an open or ending transaction, or a state that cannot be read."""
    found = []
    for name in here.transactions.ids():
        try:
            head = here.transactions.head(name)
        except TxnlogError:
            found.append(name)
            continue
        if head is not None and (head.state.open or head.state.prepared):
            found.append(name)
    return tuple(found)
