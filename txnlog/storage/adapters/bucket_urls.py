"""URLs of buckets: ``s3://bucket/folder`` and the like. Knows no service."""

from __future__ import annotations

from urllib.parse import urlsplit

from txnlog.errors import InvalidOption
from txnlog.storage.base import check_name


def bucket_path(url: str, service: str) -> str:
    """The bucket and the folder of a URL, without the protocol.

    Raises InvalidOption: there is no bucket, or more than that and a folder.
    """
    protocol, _, path = url.partition("://")
    if "@" in path.partition("/")[0] or "?" in path:
        raise InvalidOption(
            f"credentials and queries do not belong in {service} URL: use storage_options"
        )
    if not path.strip("/") or path.startswith("/"):
        raise InvalidOption(f"{service} URL needs a bucket, as in {protocol}://bucket/folder")
    check_name(path.rstrip("/"))
    return path


def check_endpoint(endpoint_url: str, instead: str) -> None:
    """Raise InvalidOption for one with credentials: errors of the HTTP client would show them."""
    if urlsplit(endpoint_url).username is not None:
        raise InvalidOption(f"credentials do not belong in endpoint_url: use {instead}")
