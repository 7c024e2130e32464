"""The probe: does this filesystem keep the one promise that everything rests on?

Servers exist that take the header of a conditional create and ignore it; on them two writers
would both believe they had won. Knows the storage's interface and no adapter.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from txnlog.errors import PutIfAbsentBroken, StorageError
from txnlog.storage.base import Storage

_RACERS = 8


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What the probe did, all of it successfully."""

    url: str
    checks: tuple[str, ...]


def probe(storage: Storage) -> ProbeReport:
    """Create one name twice, race eight creates, read, list, delete; and leave nothing behind.

    Raises:
        PutIfAbsentBroken: the filesystem cannot carry a store.
        StorageError: it failed altogether.
    """
    folder = f".probe/{secrets.token_hex(16)}"
    twice, raced = f"{folder}/twice", f"{folder}/raced"
    try:
        _check_create_twice(storage, twice)
        _check_race(storage, raced)
        _expect(storage, storage.get_range(twice, 1, 3) == b"ir", _RANGE)
        _expect(storage, storage.list_names(folder) == ["raced", "twice"], _LISTING)
    except BaseException:
        # What went wrong is the news, not that cleaning up failed as well.
        with suppress(StorageError):
            storage.delete([twice, raced])
        raise
    storage.delete([twice, raced])
    _expect(storage, storage.list_names(folder) == [], _LISTING)
    return ProbeReport(
        storage.url, ("create twice", "race", "read", "ranged read", "list", "delete")
    )


_CONDITION = (
    "It does not support conditional creates (on S3: If-None-Match: *), or ignores them; use one "
    "that does, or unsafe_single_writer=True on another filesystem if only one process ever writes"
)
_RANGE = "a ranged read returned other bytes than asked for. Use a server that honours ranges"
_LISTING = (
    "a listing did not show what was put, or showed what was deleted. Listings must be fresh: "
    "use a storage with strong consistency, and no cache in front of it"
)


def _check_create_twice(storage: Storage, name: str) -> None:
    first, second = storage.put_if_absent(name, b"first"), storage.put_if_absent(name, b"second")
    _expect(storage, first, f"creating a new name was refused. {_CONDITION}")
    _expect(storage, not second, f"the same name was created twice. {_CONDITION}")
    kept = storage.get(name) == b"first"
    _expect(storage, kept, f"a refused create replaced the object. {_CONDITION}")


def _check_race(storage: Storage, name: str) -> None:
    offers = [b"racer %d" % racer for racer in range(_RACERS)]
    won = storage.gather([partial(storage.put_if_absent, name, offer) for offer in offers])
    _expect(
        storage, sum(won) == 1, f"{sum(won)} of {_RACERS} racing creates succeeded. {_CONDITION}"
    )
    kept = storage.get(name) == offers[won.index(True)]
    _expect(storage, kept, f"a race was won by one and kept the bytes of another. {_CONDITION}")


def _expect(storage: Storage, holds: bool, otherwise: str) -> None:
    if not holds:
        raise PutIfAbsentBroken(f"{storage.url} cannot carry a store: {otherwise}")
