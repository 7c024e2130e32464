"""Logs each request to a storage: the logger ``txnlog.requests``.

Only stores that are opened while it is enabled for DEBUG are logged: others pay nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from txnlog.errors import TxnlogError
from txnlog.storage.base import Storage
from txnlog.storage.forwarding import RequestStorage

T = TypeVar("T")

_logger = logging.getLogger("txnlog.requests")


def _size_bytes(read: object) -> int:
    """The size of a request's result, if it has read objects."""
    pieces = read if isinstance(read, list) else [read]
    return sum(len(piece) for piece in pieces if isinstance(piece, bytes))


def logged(storage: Storage) -> Storage:
    """The storage, wrapped if the logger is enabled."""
    return LoggedStorage(storage) if _logger.isEnabledFor(logging.DEBUG) else storage


class LoggedStorage(RequestStorage):
    """Forwards everything, and logs its kind, name, size and time. Knows no contents."""

    def __reduce__(self) -> tuple[Callable[[Storage], Storage], tuple[Storage]]:
        return logged, (self.inner,)  # the receiving process decides what it logs

    def _request(
        self, kind: str, names: Sequence[str], call: Callable[[], T], size_bytes: int = 0
    ) -> T:
        name = ", ".join(names)
        began_s = time.perf_counter()
        failed = ""
        try:
            done = call()
            size_bytes += _size_bytes(done)
            return done
        except TxnlogError as error:
            failed = f", {type(error).__name__}"
            raise
        finally:
            took_ms = (time.perf_counter() - began_s) * 1000
            _logger.debug(
                "%s %s: %d bytes, %.1f ms%s",
                kind,
                name,
                size_bytes,
                took_ms,
                failed,
                extra={"request": kind, "object": name, "bytes": size_bytes, "took_ms": took_ms},
            )
