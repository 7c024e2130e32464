"""The probe: does this filesystem keep the one promise that everything rests on?

Some servers ignore the header of a conditional create, and others check first and write later: in a
race several writers believe they have won. The second kind is caught only if requests overlap, and
not each time; so there are many races, and a miss in all of them is rare.
"""

from __future__ import annotations

import logging
import secrets
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain

from txnlog.errors import ObjectNotFound, PutIfAbsentBroken, StorageError
from txnlog.storage.base import PARALLEL_REQUESTS, Storage

FOLDER = ".probe"
"""The folder of the probe's objects, below the root."""
CREATION_ROUNDS = 24
"""Rounds when a store is created. A server that lets a second writer win in only three races of ten
passes them once in 5,000 times.
"""
FIRST_WRITE_ROUNDS = 6
"""Rounds before a process's first write to a server, with a store that others made."""

_WIDTHS = (4, 16)
"""How many race for one name, by turns; so four races run at a time, or one. With a busy server or
client, narrow races catch more: of 16 requests for a name the last ones come long after the first
were answered.
"""
_LOOK_EVERY = 8
"""Of 16 racers for a name, one in this many reads and lists when it is refused."""
_LARGE_EVERY = 4
_LARGE_BYTES = 64 << 10
"""Every fourth round is about a larger object, which takes a server several steps to write."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The counts of a successful probe."""

    url: str
    checks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _RaceResult:
    """One racer's result, and what it saw right after it was refused, if it looked."""

    won: bool
    offer: bytes
    looked: bool = False
    found: bytes | None = None
    listed: bool = False
    error: StorageError | None = None


def probe(storage: Storage, rounds: int = CREATION_ROUNDS) -> ProbeReport:
    """Create one name twice, race for new names, read, list, delete; and leave nothing behind.

    In each of the rounds 16 creates race at the same moment.

    Raises PutIfAbsentBroken: the filesystem cannot carry a store. StorageError: it failed in some
    other way.
    """
    folder, files = _new_folder(rounds)
    try:
        _check(storage, folder, rounds)
    except BaseException:
        # The first error matters, not that cleaning up failed as well.
        _clean_up(storage, files)
        raise
    storage.delete(files)
    _expect(storage, storage.list_names(folder) == [], _LISTING)
    storage.trust(probed=True)
    return ProbeReport(
        storage.url, ("create twice", "race", "read", "ranged read", "list", "delete")
    )


def try_put(storage: Storage, token: str, size_bytes: int) -> None:
    """Put so many bytes and delete them again: a full or a read-only disk takes none.

    Raises StorageError.
    """
    name = f"{FOLDER}/{token}"
    storage.put(name, bytes(size_bytes))
    with suppress(StorageError):
        storage.delete([name])


def check_before_first_write(storage: Storage) -> None:
    """The shorter probe, for a store that this process has not made itself.

    Without permission to delete, a few small objects are left behind. Raises as :func:`probe`.
    """
    folder, files = _new_folder(FIRST_WRITE_ROUNDS)
    try:
        _check(storage, folder, FIRST_WRITE_ROUNDS)
    finally:
        _clean_up(storage, files)


def _new_folder(rounds: int) -> tuple[str, list[str]]:
    folder = f"{FOLDER}/{secrets.token_hex(16)}"
    return folder, [f"{folder}/twice", *(f"{folder}/{name}" for name in _race_names(rounds))]


def _clean_up(storage: Storage, files: list[str]) -> None:
    try:
        storage.delete(files)
    except StorageError as error:
        _logger.warning("objects of the probe were left behind: %s", error)


_CONDITION = (
    "It does not support conditional creates (on S3: If-None-Match: *), or ignores them, or looks "
    "first and writes later; use one that does, or unsafe_single_writer=True on another filesystem "
    "if only one process ever writes"
)
_SEEN = (
    "Whoever is refused must find the winner's whole object, at once: use a server that shows "
    "objects whole or not at all, with strong consistency, and no cache in front of it"
)
_RANGE = "a ranged read returned other bytes than asked for. Use a server that honours ranges"
_LISTING = (
    "a listing did not show what was put, or showed what was deleted. Listings must be fresh: "
    "use a storage with strong consistency, and no cache in front of it"
)


def _check(storage: Storage, folder: str, rounds: int) -> None:
    twice = f"{folder}/twice"
    _check_create_twice(storage, twice)
    # Durability is not probed here, and takes time on local disks.
    raced = _check_races(storage.without_fsync(), folder, rounds)
    _expect(storage, storage.get_range(twice, 1, 3) == b"ir", _RANGE)
    listed = [*_race_names(raced), "twice"]
    _expect(storage, storage.list_names(folder) == listed, _LISTING)


def _check_create_twice(storage: Storage, name: str) -> None:
    first, second = storage.put_if_absent(name, b"first"), storage.put_if_absent(name, b"second")
    _expect(storage, not second, f"the same name was created twice. {_CONDITION}")
    kept = _get(storage, name)
    # The response to the first may have been lost: repeated by the client, it was then refused.
    _expect(storage, first or kept is not None, f"creating a new name was refused. {_CONDITION}")
    _expect(storage, kept == b"first", f"a refused create replaced the object. {_CONDITION}")


def _check_races(storage: Storage, folder: str, rounds: int) -> int:
    """Race, and judge every racer's results; returns how many rounds there were."""
    raced_rounds = storage.race(partial(_race, storage, folder), rounds)
    races = {
        _race_name(number, first): raced[first : first + _width(number)]
        for number, raced in enumerate(raced_rounds)
        for first in range(0, len(raced), _width(number))
    }
    # Winners come first: with two, a mixture of both may not even be readable.
    for race in races.values():
        wins = sum(raced.won for raced in race)
        _expect(storage, wins <= 1, f"{wins} of {len(race)} racing creates succeeded. {_CONDITION}")
    for raced in chain.from_iterable(races.values()):
        if raced.error is not None:
            raise raced.error
    kept = storage.gather([partial(_get, storage, f"{folder}/{name}") for name in races])
    for race, data in zip(races.values(), kept, strict=True):
        # If nobody won, a response was lost: then the object is anybody's, but whole.
        offers = [raced.offer for raced in race if raced.won] or [raced.offer for raced in race]
        _expect(storage, data in offers, f"a race left other bytes than its winner's. {_CONDITION}")
        looks = [raced for raced in race if raced.looked]
        found = all(raced.found == data for raced in looks)
        _expect(storage, found, f"a refused create read something else. {_SEEN}")
        listed = all(raced.listed for raced in looks)
        _expect(storage, listed, f"a refused create did not list the object. {_SEEN}")
    return len(raced_rounds)


def _race(storage: Storage, folder: str, number: int, racer: int) -> _RaceResult:
    name, offer = _race_name(number, racer), _offer(number, racer)
    if storage.put_if_absent(f"{folder}/{name}", offer):
        return _RaceResult(True, offer)
    if not _looks(number, racer):
        return _RaceResult(False, offer)
    try:
        found = _get(storage, f"{folder}/{name}")
        listed = name in storage.list_names(folder)
    except StorageError as error:
        return _RaceResult(False, offer, error=error)
    return _RaceResult(False, offer, looked=True, found=found, listed=listed)


def _width(number: int) -> int:
    return _WIDTHS[number % len(_WIDTHS)]


def _looks(number: int, racer: int) -> bool:
    """Whether a racer looks. At least two racers for one name do, so one of them is refused."""
    width = _width(number)
    if width == PARALLEL_REQUESTS:
        return (racer + number) % _LOOK_EVERY == 0
    race, place = divmod(racer, width)
    return place < 2 and race == number // len(_WIDTHS) % (PARALLEL_REQUESTS // width)


def _race_names(rounds: int) -> list[str]:
    """All races of the rounds, in order."""
    return [
        _race_name(number, first)
        for number in range(rounds)
        for first in range(0, PARALLEL_REQUESTS, _width(number))
    ]


def _race_name(number: int, racer: int) -> str:
    return f"race-{number:02d}-{racer // _width(number)}"


def _offer(number: int, racer: int) -> bytes:
    """A racer's object: its own bytes throughout, so that a mixture is noticed."""
    line = b"race %02d, racer %02d of %d\n" % (number, racer, PARALLEL_REQUESTS)
    large = number % _LARGE_EVERY == _LARGE_EVERY - 1
    return line * (_LARGE_BYTES // len(line)) if large else line


def _get(storage: Storage, name: str) -> bytes | None:
    try:
        return storage.get(name)
    except ObjectNotFound:
        return None


def _expect(storage: Storage, holds: bool, otherwise: str) -> None:
    if not holds:
        raise PutIfAbsentBroken(f"{storage.url} cannot carry a store: {otherwise}")
