"""Which adapter opens which URL, and what lies there.

Adapters, and with them s3fs and the like, are imported only then.

A package adds its own by an entry point of the group ``txnlog.storage``: its name is the protocol,
its object a function that takes the URL and the storage options, and returns a
:class:`txnlog.storage.base.Storage`. The built-in ones cannot be replaced that way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, ClassVar, TypeVar, cast

import msgspec

from txnlog.clock import Clock
from txnlog.config import check_stored_store_config
from txnlog.errors import StorageError, UnsupportedFilesystem
from txnlog.hooks import registered
from txnlog.limits import MOST_MARK_BYTES, Name, Settings, TimeMs
from txnlog.storage import envelope
from txnlog.storage.base import Storage
from txnlog.storage.reach import is_here
from txnlog.time_limits import NoAnswer, run_within

Adapter = Callable[[str, Mapping[str, Any]], Storage]
"""Opens a URL, whose protocol is in lower case, with options that may all be strings.

Raises InvalidOption: the URL or an option is malformed.
"""
GROUP = "txnlog.storage"
T = TypeVar("T")
_ANSWERS_WITHIN_S = 10

_ADAPTERS = {
    "abfs": "azure",
    "abfss": "azure",
    "az": "azure",
    "gcs": "gcs",
    "gs": "gcs",
    "hdfs": "hdfs_native",
    "memory": "memory",
    "s3": "s3",
    "s3a": "s3",
    "sftp": "sftp",
    "swebhdfs": "webhdfs",
    "webhdfs": "webhdfs",
}
"""The module in ``txnlog.storage.adapters`` for each protocol; its ``open_url`` is an Adapter."""


def find_adapter(protocol: str) -> Adapter | None:
    """The adapter for the URLs of a protocol, in lower case.

    Raises UnsupportedFilesystem: the package that has registered it cannot be imported.
    """
    if protocol in _ADAPTERS:
        module = import_module(f"txnlog.storage.adapters.{_ADAPTERS[protocol]}")
        return cast("Adapter", module.open_url)
    for found in entry_points(group=GROUP, name=protocol):
        try:
            return cast("Adapter", found.load())
        except (ImportError, AttributeError) as error:
            raise UnsupportedFilesystem(
                f"{protocol}:// was registered as {found.value}, which cannot be imported: {error}"
            ) from error
    return None


def in_time(url: object, call: Callable[[], T]) -> T:
    """Call ``call``, which makes the first requests to a place; a disk that hangs ends it.

    Servers have the time limits of their clients. Raises StorageError: the disk does not answer;
    and what ``call`` raises.
    """
    if not is_here(os.fspath(url) if isinstance(url, os.PathLike) else str(url)):
        return call()
    try:
        return run_within(call, _ANSWERS_WITHIN_S)
    except NoAnswer as error:
        raise StorageError(
            f"{url} hangs: {error}. Is its disk, or the server that it is mounted from, all right? "
            "If it belongs to a replicated store, open that by another root, or by the controller"
        ) from error


def check_whole(storage: Storage) -> None:
    """Raise NotAStore if a folder is a part of a store that must be opened as a whole.

    A hook's module has ``check``, which does that; servers should not be asked in vain.
    """
    for part in registered("storage"):
        part.check(storage)


def find_other(
    url: str | os.PathLike[str],
    options: Mapping[str, object] | None,
    clock: Clock,
    *,
    unsafe_single_writer: bool,
) -> Storage | None:
    """The storage at a place that is no folder of a store: one over several, or of a copy.

    A hook's module has ``find`` with these parameters, which returns None where it knows nothing.
    Its errors are raised. Options are for this place, and under URLs for others to which it leads.
    """
    for part in registered("storage"):
        found: Storage | None = part.find(
            url, options, clock, unsafe_single_writer=unsafe_single_writer
        )
        if found is not None:
            return found
    return None


def known_protocols() -> str:
    """The protocols that txnlog itself has adapters for, for messages."""
    return ", ".join(f"{protocol}://" for protocol in _ADAPTERS)


class StoreFile(msgspec.Struct, frozen=True, tag_field="kind", tag="store"):
    """What makes a folder a store, ``txnlog.json``: identity and settings, never changed."""

    most_bytes: ClassVar[int] = MOST_MARK_BYTES

    store_id: Name
    created_at_ms: TimeMs
    config: Settings

    def __post_init__(self) -> None:
        check_stored_store_config(self.config)

    @classmethod
    def decode(cls, data: bytes, path: str) -> StoreFile:
        """The file's content. Raises what :func:`txnlog.storage.envelope.decode` does."""
        return envelope.decode(data, _DECODER, path)


_DECODER = msgspec.json.Decoder(StoreFile)
