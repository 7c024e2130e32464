"""What a failed request tells the user: what, where, why, and what to do. Never a secret."""

from __future__ import annotations

import errno
import re
from urllib.parse import urlsplit, urlunsplit

from txnlog.errors import StorageError

_HINTS = {
    errno.ENOSPC: "the disk is full: free some space and run it again",
    errno.EDQUOT: "the disk quota is used up: free some space and run it again",
    errno.EACCES: "permission is denied: check who may write there",
    errno.EPERM: "it is not permitted: check permissions, and that the filesystem has hard links",
    errno.EROFS: "the filesystem is read-only",
    errno.EMFILE: "too many files are open: raise the limit (ulimit -n)",
    errno.ENOTDIR: "a file stands where a folder is needed",
}
_SECRETS = re.compile(
    r"(?i)((?:access_?key(?:_?id)?|secret(?:_?access_?key)?|key|token|password|signature|credential)"
    r"['\"]?\s*[=:]\s*['\"]?)[^\s'\"&,}]+"
)


def failure(operation: str, url: str, name: str, error: BaseException) -> StorageError:
    """A StorageError for ``error``; raise it ``from error``."""
    number = error.errno if isinstance(error, OSError) else None
    hint = _HINTS.get(number or 0, "if it persists, check the storage and the network")
    what = redact(str(error)) or type(error).__name__
    return StorageError(f"{operation} {url}/{name} failed: {what}; {hint}")


def redact(text: str) -> str:
    """``text`` without what looks like a key, token or password."""
    return _SECRETS.sub(r"\1***", text)


def redact_url(url: str) -> str:
    """``url`` without user, password and query."""
    parts = urlsplit(url)
    if not parts.scheme:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
