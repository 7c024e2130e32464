"""Objects that nobody decides: whoever puts one of a name gives it the same bytes."""

from __future__ import annotations

from txnlog import names
from txnlog.errors import ObjectNotFound, StorageError
from txnlog.storage import envelope
from txnlog.storage.base import Storage


class Diverged(StorageError):
    """A member has other bytes under a name than the leader: it has what was never acknowledged."""


class Damaged(StorageError):
    """A member's object is not as it was written."""


def is_sound(name: str, data: bytes) -> bool | None:
    """Whether an object is as it was written. None: it has no checksum of its own."""
    return envelope.is_sound(data) if names.is_framed(name) else None


def says_the_same(name: str, one: bytes, other: bytes) -> bool:
    """Whether two objects of one name are as good as each other: equal, or sound closing marks.

    A mark's name alone closes; one that was lost is put again, with another time in it.
    """
    if one == other:
        return True
    return names.is_closing_mark(name) and all(is_sound(name, data) for data in (one, other))


def put_same(storage: Storage, name: str, data: bytes) -> bool:
    """Put an object where nobody decides anything; False if it was there, and says the same.

    It is durable when this returns. Raises Diverged: it is there with other bytes. Damaged: it is
    there, and not as it was written.
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
