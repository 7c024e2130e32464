"""Storages with a client: made when first used, and again after a fork. Knows no service."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar

from txnlog.errors import InvalidOption, StorageError, UnsupportedFilesystem, how_to_install
from txnlog.storage.base import Address
from txnlog.storage.failure_messages import redact, secrets_of
from txnlog.storage.fork_safe_lock import ForkSafeLock
from txnlog.storage.server_storage import ServerStorage

C = TypeVar("C")


class ConnectedStorage(ServerStorage, Generic[C]):
    """A storage on a server; a subclass says how its client is made of the options.

    The URL is without credentials; ``open_storage`` takes it again. ``secrets`` are redacted in
    messages; without them, the values of options whose names say so.
    """

    needs: ClassVar[tuple[str, str]]
    """The package to install, and the extra that has it, for the message that it is missing."""

    def __init__(
        self, url: str, options: Mapping[str, Any] | None, secrets: frozenset[str] | None = None
    ) -> None:
        self.url = url
        self._options = dict(options or {})
        self._secrets = secrets_of(self._options) if secrets is None else secrets
        self._connected: tuple[int, C] | None = None
        # Sixteen threads that begin at once make one client, not sixteen. Each storage has a lock:
        # a server that is silent keeps nobody from another one.
        self._connecting = ForkSafeLock()

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        return type(self), (self.url, self._options)

    def address(self) -> Address:
        return Address(self.url, self._options)

    @property
    def client(self) -> C:
        """The connection: made when first used, again after a fork, and again if it was lost.

        An event loop does not survive a fork, nor may two processes share a socket.

        Raises UnsupportedFilesystem: its library is missing, or too old. InvalidOption: there is no
        such storage option.
        """
        found = self._usable_client()
        if found is None:
            with self._connecting.mutex:
                found = self._usable_client()
                if found is None:
                    found = self._connect()
                    self._connected = os.getpid(), found
        return found

    def _usable_client(self) -> C | None:
        process, client = self._connected or (0, None)
        if client is None or process != os.getpid() or self._is_lost(client):
            return None
        return client

    def _is_lost(self, client: C) -> bool:  # noqa: ARG002 - most connect again by themselves
        """Whether another client must be made."""
        return False

    def _connect(self) -> C:
        package, extra = self.needs
        try:
            make_client = self._load_client()
        except ImportError as error:
            raise UnsupportedFilesystem(
                f"{self.url} needs {package}: {how_to_install(extra)}"
            ) from error
        try:
            return make_client()
        except UnsupportedFilesystem:
            raise
        except TypeError as error:
            why = redact(str(error), self._secrets)
            raise InvalidOption(
                f"{self.url}: {package} does not know a storage option, or does not take its "
                f"type: {why}"
            ) from error
        except Exception as error:
            raise self._failure("connecting to", "", error) from error

    @abstractmethod
    def _load_client(self) -> Callable[[], C]:
        """What makes a client. Raises ImportError: its library is missing."""

    @abstractmethod
    def _failure(self, operation: str, name: str, error: BaseException) -> StorageError:
        """What a request's error is for the callers of a storage."""
