"""The log of epochs at the controller: reads the newest epoch, puts the next one, follows moves.

An epoch may name another place for later ones. A process that finds such an epoch goes on at that
place. If the place lacks the epoch the process first puts it there, since the one that moved the
controller may have been killed. So the old place never has the last word again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias

from txnlog.errors import CorruptEntry, NotAStore, ObjectNotFound, StorageError, TxnlogError
from txnlog.replication import root_names
from txnlog.replication.roots.epochs import DECODER, Epoch, check_epoch, is_over
from txnlog.storage import envelope
from txnlog.storage.base import Storage

OpenPlace: TypeAlias = Callable[[str], Storage]
FindNoted: TypeAlias = Callable[[Epoch | None, int], Iterable[Epoch]]
"""Finds notes of an epoch: those that the members of a given epoch have of a number.

If no epoch is given: the newest epoch that all roots keep, if it has that number.
"""

_logger = logging.getLogger(__name__)

_MOST_MOVES: Final = 100
"""The most moves that are followed; each place has a later epoch than the one before."""


def list_epochs(storage: Storage, first: int = 0) -> list[int]:
    """The numbers of the epochs at a place, from ``first`` on; ascending."""
    return list_numbers(storage, root_names.EPOCHS, first)


def list_numbers(storage: Storage, folder: str, first: int = 0) -> list[int]:
    """The numbers in a folder whose files are named as epochs are, from ``first`` on; ascending."""
    after = root_names.epoch_file(first - 1) if first > 0 else ""
    listed = storage.list_names(folder, after.rpartition("/")[2])
    parsed = map(root_names.parse_epoch_file, listed)
    return [number for number in parsed if number is not None]


class Controller:
    """The place of a store's epochs. Any storage will do; it need not be large.

    ``open_place`` opens the place to which the controller has moved, by its URL. Without it a move
    is an error.
    """

    def __init__(self, storage: Storage, open_place: OpenPlace | None = None) -> None:
        self.storage = storage
        """The place where the newest epoch was found."""
        self._open_place = open_place
        self._places = {storage.url: storage}
        self.find_noted: FindNoted = lambda *_: ()

    def _place(self, url: str) -> Storage:
        found = self._places.get(url)
        if found is None:
            if self._open_place is None:
                raise StorageError(f"the controller has moved to {url}: reopen the store")
            found = self._places[url] = self._open_place(url)
        return found

    def newest(self, known: Epoch | None = None) -> Epoch:
        """Read the newest epoch. Every epoch is complete, so earlier ones may be missed.

        Raises NotAStore: there are no epochs at all. StorageError: the storage fails, or known
        epochs are gone. CorruptEntry, UnsupportedVersion.
        """
        storage = self.storage
        if known is not None and known.controller:
            storage = self._place(known.controller)
        where = known.controller if known is not None else ""
        epoch = self._newest_at(storage, known)
        for _ in range(_MOST_MOVES):
            if epoch.controller in ("", where, storage.url):
                self.storage = storage
                return epoch
            where, before = epoch.controller, storage
            storage = self._place(where)
            epoch = self._follow(before, storage, epoch)
        raise StorageError(f"the controller was moved too often since {self.storage.url}")

    def _newest_at(self, storage: Storage, known: Epoch | None) -> Epoch:
        numbers = list_epochs(storage, known.number if known is not None else 0)
        if known is not None and known.number not in numbers:
            numbers = _later(storage, known.number)  # it has been cleaned
        if known is not None and not numbers:
            # Absence proves nothing: a disk that is not mounted shows no newer epoch either.
            raise StorageError(
                f"{storage.url}/{root_names.epoch_file(known.number)} is gone: is the "
                "controller's disk mounted? Nothing is acknowledged without it"
            )
        if not numbers:
            raise NotAStore(f"there are no epochs below {storage.url}")
        number = max(numbers)
        if known is None and 0 not in numbers:
            # An epoch was put while the disk was not mounted, or epochs were deleted: neither is
            # allowed.
            raise StorageError(
                f"{storage.url}/{root_names.epoch_file(0)} is gone, and there are later "
                "ones: is the controller's disk mounted? Nothing is acknowledged without it"
            )
        if known is not None and number == known.number:
            return known
        epoch = self.at(number, storage)
        if known is not None:
            _check_own(epoch, known, storage)
        if known is None and not epoch.controller:
            # A copy that says nothing of a move follows one that does. A listing is not an instant.
            return self._newest_at(storage, epoch)
        return epoch

    def _follow(self, before: Storage, storage: Storage, epoch: Epoch) -> Epoch:
        """Read the newest epoch at the place that ``epoch`` names, after putting that one there."""
        path = root_names.epoch_file(epoch.number)
        numbers = list_epochs(storage, epoch.number - 1)
        if epoch.number not in numbers and _later(storage, epoch.number):
            found = self._newest_at(storage, epoch)  # it was given to it, and has been cleaned
            if found.controllers[: len(epoch.controllers)] != epoch.controllers:
                raise CorruptEntry(f"{storage.url} has not the epochs that {before.url} had")
            return found
        if epoch.number not in numbers:
            if epoch.number - 1 not in numbers:
                raise StorageError(
                    f"the controller has moved from {before.url} to {storage.url}, where the "
                    "epochs are gone: is its disk mounted? Nothing is acknowledged without it"
                )
            storage.put_if_absent(path, _encode(epoch))  # what is there may be damaged
        if self.at(epoch.number, storage) != epoch:
            raise CorruptEntry(f"{storage.url}/{path} is not what {before.url} has")
        return self._newest_at(storage, epoch)

    def every(self) -> list[Epoch]:
        """Read all epochs that still exist; ascending. Raises what :meth:`newest` does."""
        self.newest()
        numbers = sorted(list_epochs(self.storage))
        return self.storage.gather(partial(self.at, at) for at in numbers)

    def at(self, number: int, storage: Storage | None = None) -> Epoch:
        """Read an epoch that a listing or a later epoch names. It is durable when this returns.

        Raises StorageError, CorruptEntry.
        """
        storage = storage or self.storage
        path = root_names.epoch_file(number)
        where = f"{storage.url}/{path}"
        try:
            data = storage.get(path)
            storage.confirm(path)
        except ObjectNotFound as error:
            raise StorageError(f"{where} was listed, and is gone") from error
        if not envelope.is_sound(data) and (noted := self._noted(number, storage)) is not None:
            return noted
        epoch = envelope.decode(data, DECODER, where)
        try:
            check_epoch(epoch, number)
        except (ValueError, TxnlogError) as error:
            raise CorruptEntry(f"{where} makes no sense: {error}") from error
        return epoch

    def _noted(self, number: int, storage: Storage) -> Epoch | None:
        """Replace a damaged epoch by a member's note of it; returns None if no note can be trusted.

        A note must follow from the epoch before it, or be followed by the one after it, and
        contradict neither. If two notes fit, none is taken. If neither of these epochs can be read,
        the newest epoch that roots keep is taken, and all roots must answer.
        """
        listed = list_epochs(storage)
        before = max((one for one in listed if one < number), default=None)
        after = min((one for one in listed if one > number), default=None)
        near: list[Epoch] = []
        for other in (before, after):
            if other is not None:
                with suppress(TxnlogError):  # that one is damaged, too
                    near.append(Controller(storage).at(other))

        def fits(noted: Epoch) -> bool:
            is_told = not near
            for known in near:
                one, later = (known, noted) if known.number < number else (noted, known)
                if later.before == one.by:
                    is_told = True
                elif later.number == one.number + 1 or (one is noted and is_over(noted, later)):
                    return False  # else those between have been cleaned
            return is_told

        found: list[Epoch] = []
        for of in near or (None,):
            found += (one for one in self.find_noted(of, number) if one not in found)
        fitting = [one for one in found if fits(one)]
        # Another one may be of a controller that was lost.
        if len(fitting) != 1:
            return None
        path = root_names.epoch_file(number)
        with suppress(StorageError):  # it may be read-only
            storage.replace(path, _encode(fitting[0]))
        _logger.warning("replicas: %s/%s was damaged", storage.url, path)
        return fitting[0]

    def propose(self, epoch: Epoch, at: str = "") -> bool:
        """Put the next epoch; False if another process has put one of its number.

        That is so too where the name was only free because old epochs are deleted. ``at`` is the
        URL of the place to put it at, if the epoch itself names another place for later ones.

        Raises StorageError: the epoch may be there, or appear later. That is harmless, since
        processes read the epochs before they go on.
        """
        where = at or epoch.controller
        storage = self._place(where) if where else self.storage
        path = root_names.epoch_file(epoch.number)
        data = _encode(epoch)
        if epoch.number:
            first = None
            with suppress(TxnlogError):  # a place that is gone takes no epoch either
                first = self.at(0, storage)
            if first is not None:
                _check_own(first, epoch, storage)
        try:
            if storage.put_if_absent(path, data):
                return self._counts(storage, epoch)
        except StorageError:
            with suppress(ObjectNotFound):
                return _is_ours(storage, path, data) and self._counts(storage, epoch)
            raise
        try:
            return _is_ours(storage, path, data) and self._counts(storage, epoch)
        except ObjectNotFound as error:
            raise StorageError(f"{storage.url}/{path} is taken, and is gone") from error

    def _counts(self, storage: Storage, epoch: Epoch) -> bool:
        """Whether an epoch just put is the newest one, or the next one follows from it.

        Else its name was free only because old epochs are deleted, which the newest never is.
        """
        numbers = list_epochs(storage, epoch.number + 1)
        if not numbers:
            return True
        following = epoch.number + 1
        return following in numbers and self.at(following, storage).before == epoch.by


def _check_own(found: Epoch, known: Epoch, storage: Storage) -> None:
    if found.store != known.store:
        raise StorageError(
            f"{storage.url} is another store's controller: was its disk exchanged? Nothing is "
            "acknowledged without this store's own"
        )


def _encode(epoch: Epoch) -> bytes:
    path = root_names.epoch_file(epoch.number)
    return envelope.encode_readable(epoch, DECODER, "replicas", path)


def _later(storage: Storage, number: int) -> list[int]:
    """If an epoch is missing because it was cleaned, the numbers of those that are left; else none.

    The first epoch is never cleaned: where it is found, the place is mounted.
    """
    numbers = list_epochs(storage)
    return numbers if 0 in numbers and max(numbers) > number else []


def _is_ours(storage: Storage, path: str, data: bytes) -> bool:
    if storage.get(path) != data:
        return False
    storage.confirm(path)
    return True
