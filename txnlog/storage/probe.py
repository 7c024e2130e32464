"""The probe: does this filesystem keep the one promise that everything rests on?

Servers exist that take the header of a conditional create and ignore it; on them two writers
would both believe they had won.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from txnlog.errors import PutIfAbsentBroken
from txnlog.storage.base import Storage

_RACERS = 8


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What the probe did, all of it successfully."""

    url: str
    checks: tuple[str, ...]


def probe(storage: Storage) -> ProbeReport:
    """Create one name twice, race eight creates, read and list; then clean up.

    Raises:
        PutIfAbsentBroken: the filesystem cannot carry a store.
        StorageError: it failed altogether.
    """
    folder = f".probe/{secrets.token_hex(16)}"
    twice, raced = f"{folder}/twice", f"{folder}/raced"
    try:
        first, second = storage.put_if_absent(twice, b"first"), storage.put_if_absent(twice, b"2")
        _expect(storage, first and not second, "a name was created twice")
        _expect(storage, storage.get(twice) == b"first", "a second create replaced the first")
        offers = [b"racer %d" % racer for racer in range(_RACERS)]
        won = storage.gather(
            [lambda offer=offer: storage.put_if_absent(raced, offer) for offer in offers]
        )
        _expect(storage, sum(won) == 1, f"{sum(won)} of {_RACERS} racing creates succeeded")
        _expect(storage, storage.get(raced) == offers[won.index(True)], "a loser's bytes were kept")
        _expect(storage, storage.get_range(twice, 1, 3) == b"ir", "a ranged read was wrong")
        _expect(storage, storage.list(folder) == ["raced", "twice"], "a listing was not fresh")
    finally:
        storage.delete([twice, raced])
    return ProbeReport(storage.url, ("create twice", "race", "read", "ranged read", "list"))


def _expect(storage: Storage, holds: bool, otherwise: str) -> None:
    if not holds:
        raise PutIfAbsentBroken(
            f"{storage.url} cannot carry a store: {otherwise}. Its server does not support "
            "conditional creates (If-None-Match: *), or ignores them; use one that does, or "
            "unsafe_single_writer=True if only one process ever writes at a time"
        )
