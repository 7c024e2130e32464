"""Methods that write say so before they read; see :meth:`Storage.will_write`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from txnlog.log.open_logs import Logs

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
