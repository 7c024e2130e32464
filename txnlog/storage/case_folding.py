"""Whether a server's disk tells upper from lower case, found out by the store's own file."""

from __future__ import annotations

from functools import partial

from txnlog import names
from txnlog.errors import ObjectNotFound
from txnlog.storage.base import Storage


class CaseFolding:
    """What is known of one storage. Two requests at the same time, when it is first asked for."""

    def __init__(self) -> None:
        self._folds: bool | None = None

    def of(self, storage: Storage) -> bool:
        """Whether the file is found under its name in the other case too. Raises StorageError."""
        if self._folds is None:
            both = (names.STORE_FILE.swapcase(), names.STORE_FILE)
            swapped, own = storage.gather(partial(_is_there, storage, name) for name in both)
            if own:  # else there is no store yet, and nothing is known
                self._folds = swapped
        return self._folds or False


def _is_there(storage: Storage, name: str) -> bool:
    try:
        storage.size(name)
    except ObjectNotFound:
        return False
    return True
