"""Which URLs a store may lead to, and which options are for them.

Files of a store may name other places: further roots, or what a copy follows. Whoever has written
them must not decide where a user's credentials go, or that anything is sent at all: options are for
the servers and buckets that the user has named, and others are not asked. Folders of this machine
are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping

from txnlog.errors import InvalidOption

_HERE = ("file", "local", "memory")
_SAME_SCHEME = {"s3a": "s3", "gcs": "gs", "abfss": "abfs"}
_OF_DISKS = ("links_to",)
_WINDOWS = os.name == "nt"


class UnnamedUrl(InvalidOption):
    """A store names a place at which nothing is asked unless the user names it, too."""


class Reach:
    """The places that a user has named, each with its options. Plain data.

    Options under a URL are for it and all that is below it, a whole server as
    ``webhdfs://host:9870`` or a bucket too; the others for the servers of ``typed``: URLs and paths
    that the user has given.

    Raises InvalidOption: options under a URL are not a mapping.
    """

    def __init__(
        self,
        options: Mapping[str, object] | None = None,
        typed: Iterable[object] = (),
    ) -> None:
        self.named: dict[str, dict[str, object]] = {}
        """By URL. They may hold secrets; as ``options`` elsewhere they have the same meaning."""
        self._others = {name: one for name, one in (options or {}).items() if "/" not in name}
        for name, own in (options or {}).items():
            if "/" in name:
                self.named[_normal(name)] = _mapping(name, own)
        for url in typed:
            self.allow(url)

    def allow(self, url: object, options: Mapping[str, object] | None = None) -> None:
        """The user has given this URL, and options for it or for what was given before.

        What is no URL is left to opening it, which says so.
        """
        text = _text(url)
        own = self._others if options is None else options
        if is_here(text):
            found = {name: one for name, one in own.items() if name in _OF_DISKS}
            if found:
                self.named.setdefault(_normal(text), found)
        elif options is not None:
            self.named[_normal(text)] = dict(options)
        elif (server := server_of(text)) not in self.named:
            self.named[server] = {name: one for name, one in own.items() if name not in _OF_DISKS}

    def options_for(self, url: object) -> dict[str, object]:
        """The options for a URL, whoever has named it. Raises UnnamedUrl."""
        text = _text(url)
        wanted = f"{_normal(text)}/"
        fitting = [name for name in self.named if wanted.startswith(f"{name}/")]
        if fitting:
            return dict(self.named[max(fitting, key=len)])
        if is_here(text) or text.endswith("://"):  # which no adapter takes
            return {}
        server = server_of(text)
        raise UnnamedUrl(
            f"the store names {text}, and nothing is sent there: it is on no server or bucket that "
            f"you have named. If you trust it, name it with the options for it: storage_options="
            f"{{{server!r}: {{...}}}}, --storage-option '{server}={{...}}', or a table "
            f'[storage_options."{server}"] of the config file; {{}} for none'
        )


def own_options(
    url: str | os.PathLike[str], options: Mapping[str, object] | None
) -> Mapping[str, object] | None:
    """The options for this URL, if some are for single places; else all of them."""
    if not any("/" in name for name in options or {}):
        return options
    return Reach(options, [url]).options_for(url)


def is_here(url: str) -> bool:
    """Whether a path or URL is of this machine, or this process.

    Windows logs in to the server of a path that begins with two slashes, as whoever runs this.
    """
    scheme, found, _ = url.partition("://")
    if not found:
        return not (_WINDOWS and url.replace("\\", "/").startswith("//"))
    return scheme.lower() in _HERE


def _text(url: object) -> str:
    found: object = os.fspath(url) if isinstance(url, os.PathLike) else url
    return found if isinstance(found, str) else ""


def _normal(url: str) -> str:
    """A URL in the form in which equal ones are the same."""
    scheme, found, rest = url.rstrip("/").partition("://")
    if not found:
        # "s3://" names all buckets.
        return url.rstrip("/") if not url.endswith("://") else url[:-2].lower()
    server, slash, path = rest.partition("/")
    scheme = scheme.lower()
    return f"{_SAME_SCHEME.get(scheme, scheme)}://{server.lower()}{slash}{path}"


def server_of(url: str) -> str:
    """The server or bucket of a URL, as a URL."""
    scheme, _, rest = _normal(url).partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def _mapping(name: str, own: object) -> dict[str, object]:
    try:
        found = json.loads(own) if isinstance(own, str) else own
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, Mapping):
        raise InvalidOption(
            f"storage option {name} must be a JSON object: the options for this URL"
        )
    return dict(found)
