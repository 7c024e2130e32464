"""URLs of buckets: ``s3://bucket/folder`` and the like. Knows no service."""

from __future__ import annotations

from txnlog.errors import InvalidOption
from txnlog.storage.base import check_name
from txnlog.storage.failure_messages import port_of, split_url


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
    """Raise InvalidOption for one that is no URL of HTTP, if it is not "", or has credentials.

    Errors of the HTTP client would show them.
    """
    what = "storage option endpoint_url"
    parts = split_url(endpoint_url, what)
    if parts.username is not None:
        raise InvalidOption(f"credentials do not belong in endpoint_url: use {instead}")
    port_of(parts, what)
    if endpoint_url and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise InvalidOption(f"{what} must be a whole URL, as in https://host:9000")
