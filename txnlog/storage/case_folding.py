"""Names that a disk treats as one, because they differ only in upper and lower case.

On such a disk `Orders` and `orders` share a folder: under the second name the log of the first one
would be read and written, and decisions that name one would not be found under the other. All
names of folders are ASCII, see ``names``, so there is nothing else that a disk could fold. What a
server's disk does is found out by the store's own file.
"""

from __future__ import annotations

from functools import partial

from txnlog import names
from txnlog.errors import ObjectNotFound, TxnlogError
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


def check_case(storage: Storage, folder: str, what: str, error: type[TxnlogError]) -> None:
    """Raise ``error`` for the name of a log whose folder the disk treats as another's.

    Costs nothing if the disk distinguishes them. Two processes that create both at the same moment
    are not noticed. ``folder``: the log's, such as ``topics/orders``. ``what``: what users call it.
    """
    if not storage.folds_case():
        return
    above, _, name = folder.rpartition("/")
    for other in storage.list_folders(above):
        if other != name and other.casefold() == name.casefold():
            raise error(
                f"{what} cannot be used in {storage.url}: the disk does not tell upper from lower "
                f"case, and {above}/{other} is there. Use that spelling, or another name, or move "
                "the store to a disk that tells them apart"
            )
