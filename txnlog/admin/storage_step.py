"""What maintenance does for a storage itself; parts of txnlog have steps of their own."""

from __future__ import annotations

from typing import ClassVar


class StorageStep:
    """Something that was done for the storage, such as for its roots: the base of such results."""

    __slots__ = ()

    done: ClassVar[str]
    """What it is, in a word or two."""
    why: ClassVar[str]
