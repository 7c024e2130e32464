"""The message of a failed request: what, where, why, and what to do. Never a secret.

Knows errors of the operating system and texts in general; HTTP statuses are left to the adapters
that use HTTP.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Mapping
from urllib.parse import SplitResult, urlsplit, urlunsplit

from txnlog.errors import InvalidOption, StorageError
from txnlog.storage.whole import TooLarge

_HINTS = {
    errno.ENOSPC: "the disk is full: free some space and run it again",
    errno.EDQUOT: "the disk quota is used up: free some space and run it again",
    errno.EACCES: "permission is denied: check who may write there",
    errno.EPERM: "it is not permitted: check permissions and file attributes",
    errno.EROFS: "the filesystem is read-only",
    errno.EMFILE: "too many files are open: raise the limit (ulimit -n)",
    errno.ENFILE: "too many files are open on this machine",
    errno.ENOTDIR: "a file stands where a folder is needed",
    errno.EISDIR: "a folder stands where a file is needed",
    errno.ENAMETOOLONG: "the name is too long for this filesystem",
    errno.ELOOP: "links in a store lead nowhere unless the option links_to allows it: put what it "
    "leads to in its place, or see docs/STORAGE.md",
    errno.ENXIO: "remove it",
    errno.EIO: "the device reports an error: check the disk",
    errno.ECONNREFUSED: "nothing listens there: check the address, and that the server runs",
}
_NOT_RETRIABLE = frozenset(
    {
        errno.EACCES,
        errno.EDQUOT,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOSPC,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)
"""A retry does not help with these: they need a fix first."""
_DEFAULT_HINT = "if it persists, check the storage and the way to it"
_SECRET_NAME = re.compile(r"(?i)key|secret|token|password|credential|signature|sas|auth")
_SECRET_IN_TEXT = re.compile(
    r"(?i)((?:access_?key(?:_?id)?|secret(?:_?access_?key)?|key|token|password|signature"
    r"|credential|\bsig)['\"]?\s*[=:]\s*['\"]?)[^\s'\"&,}]+"
)
_USER_INFO = re.compile(r"://[^/\s@'\"]+@")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NEXT_CAUSE = re.compile(r"\s*\n\s*↳\s*")
"""Some libraries show causes as a tree, in colours."""
_SHORTEST_SECRET = 8
"""Shorter values are not secrets, and replacing them would make messages unreadable."""


def failure(
    operation: str,
    url: str,
    name: str,
    error: BaseException,
    *,
    hint: str | None = None,
    secrets: Collection[str] = (),
    retriable: bool | None = None,
) -> StorageError:
    """A StorageError for ``error``; raise it ``from error``.

    Args:
        operation: what was tried, as in "reading".
        url: the storage's, without credentials.
        name: the object's or folder's, relative to the root.
        error: the original one; its text is redacted.
        hint: what to do; without it, what the errno of ``error`` suggests.
        secrets: values to redact, see :func:`secrets_of`.
        retriable: whether the same request may succeed later; without it, what errno says.
    """
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, TooLarge):
        hint, retriable = "restore it from a copy, or remove it", False
    if hint is None:
        hint = _HINTS.get(number or 0, _DEFAULT_HINT)
    text = _NEXT_CAUSE.sub(": ", _COLOUR.sub("", str(error)))
    what = redact(text, secrets) or type(error).__name__
    where = f"{url}/{name}" if name else url
    failed = StorageError(f"{operation} {where} failed: {what}; {hint}")
    failed.retriable = number not in _NOT_RETRIABLE if retriable is None else retriable
    return failed


def is_denied(error: StorageError) -> bool:
    """Whether it is this user who may not do that, by the words of all adapters."""
    return "permission is denied" in str(error)


def redact(text: str, secrets: Collection[str] = ()) -> str:
    """``text`` without ``secrets``, and without anything like a key, token or password."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return _SECRET_IN_TEXT.sub(r"\1***", _USER_INFO.sub("://***@", text))


def redact_url(url: str) -> str:
    """``url`` without user, password and query. Raises InvalidOption: it is malformed."""
    parts = split_url(url)
    if not parts.scheme:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def secrets_of(options: Mapping[str, object]) -> frozenset[str]:
    """The values in storage options, however nested, whose names say that they are secret."""
    found: set[str] = set()
    for key, value in options.items():
        if isinstance(value, Mapping):
            found |= secrets_of(value)
        elif (
            isinstance(value, str)
            and len(value) >= _SHORTEST_SECRET
            and _SECRET_NAME.search(str(key))
        ):
            found.add(value)
    return frozenset(found)


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
