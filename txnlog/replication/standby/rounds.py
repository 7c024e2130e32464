"""The rounds of a standby: each is one consistent state of its source, decided by one put.

"Standbys" in docs/REPLICATION.md says what a round names. Expired ids are many, and hardly ever
change. So they are in a list of their own, which several rounds share, and which is read only when
one of them is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import msgspec

from txnlog import names
from txnlog.clock import Clock
from txnlog.errors import CorruptEntry, ObjectNotFound
from txnlog.limits import (
    MOST_STATE_BYTES,
    AnyNumber,
    Counter,
    CounterOrNone,
    LongName,
    Name,
    Text,
    TimeMs,
)
from txnlog.replication import root_names
from txnlog.storage import envelope
from txnlog.storage.base import Storage
from txnlog.storage.create_once import create_once

_ATTEMPTS = 20


class LogVersion(msgspec.Struct, frozen=True, array_like=True):
    """A log in a round: the attempt that has put its files, and what differs between versions.

    ``next_entry`` is the number after the log's last entry. ``undecided`` are its undecided
    entries, ``manifest_list`` is the number of its list; -1 if it has none.
    """

    attempt: Name
    next_entry: Counter
    undecided: Annotated[tuple[Counter, ...], AnyNumber] = ()
    manifest_list: CounterOrNone = -1

    def shows_same(self, other: LogVersion | None) -> bool:
        """Whether another version shows the log in the same state, whichever attempt put it."""
        return other is not None and msgspec.structs.replace(other, attempt=self.attempt) == self

    def folders(self, log: str) -> list[str]:
        """The folders of this version's files, below the folder of its attempt."""
        if self.manifest_list < 0:
            return [log]
        return [log, f"{log.rpartition('/')[0]}/manifests"]


class Round(msgspec.Struct, frozen=True, tag_field="kind", tag="round"):
    """A round: everything that the source had acknowledged at a time.

    ``reached_ms`` is that time, in Unix milliseconds of the follower's clock. ``logs`` has all logs
    except those of expired ids. ``expired`` is the attempt that has put the list of these; "" if
    there are none. ``lost`` names data files that the source should have, but lacks.
    """

    number: Counter
    nonce: Name
    source: Text
    store_id: Name
    reached_ms: TimeMs
    logs: Annotated[dict[LongName, LogVersion], AnyNumber]
    lost: Annotated[tuple[LongName, ...], AnyNumber] = ()
    expired: Name = ""


class ExpiredIds(msgspec.Struct, frozen=True, tag_field="kind", tag="expired"):
    """The next entries of expired ids' logs: by the attempt that put a log's file, then by log."""

    most_bytes: ClassVar[int] = MOST_STATE_BYTES

    attempts: Annotated[dict[Name, Annotated[dict[LongName, Counter], AnyNumber]], AnyNumber]

    @classmethod
    def of(cls, versions: Mapping[str, LogVersion]) -> ExpiredIds:
        """Make the list of these versions of logs."""
        attempts: dict[str, dict[str, int]] = {}
        for log, version in versions.items():
            attempts.setdefault(version.attempt, {})[log] = version.next_entry
        return cls(attempts)

    def versions(self) -> dict[str, LogVersion]:
        """The version of each log."""
        return {
            log: LogVersion(attempt, next_entry)
            for attempt, logs in self.attempts.items()
            for log, next_entry in logs.items()
        }


class Promoted(msgspec.Struct, frozen=True, tag_field="kind", tag="promoted"):
    """The standby was promoted: it is a store of its own, which continues from round ``last``."""

    number: Counter
    nonce: Name
    at_ms: TimeMs
    last: Round


_DECODER = msgspec.json.Decoder(Round | Promoted)
_EXPIRED_DECODER = msgspec.json.Decoder(ExpiredIds)


@dataclass(frozen=True, slots=True)
class StandbyState:
    """The newest round of a standby, and whether the standby was promoted since.

    ``number`` is that of the promotion then, else of the round.
    """

    number: int
    round: Round
    is_promoted: bool


class Rounds:
    """The log of a standby's rounds."""

    def __init__(self, storage: Storage, clock: Clock | None = None) -> None:
        self.storage = storage
        self._clock = clock
        self._read: dict[int, Round] = {}
        self._expired: tuple[str, Mapping[str, LogVersion]] = "", {}

    def newest(self, known: StandbyState | None = None) -> StandbyState | None:
        """Read the newest round; None if there is none yet.

        If one is ``known``, older ones are not listed, and it is not read again.

        Raises CorruptEntry, UnsupportedVersion, StorageError.
        """
        after = names.log_file_prefix(known.number) if known else ""
        for _ in range(_ATTEMPTS):
            found = self.storage.list_names(root_names.STANDBY, after)
            numbers = [p[0] for name in found if (p := names.parse_log_file(name)) is not None]
            if not numbers or (known is not None and max(numbers) <= known.number):
                return known
            path = root_names.round_file(max(numbers))
            try:
                read = envelope.decode(self.storage.get(path), _DECODER, path)
            except ObjectNotFound:
                continue  # there are newer ones since
            if isinstance(read, Promoted):
                return StandbyState(read.number, read.last, is_promoted=True)
            return StandbyState(read.number, read, is_promoted=False)
        raise CorruptEntry(
            f"{self.storage.url}/{root_names.STANDBY} shows rounds that cannot be read"
        )

    def read(self, number: int) -> Round | None:
        """Read one round; None if it was deleted."""
        path = root_names.round_file(number)
        if number not in self._read:
            try:
                read = envelope.decode(self.storage.get(path), _DECODER, path)
            except ObjectNotFound:
                return None
            self._read[number] = read if isinstance(read, Round) else read.last
        return self._read[number]

    def forget(self, end: int) -> None:
        """Drop rounds before ``end`` from memory."""
        self._read = {number: read for number, read in self._read.items() if number >= end}

    def expired(self, round_: Round) -> Mapping[str, LogVersion]:
        """The versions of expired ids' logs in a round. The last list read is kept in memory.

        Raises ObjectNotFound: the list is gone, since there are newer rounds. CorruptEntry,
        UnsupportedVersion.
        """
        attempt = round_.expired
        if not attempt:
            return {}
        if attempt != self._expired[0]:
            path = root_names.expired_list(attempt)
            found = envelope.decode(self.storage.get(path), _EXPIRED_DECODER, path)
            self._expired = attempt, found.versions()
        return self._expired[1]

    def logs(self, round_: Round) -> dict[str, LogVersion]:
        """The versions of all logs in a round. Raises what :meth:`expired` does."""
        return {**round_.logs, **self.expired(round_)}

    def put(self, entry: Round | Promoted) -> bool:
        """Put the next round; False if another process was first.

        Raises StorageError: it is unknown whether the round was put.
        """
        assert self._clock is not None
        path = root_names.round_file(entry.number)
        is_ours = create_once(self.storage, path, envelope.encode(entry), self._clock)
        if is_ours and isinstance(entry, Round):
            self._read[entry.number] = entry
        return is_ours
