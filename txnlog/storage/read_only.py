"""A storage that refuses whatever would change the store."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import NoReturn

from txnlog.errors import StorageError
from txnlog.storage.base import Storage, UnfinishedUpload, Upload
from txnlog.storage.forwarding import ForwardingStorage


class ReadOnlyStorage(ForwardingStorage):
    """Forwards what reads; to delete nothing is no change."""

    @abstractmethod
    def why_read_only(self) -> str:
        """Why, and what to do."""

    def _refuse(self) -> NoReturn:
        error = StorageError(f"{self.url}: {self.why_read_only()}")
        error.retriable = False
        raise error

    def check_writable(self) -> None:
        self._refuse()

    def put_if_absent(self, name: str, data: bytes) -> bool:  # noqa: ARG002
        self._refuse()

    def put(self, name: str, data: bytes) -> None:  # noqa: ARG002
        self._refuse()

    def replace(self, name: str, data: bytes) -> None:  # noqa: ARG002
        self._refuse()

    def take_over(self, name: str, source: Storage) -> bool:  # noqa: ARG002
        self._refuse()

    def upload(self, name: str) -> Upload:  # noqa: ARG002
        self._refuse()

    def set_replication_factor(
        self,
        topic: str,  # noqa: ARG002
        factor: int | None,  # noqa: ARG002
        *,
        dry_run: bool = False,  # noqa: ARG002
    ) -> None:
        self._refuse()

    def delete(self, names: Iterable[str]) -> None:
        for _ in names:
            self._refuse()

    def abort_uploads(self, uploads: Iterable[UnfinishedUpload]) -> None:
        for _ in uploads:
            self._refuse()


class SalvagedStorage(ReadOnlyStorage):
    """A folder that is looked at alone, though it may be a part of a store."""

    def why_read_only(self) -> str:
        return "it was opened with salvage=True, and can be read only"

    def local_path(self, name: str) -> str | None:
        return self.inner.local_path(name)

    def open_file(self, name: str) -> int | None:
        return self.inner.open_file(name)
