"""Dry runs: what would be done is found by reading alone.

Readers end transactions past their timeout, and leave witnesses; here they wait, as those do that
may not write. Methods that do write say so before they read; see :meth:`Storage.will_write`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Concatenate, NoReturn, ParamSpec, Protocol, TypeVar

from txnlog.errors import StorageError
from txnlog.log.open_logs import Logs
from txnlog.storage.base import UnfinishedUpload, Upload
from txnlog.storage.forwarding import ForwardingStorage

P = ParamSpec("P")
T = TypeVar("T")


class _HasLogs(Protocol):
    _logs: Logs


A = TypeVar("A", bound=_HasLogs)


def writes(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[A, P], T]:
    """Mark a method of an admin that writes, unless its keyword ``dry_run`` is true."""

    @wraps(method)
    def run(admin: A, /, *args: P.args, **named: P.kwargs) -> T:
        if not named.get("dry_run"):
            admin._logs.storage.will_write()  # noqa: SLF001 - a method of its own
        return method(admin, *args, **named)

    return run


def logs_for(logs: Logs, *, dry_run: bool) -> Logs:
    """The logs to use; in a dry run logs that raise StorageError instead of writing."""
    return Logs(_Unwritten(logs.storage), logs.config, logs.clock) if dry_run else logs


class _Unwritten(ForwardingStorage):
    """Refuses whatever changes the store."""

    def will_write(self) -> None:
        """Do nothing: a dry run does not write."""

    def local_path(self, name: str) -> str | None:
        return self.inner.local_path(name)

    def open_file(self, name: str) -> int | None:
        return self.inner.open_file(name)

    def put_if_absent(self, name: str, data: bytes) -> bool:  # noqa: ARG002
        _refuse(name)

    def put(self, name: str, data: bytes) -> None:  # noqa: ARG002
        _refuse(name)

    def upload(self, name: str) -> Upload:
        _refuse(name)

    def delete(self, names: Iterable[str]) -> None:
        _refuse(", ".join(names))

    def abort_uploads(self, uploads: Iterable[UnfinishedUpload]) -> None:
        _refuse(", ".join(upload.name for upload in uploads))


def _refuse(what: str) -> NoReturn:
    error = StorageError(f"{what} stays as it is: a dry run writes nothing")
    error.retriable = False
    raise error
