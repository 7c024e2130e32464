"""The rounds of a standby: each is one consistent state of its source, and one put decides it.

A round names, for each log, the attempt that has put its files valid from then on. So an attempt's
files become visible with its round, all at once, or never. The last round of all says that the
standby was promoted: no follower can put another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

from txnlog import names
from txnlog.clock import Clock
from txnlog.errors import CorruptEntry, ObjectNotFound
from txnlog.limits import AnyNumber, Counter, CounterOrNone, LongName, Name, Text, TimeMs
from txnlog.log.create_once import create_once
from txnlog.replication import root_names
from txnlog.state import envelope
from txnlog.storage.base import Storage

_ATTEMPTS = 20


class LogVersion(msgspec.Struct, frozen=True, array_like=True):
    """A log in a round: the attempt that has put its files, and what distinguishes it from others.

    ``undecided`` are its undecided entries, ``manifest_list`` the number of its list; -1 for none.
    """

    attempt: Name
    next_entry: Counter
    undecided: Annotated[tuple[Counter, ...], AnyNumber] = ()
    manifest_list: CounterOrNone = -1

    def shows_same(self, other: LogVersion | None) -> bool:
        """Whether another version says the same about the log, whichever attempt put it."""
        return other is not None and msgspec.structs.replace(other, attempt=self.attempt) == self


class Round(msgspec.Struct, frozen=True, tag_field="kind", tag="round"):
    """A round: everything that the source had acknowledged at a time.

    ``reached_ms`` is that time, by the follower's clock. ``lost`` are data files that the source
    itself should have, but lacks.
    """

    number: Counter
    nonce: Name
    source: Text
    store_id: Name
    reached_ms: TimeMs
    logs: Annotated[dict[LongName, LogVersion], AnyNumber]
    lost: Annotated[tuple[LongName, ...], AnyNumber] = ()


class Promoted(msgspec.Struct, frozen=True, tag_field="kind", tag="promoted"):
    """The standby is a store of its own from here on: it continues from round ``last``."""

    number: Counter
    nonce: Name
    at_ms: TimeMs
    last: Round


_DECODER = msgspec.json.Decoder(Round | Promoted)


@dataclass(frozen=True, slots=True)
class StandbyState:
    """The newest round of a standby, and whether it was promoted since."""

    number: int
    round: Round
    is_promoted: bool


class Rounds:
    """The log of a standby's rounds."""

    def __init__(self, storage: Storage, clock: Clock | None = None) -> None:
        self.storage = storage
        self._clock = clock

    def newest(self, known: StandbyState | None = None) -> StandbyState | None:
        """The newest round; None if there is none yet.

        Args:
            known: one that exists, or did: older ones are not listed, and it is not read again.

        Raises:
            CorruptEntry, UnsupportedVersion: it is damaged, or of a newer txnlog.
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
        """One round; None if it was deleted."""
        path = root_names.round_file(number)
        try:
            read = envelope.decode(self.storage.get(path), _DECODER, path)
        except ObjectNotFound:
            return None
        return read if isinstance(read, Round) else read.last

    def put(self, entry: Round | Promoted) -> bool:
        """Put the next one; False if another process was first. Raises StorageError: unknown."""
        assert self._clock is not None
        path = root_names.round_file(entry.number)
        return create_once(self.storage, path, envelope.encode(entry), self._clock)
