"""Handles objects that nobody need decide, because all processes put the same bytes."""

from __future__ import annotations

from txnlog import names
from txnlog.errors import ObjectNotFound, StorageError
from txnlog.storage import envelope
from txnlog.storage.base import Storage


class Diverged(StorageError):
    """A member has other bytes under a name than the leader: they were never acknowledged."""


class Damaged(StorageError):
    """A member's object is damaged: its checksum does not match."""


def is_sound(name: str, data: bytes) -> bool | None:
    """Whether an object is undamaged, by its checksum; None if it has none of its own."""
    return envelope.is_sound(data) if names.is_framed(name) else None


def says_the_same(name: str, one: bytes, other: bytes) -> bool:
    """Whether two objects of one name are equivalent: equal bytes, or undamaged closing marks.

    A closing mark closes by its name alone; one that was lost is put again with another time in it.
    """
    if one == other:
        return True
    return names.is_closing_mark(name) and all(is_sound(name, data) for data in (one, other))


def put_same(storage: Storage, name: str, data: bytes) -> bool:
    """Put an object whose bytes nobody decides; False if an equivalent one was there.

    It is durable when this returns. Raises Diverged: other bytes are there. Damaged: a damaged
    object is there. StorageError.
    """
    if storage.put_if_absent(name, data):
        return True
    try:
        found = storage.get(name)
    except ObjectNotFound as error:
        raise StorageError(f"{storage.url}/{name} was taken, and is gone") from error
    if not says_the_same(name, found, data):
        if is_sound(name, found) is False:
            raise Damaged(f"{storage.url}/{name} is damaged")
        raise Diverged(f"{storage.url}/{name} is not what the leader has")
    storage.confirm(name)
    return False
