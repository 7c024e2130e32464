"""URLs taken apart, of storages and of what their options name. Knows no protocol."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from txnlog.errors import InvalidOption


def split_url(url: str, what: str = "the URL of a storage") -> SplitResult:
    """The parts of a URL.

    Raises InvalidOption, which does not show it, since it may hold a password: no host can be told.
    """
    try:
        return urlsplit(url)
    except ValueError:
        raise InvalidOption(
            f"{what} is malformed: its host has a bracket without the other, or a character that "
            "is not allowed"
        ) from None


def port_of(parts: SplitResult, what: str = "the URL of a storage") -> int | None:
    """The port in a URL, if there is one. Raises InvalidOption: it is none."""
    try:
        return parts.port
    except ValueError:
        raise InvalidOption(f"{what}: the port must be a number up to 65535") from None
