"""Names that a disk treats as one, because they differ only in upper and lower case.

On such a disk `Orders` and `orders` share a folder: under the second name the log of the first one
would be read and written, and decisions that name one would not be found under the other. All
names of folders are ASCII, see ``names``, so there is nothing else that a disk could fold.
"""

from __future__ import annotations

from txnlog.errors import TxnlogError
from txnlog.storage.base import Storage


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
