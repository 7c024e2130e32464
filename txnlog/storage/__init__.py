"""The storage primitive and its adapters, one per kind of filesystem.

Adapters, and with them fsspec and s3fs, are imported when a URL asks for them. Knows which URL and
which options belong to which adapter, and nothing of how they work.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from txnlog.errors import InvalidOption, UnsupportedFilesystem
from txnlog.storage.base import Storage, check_name

_NESTED = ("client_kwargs", "config_kwargs", "s3_additional_kwargs")
_BOOLEANS = (
    "anon",
    "use_ssl",
    "requester_pays",
    "version_aware",
    "skip_instance_cache",
    "fixed_upload_size",
    "cache_regions",
    "local_expiry_check",
    "use_listings_cache",
)
_INTEGERS = ("max_concurrency", "default_block_size")
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_CHAIN = re.compile(r"[A-Za-z0-9+.-]+::")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//)?")


def open_storage(
    url: str | os.PathLike[str],
    storage_options: Mapping[str, object] | None = None,
    *,
    unsafe_single_writer: bool = False,
) -> Storage:
    """The storage at a path or URL. Nothing is read or written yet.

    Args:
        url: a path (``~`` is expanded, a relative one is taken from the working directory), or a
            ``file://``, ``memory://`` or ``s3://`` (also ``s3a://``) URL.
        storage_options: for the filesystem, as fsspec takes them; values may be strings, nested
            ones JSON, as they come from Spark's options and the command line.
        unsafe_single_writer: take any other fsspec filesystem too, see ``single_writer``.

    Raises:
        UnsupportedFilesystem: there is no atomic put-if-absent for this kind of URL, or the
            package for it is not installed.
        InvalidOption: the URL or an option is malformed.
    """
    location: object = os.fspath(url) if isinstance(url, os.PathLike) else url
    if not isinstance(location, str) or not location.strip():
        raise InvalidOption(f"a store's path must be a non-empty string, not {location!r}")
    if "\0" in location:
        raise InvalidOption("a store's path must not contain NUL")
    if _CHAIN.match(location):
        raise InvalidOption(
            "a chain of filesystems (::) cannot carry a store: caches in it would show old listings"
        )
    options = _parse_options(storage_options or {})
    match = _SCHEME.match(location)
    if match is None:
        return _open_local(location, options)
    protocol, rest = match[1].lower(), location[match.end() :]
    if protocol in ("file", "local"):
        return _open_local(_path_in_url(match, rest), options)
    if not match[2]:
        # Taken for a path it would quietly make a folder with a colon in its name.
        raise InvalidOption(
            f"the store's path begins with {match[0]!r}: a URL has two slashes after the colon, "
            f"as in {protocol}://...; for a local folder of this name write ./{match[0]}..."
        )
    if protocol == "memory":
        if options:
            raise InvalidOption(
                f"memory:// takes no storage options, but got {_join_names(options)}"
            )
        from txnlog.storage.memory import MemoryStorage

        return MemoryStorage(rest)
    if protocol in ("s3", "s3a"):
        return _open_s3(rest, options)
    if unsafe_single_writer:
        from txnlog.storage.single_writer import SingleWriterStorage

        return SingleWriterStorage(location, options)
    raise UnsupportedFilesystem(
        f"{protocol}:// has no atomic put-if-absent that txnlog knows how to use yet. Supported "
        "are local paths, s3:// (and s3a://) and memory://; Google Cloud Storage, Azure and HDFS "
        "are to come. With unsafe_single_writer=True any fsspec filesystem is taken, if you make "
        "sure that only one process ever writes at a time"
    )


def _open_local(path: str, options: Mapping[str, object]) -> Storage:
    from txnlog.storage.local import LocalStorage

    if options:
        raise InvalidOption(
            f"a local path takes no storage options, but got {_join_names(options)}"
        )
    try:
        return LocalStorage(str(Path(path).expanduser()))
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


def _open_s3(path: str, options: dict[str, Any]) -> Storage:
    if "@" in path.partition("/")[0] or "?" in path:
        raise InvalidOption(
            "credentials and queries do not belong into an S3 URL: use storage_options"
        )
    if not path.strip("/") or path.startswith("/"):
        raise InvalidOption("an S3 URL needs a bucket, as in s3://bucket/folder")
    check_name(path.rstrip("/"))
    client_options = options.get("client_kwargs")
    nested = client_options if isinstance(client_options, Mapping) else {}
    for endpoint in (options.get("endpoint_url"), nested.get("endpoint_url")):
        if endpoint and urlsplit(str(endpoint)).username is not None:
            # They would show in every error of the HTTP client.
            raise InvalidOption(
                "credentials do not belong into endpoint_url: use the options key and secret"
            )
    from txnlog.storage.s3 import S3Storage

    return S3Storage(path, options)


def _parse_options(options: Mapping[str, object]) -> dict[str, Any]:
    """Options with strings made what fsspec needs. Messages name options and never their values."""
    return {key: _parse_value(key, value) for key, value in options.items()}


def _parse_value(key: str, value: object) -> object:
    if key in _NESTED:
        try:
            nested = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            nested = None
        if not isinstance(nested, Mapping):
            raise InvalidOption(f"storage option {key} must be a JSON object")
        return dict(nested)
    if not isinstance(value, str):
        return value
    if key in _BOOLEANS:
        if value.strip().lower() not in _TRUTH:
            raise InvalidOption(f"storage option {key} must be true or false")
        return _TRUTH[value.strip().lower()]
    if key in _INTEGERS:
        if not value.strip().isdecimal():
            raise InvalidOption(f"storage option {key} must be a whole number")
        return int(value)
    return value


def _join_names(options: Mapping[str, object]) -> str:
    return ", ".join(sorted(options))
