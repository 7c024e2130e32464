"""The storage primitive and its adapters, one per kind of filesystem."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from txnlog.errors import InvalidOption, UnsupportedFilesystem
from txnlog.storage.base import Storage

_NESTED = ("client_kwargs", "config_kwargs", "s3_additional_kwargs")
_BOOLEANS = ("anon", "use_ssl", "requester_pays", "version_aware", "skip_instance_cache")


def open_storage(
    url: str,
    storage_options: Mapping[str, object] | None = None,
    *,
    unsafe_single_writer: bool = False,
) -> Storage:
    """The storage at a path or URL. Nothing is read or written yet.

    Args:
        url: a path, ``file://``, ``memory://`` or ``s3://`` (also ``s3a://``) URL.
        storage_options: for the filesystem, as fsspec takes them; values may be strings, nested
            ones JSON, as they come from Spark's options and the command line.
        unsafe_single_writer: take any other fsspec filesystem too, see ``single_writer``.

    Raises:
        UnsupportedFilesystem: there is no atomic put-if-absent for this kind of URL.
        InvalidOption: the URL or an option is malformed.
    """
    if not isinstance(url, (str, os.PathLike)) or not os.fspath(url):
        raise InvalidOption(f"a store's path must be a non-empty string, not {url!r}")
    url = os.fspath(url)
    if "\0" in url:
        raise InvalidOption("a store's path must not contain NUL")
    protocol, separator, rest = url.partition("://")
    options = _parsed(storage_options or {})
    if not separator or protocol == "file":
        from txnlog.storage.local import LocalStorage

        if options:
            raise InvalidOption(f"a local path takes no storage options, but got {_names(options)}")
        if separator:
            rest = urlsplit(url).path
        return LocalStorage(os.path.expanduser(rest if separator else url))
    if protocol == "memory":
        from txnlog.storage.memory import MemoryStorage

        return MemoryStorage(rest)
    if protocol in ("s3", "s3a"):
        from txnlog.storage.s3 import S3Storage

        if not rest.strip("/"):
            raise InvalidOption(f"{protocol}:// needs a bucket, as in s3://bucket/folder")
        if "@" in rest.partition("/")[0] or "?" in rest:
            raise InvalidOption(
                "credentials and queries do not belong into the URL: use storage_options"
            )
        return S3Storage(rest, options)
    if unsafe_single_writer:
        from txnlog.storage.single_writer import SingleWriterStorage

        return SingleWriterStorage(url, options)
    raise UnsupportedFilesystem(
        f"{protocol}:// has no atomic put-if-absent that txnlog knows how to use. Supported are "
        "local paths, s3:// and memory://; with unsafe_single_writer=True any fsspec filesystem, "
        "if you make sure that only one process ever writes at a time"
    )


def _parsed(options: Mapping[str, object]) -> dict[str, Any]:
    """Options with strings made what fsspec needs."""
    parsed: dict[str, Any] = {}
    for key, value in options.items():
        if key in _NESTED and isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                raise InvalidOption(f"storage option {key} must be a JSON object") from None
        elif key in _BOOLEANS and isinstance(value, str):
            value = value.strip().lower() in ("true", "1", "yes")
        parsed[key] = value
    return parsed


def _names(options: Mapping[str, object]) -> str:
    return ", ".join(sorted(options))
