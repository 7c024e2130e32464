"""The log of epochs on the controller root: read the newest, put the next one."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from txnlog import root_names
from txnlog.errors import CorruptEntry, NotAStore, ObjectNotFound, StorageError, TxnlogError
from txnlog.replicas.epochs import DECODER, Epoch, check_epoch
from txnlog.state import envelope
from txnlog.storage.base import Storage


def _numbers(listed: Iterable[str]) -> list[int]:
    parsed = map(root_names.parse_epoch_file, listed)
    return [number for number in parsed if number is not None]


class Controller:
    """Where the epochs of a store lie. Any storage will do; it need not be large."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def newest(self, known: Epoch | None = None) -> Epoch:
        """The newest epoch. Every epoch is the whole truth: one before it may be missed.

        Raises:
            NotAStore: there is none at all.
            StorageError: or those that are known to be there are gone.
            CorruptEntry, UnsupportedVersion: it is damaged, or of a newer txnlog.
        """
        after = (
            root_names.epoch_file(known.number - 1) if known is not None and known.number else ""
        )
        found = self.storage.list_names(root_names.EPOCHS, after.rpartition("/")[2])
        numbers = _numbers(found)
        if known is not None and known.number not in numbers:
            # Absence proves nothing: a disk that is not mounted shows no newer epoch either.
            raise StorageError(
                f"{self.storage.url}/{root_names.epoch_file(known.number)} is gone: is the "
                "controller's disk mounted? Nothing is acknowledged without it"
            )
        if not numbers:
            raise NotAStore(f"there are no epochs below {self.storage.url}")
        number = max(numbers)
        if known is None and 0 not in numbers:
            # Somebody has put one where the disk was not mounted, or has cleaned up: never done.
            raise StorageError(
                f"{self.storage.url}/{root_names.epoch_file(0)} is gone, and there are later "
                "ones: is the controller's disk mounted? Nothing is acknowledged without it"
            )
        if known is not None and number == known.number:
            return known
        return self.at(number)

    def every(self) -> list[Epoch]:
        """All epochs, in their order. Raises what :meth:`newest` does."""
        self.newest()
        found = self.storage.list_names(root_names.EPOCHS)
        return self.storage.gather(partial(self.at, at) for at in sorted(_numbers(found)))

    def at(self, number: int) -> Epoch:
        """An epoch that a listing or a later one names. It is durable when this returns.

        Raises StorageError, CorruptEntry.
        """
        path = root_names.epoch_file(number)
        where = f"{self.storage.url}/{path}"
        try:
            data = self.storage.get(path)
            self.storage.confirm(path)
        except ObjectNotFound as error:
            raise StorageError(f"{where} was listed, and is gone") from error
        epoch = envelope.decode(data, DECODER, where, envelope.FORMAT_VERSION)
        try:
            check_epoch(epoch, number)
        except (ValueError, TxnlogError) as error:
            raise CorruptEntry(f"{where} makes no sense: {error}") from error
        return epoch

    def propose(self, epoch: Epoch) -> bool:
        """Put the next epoch; False if somebody else has put one of this number.

        Raises StorageError: it may be there now, or appear later. Harmless: who goes on reads the
        epochs first.
        """
        path, data = root_names.epoch_file(epoch.number), envelope.encode(epoch)
        try:
            if self.storage.put_if_absent(path, data):
                return True
        except StorageError:
            with suppress(ObjectNotFound):
                return self._is_ours(path, data)
            raise
        try:
            return self._is_ours(path, data)
        except ObjectNotFound as error:
            raise StorageError(f"{self.storage.url}/{path} is taken, and is gone") from error

    def _is_ours(self, path: str, data: bytes) -> bool:
        if self.storage.get(path) != data:
            return False
        self.storage.confirm(path)
        return True
