"""The storage primitive and its adapters, one per kind of filesystem.

Knows paths from URLs and the adapter for each, and nothing of how they work. Third-party adapters
are built from the names in ``__all__``: see docs/STORAGE.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from txnlog.errors import InvalidOption, UnsupportedFilesystem
from txnlog.storage.base import Address, Storage, Upload, check_name
from txnlog.storage.buffered_uploads import BufferedUpload, Spool, SpooledUpload
from txnlog.storage.failure_messages import failure, redact, secrets_of
from txnlog.storage.option_types import parse_options
from txnlog.storage.registry import Adapter, find_adapter, known_protocols
from txnlog.storage.server_storage import ServerStorage

__all__ = [
    "Adapter",
    "Address",
    "BufferedUpload",
    "ServerStorage",
    "Spool",
    "SpooledUpload",
    "Storage",
    "Upload",
    "check_name",
    "failure",
    "open_storage",
    "parse_options",
    "redact",
    "secrets_of",
]

_CHAIN = re.compile(r"[^/:]+::")
_HALVES = re.compile("[\ud800-\udfff]")
_SCHEME = re.compile(r"([^/:]+):(//)|([A-Za-z][A-Za-z0-9+.-]+):")
"""Whatever stands before ``://`` is meant to be a protocol, as in ``arrow_hdfs://``."""


def check_location(url: object, storage_options: object) -> str:
    """The path or URL as a string. Raises InvalidOption if it, or an option, has a wrong type."""
    location: object = os.fspath(url) if isinstance(url, os.PathLike) else url
    if not isinstance(location, str) or not location.strip():
        raise InvalidOption(f"a path or URL must be a non-empty string, not {location!r:.100}")
    if "\0" in location or _HALVES.search(location):
        raise InvalidOption("a path or URL must not contain NUL, or half of a character")
    if storage_options is not None and not (
        isinstance(storage_options, Mapping) and all(isinstance(n, str) for n in storage_options)
    ):
        given = type(storage_options).__name__  # not its value, which may be a secret
        raise InvalidOption(f"storage_options must be a dict of options by name, not {given}")
    return location


def open_storage(
    url: str | os.PathLike[str],
    storage_options: Mapping[str, object] | None = None,
    *,
    unsafe_single_writer: bool = False,
) -> Storage:
    """The storage at a path or URL. Nothing is read or written yet.

    Args:
        url: a path (``~`` is expanded, a relative one is taken from the working directory), or a
            URL: ``file://``, or one with an adapter, see ``registry``.
        storage_options: for the filesystem, as fsspec takes them; values may be strings, nested
            ones JSON, as they come from Spark's options and the command line.
        unsafe_single_writer: take any other fsspec filesystem too, see ``single_writer``.

    Raises:
        UnsupportedFilesystem: there is no atomic put-if-absent for this kind of URL, or the
            package for it is not installed.
        InvalidOption: the URL or an option is malformed.
    """
    location = check_location(url, storage_options)
    if _CHAIN.match(location):
        raise InvalidOption(
            "a chain of filesystems (::) cannot carry a store: caches in it would show old listings"
        )
    options = dict(storage_options or {})
    match = _SCHEME.match(location)
    if match is None:
        return _open_local(location, options)
    protocol, rest = (match[1] or match[3]).lower(), location[match.end() :]
    if protocol in ("file", "local"):
        return _open_local(_path_in_url(match, rest), options)
    if not match[2]:
        # As a path it would silently create a folder with a colon in its name.
        raise InvalidOption(
            f"the store's path begins with {match[0]!r}: a URL has two slashes after the colon, "
            f"as in {protocol}://...; for a local folder of this name write ./{match[0]}..."
        )
    adapter = find_adapter(protocol)
    if adapter is not None:
        return adapter(f"{protocol}://{rest}", options)
    if unsafe_single_writer:
        from txnlog.storage.adapters.single_writer import SingleWriterStorage

        return SingleWriterStorage(location, options)
    raise UnsupportedFilesystem(
        f"{protocol}:// has no atomic put-if-absent that txnlog knows how to use. Supported are "
        f"local paths, {known_protocols()}, and what packages register as txnlog.storage. With "
        "unsafe_single_writer=True any fsspec filesystem but an archive is accepted, if you make "
        "sure that only one process ever writes at a time"
    )


def _open_local(path: str, options: Mapping[str, object]) -> Storage:
    from txnlog.storage.adapters.local import LocalStorage

    given = parse_options(options, lists=("links_to",))
    links_to = given.pop("links_to", ())
    if given:
        raise InvalidOption(
            f"a local path takes no storage options, but got {', '.join(sorted(given))} (only "
            "links_to is one for it)"
        )
    if any(not os.path.isabs(one) for one in links_to):  # noqa: PTH117 - they may be no paths
        raise InvalidOption("storage option links_to must name folders by absolute paths")
    try:
        return LocalStorage(str(Path(path).expanduser()), links_to=links_to)
    except RuntimeError as error:
        raise InvalidOption(f"the store's path {path!r} names no known home folder") from error


def _path_in_url(match: re.Match[str], rest: str) -> str:
    """The path of a file URL: ``file:///a``, ``file://localhost/a``, or Hadoop's ``file:/a``.

    Not unquoted, and '?' and '#' are part of it, as in fsspec and Hadoop.
    """
    host, slash, below = rest.partition("/") if match[2] else ("", "", rest.lstrip("/"))
    if match[2] and host not in ("", "localhost"):
        raise InvalidOption(
            f"a file URL has three slashes, as in file:///{rest}: {host!r} would be a host"
        )
    if not below and not slash and not rest.startswith("/"):
        raise InvalidOption("a file URL needs a path, as in file:///data/store")
    return "/" + below
