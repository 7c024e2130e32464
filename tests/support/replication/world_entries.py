"""The entries of simulated logs on roots: each names data, and has a checksum of its own."""

from __future__ import annotations

import random
from collections.abc import Iterable

import msgspec

from txnlog import names
from txnlog.replication.roots.epochs import Member
from txnlog.storage import envelope
from txnlog.testing import HeapStorage


class Entry(msgspec.Struct):
    """A name of data, and who has written it."""

    path: str
    writer: str


_DECODER = msgspec.json.Decoder(Entry)


def entry_of(path: str, writer: str) -> bytes:
    return envelope.encode(Entry(path, writer))


def named_in(entry: bytes) -> str:
    return envelope.decode(entry, _DECODER, "entry").path


def entry_name(number: int) -> str:
    return names.log_file(number, names.LogFile.ENTRY)


def entry_number(name: str) -> int:
    """The number of an entry, by its name or path."""
    return int(name.rpartition("/")[2].removesuffix(".json"))


class Rot:
    """Bits that change on the disks of some roots, which are fewer than half of them."""

    def __init__(self, roots: str, chance: random.Random) -> None:
        self.roots = chance.sample(roots, (len(roots) - 1) // 2)
        self.damaged: set[tuple[Member, str]] = set()
        self.lost: set[tuple[Member, str]] = set()
        self.decayed: set[str] = set()
        """Data that is damaged somewhere, at any root."""
        self._chance = chance

    def flip(self, member: Member, heap: HeapStorage) -> None:
        """Change any bit of any entry or state there."""
        found = [name for name, _ in heap.list_all("") if names.is_framed(name)]
        found = [name for name in found if not name.startswith(".replica")]
        if found:
            self.damaged.add((member, self._flip_one(heap, found)))

    def flip_data(self, heap: HeapStorage) -> None:
        """Change any bit of any data there."""
        found = [name for name, _ in heap.list_all("") if names.is_unique(name)]
        if found:
            self._flip_one(heap, found)

    def decay(self, name: str, heaps: Iterable[HeapStorage]) -> None:
        """Change any bit of these copies of data."""
        for heap in heaps:
            self._flip_one(heap, [name])
        self.decayed.add(name)

    def _flip_one(self, heap: HeapStorage, among: list[str]) -> str:
        name = self._chance.choice(among)
        data = bytearray(heap.get(name))
        data[self._chance.randrange(len(data))] ^= 1 << self._chance.randrange(8)
        heap.replace(name, bytes(data))
        return name

    def lose(self, member: Member, heap: HeapStorage) -> None:
        """Take away a log's newest entry, or an id's newest state; at times all its states."""
        folder = self._chance.choice(["topics/t/log", "transactions/t"])
        found = heap.list_names(folder)
        takes_all = folder.startswith("transactions/") and self._chance.random() < 0.2
        lost = found if takes_all else found[-1:]
        if len(found) > 1:
            heap.delete([f"{folder}/{name}" for name in lost])
            self.lost.update((member, f"{folder}/{name}") for name in lost)
