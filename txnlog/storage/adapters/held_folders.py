"""Folders that are held open, so that another one cannot be taken for one of them.

A path names another folder when somebody has removed it and made it again, and the inode tells
nothing: ext4 gives the old one to the new folder. It cannot while the old one is open. Knows
descriptors, and nothing of what is in folders.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from txnlog.storage.fork_safe_lock import ForkSafeLock

_MOST_HELD = 128
"""In the whole process, which may often have only 1,024 descriptors. Of those let go nothing is
known any more."""


@dataclass(frozen=True, slots=True, eq=False)
class HeldFolder:
    """A folder; it is the same one as another exactly if they are the same object."""

    descriptor: int


_held: dict[tuple[int, int], HeldFolder] = {}
"""By device and inode, the one that was asked for last at the end."""
_LOCK = ForkSafeLock()


def hold_folder(descriptor: int) -> HeldFolder:
    """The folder of a descriptor, which must not be used afterwards."""
    try:
        about = os.fstat(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    key = about.st_dev, about.st_ino
    with _LOCK.mutex:
        found = _held.pop(key, None)
        if found is None:
            found = HeldFolder(descriptor)
        else:
            os.close(descriptor)
        _held[key] = found
        while len(_held) > _MOST_HELD:
            os.close(_held.pop(next(iter(_held))).descriptor)
    return found


def forget_let_go(folders: dict[str, HeldFolder]) -> None:
    """Remove those not held any more, if there are many. Other threads may add some meanwhile."""
    if len(folders) <= 2 * _MOST_HELD:
        return
    with _LOCK.mutex:
        held = {*_held.values()}
    for name, folder in folders.copy().items():  # a copy is made in one step
        if folder not in held:
            folders.pop(name, None)
