"""Requests beside a group's heartbeats: entries that a member asks others to put for it.

Nothing depends on one: it may be lost, or deleted at any time, since its writer can do without. So
failures here are only logged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from txnlog import names
from txnlog.errors import StorageError
from txnlog.log.group_log import GroupLog

MOST_AGE_S = 60
"""An older request is left to its own writer, which may be dead."""

_logger = logging.getLogger(__name__)


def put_request(log: GroupLog, path: str, data: bytes) -> None:
    """Put one. It need not be durable."""
    try:
        log.log.storage.without_fsync().put_if_absent(path, data)
    except StorageError as error:
        _logger.debug("a request, %s, was not put: %s", path, error)


def refresh_and_list(log: GroupLog, *, asks: bool) -> list[str]:
    """Refresh a group's log; with ``asks`` also list the names in ``members/`` at the same time."""
    if not asks:
        log.refresh()
        return []
    shown = list[str]()
    log.refresh_beside(lambda: shown.extend(_list(log)))
    return shown


def _list(log: GroupLog) -> list[str]:
    try:
        return log.log.storage.list_names(names.group_members(log.name))
    except StorageError as error:
        _logger.debug("requests of members of %r were not listed: %s", log.name, error)
        return []


def find_requests(group_id: str, shown: Iterable[str]) -> list[str]:
    """The files of requests among some names in ``members/``."""
    folder = names.group_members(group_id)
    return [
        f"{folder}/{name}"
        for name in shown
        if names.parse_join_request(name) or names.parse_leave_request(name)
    ]


def delete_requests(log: GroupLog, paths: Iterable[str]) -> None:
    """Delete some."""
    doomed = [*paths]
    try:
        if doomed:
            log.log.storage.delete(doomed)
    except StorageError as error:
        _logger.debug("requests of members of %r were left: %s", log.name, error)


class OldRequests:
    """Requests whose writers have died: this process has seen them for a minute, by its clock."""

    def __init__(self) -> None:
        self._seen_since_s: dict[str, float] = {}

    def look(self, now_s: float, paths: Iterable[str]) -> list[str]:
        """Record the existing ones; returns those that are old."""
        known = self._seen_since_s
        self._seen_since_s = {path: known.get(path, now_s) for path in paths}
        return [path for path, at_s in self._seen_since_s.items() if now_s - at_s > MOST_AGE_S]
