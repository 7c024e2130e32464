"""Another way to the same folder: through a proxy in front of the server.

The server is in some storage options (S3, Google Cloud Storage, Azure), for HDFS in the URL. Knows
URLs and options; nothing of what a proxy does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from txnlog.errors import InvalidOption

ENDPOINT: Final = "endpoint_url"
_OPTIONS: Final = {
    ENDPOINT: r"^(https?)://([^/;]+)",
    "connection_string": r"(?i)(?:^|;)BlobEndpoint=(https?)://([^/;]+)",  # Azure's
}
"""Storage options, and how they name a server: its protocol, host and port."""
_URL: Final = re.compile(r"^(webhdfs|hdfs)://(?:[^/@]*@)?([^/@]+:\d+)(?=/|$)")
_ENCRYPTED: Final = "https"
_PORTS: Final = {"http": 80}


@dataclass(frozen=True, slots=True)
class Way:
    """The arguments for ``open_storage`` to reach a folder."""

    url: str
    options: Mapping[str, object] = field(default_factory=dict)

    def server(self) -> tuple[str, int] | None:
        """Host and port of the server, if a proxy that only knows bytes can replace it.

        None if nothing names it, or if it speaks TLS: certificates would not match the proxy.
        """
        found = self._named()
        if found is None or found[1].group(1).lower() == _ENCRYPTED:
            return None
        parts = urlsplit(f"//{found[1].group(2)}")
        assert parts.hostname is not None
        return parts.hostname, parts.port or _PORTS[found[1].group(1).lower()]

    def through(self, host: str, port: int, protocol: str = "") -> Way:
        """The way through a proxy at ``host:port``, which speaks ``protocol`` if not the server's.

        Raises InvalidOption: nothing names the server that it is to stand in for.
        """
        found = self._named()
        if found is None:
            raise InvalidOption(
                f"nothing tells how to reach {self.url} through a proxy: neither has it an option "
                f"{' or '.join(_OPTIONS)} with the server's address, nor does its URL name a host "
                "and port as webhdfs:// and hdfs:// do; give --proxy another URL of the same folder"
            )
        option, match = found
        at = f"{host}:{port}"
        if not option:
            return Way(_replaced(self.url, match, 2, at), self.options)
        given = _replaced(str(self.options[option]), match, 2, at)
        if protocol:
            given = given[: match.start(1)] + protocol + given[match.end(1) :]
        return Way(self.url, {**self.options, option: given})

    def by(self, proxy_url: str) -> Way:
        """The given way: ``http://host:port`` of a proxy, or the folder's other URL.

        Raises InvalidOption: it is not another way.
        """
        mine, other = urlsplit(self.url), urlsplit(proxy_url)
        if other.scheme == mine.scheme:
            if other.netloc == mine.netloc:
                raise InvalidOption(
                    f"{proxy_url} leads to the same server as {self.url}, not through a proxy; "
                    "give --proxy http://host:port"
                )
            return Way(proxy_url, self.options)
        if other.scheme not in ("http", "https") or other.hostname is None or other.port is None:
            raise InvalidOption(
                f"{proxy_url} is not a way to {self.url}: give --proxy http://host:port, or a URL "
                f"that begins with {mine.scheme}://"
            )
        return self.through(other.hostname, other.port, other.scheme)

    def _named(self) -> tuple[str, re.Match[str]] | None:
        """The option that names the server ("" for the URL), and the position in it."""
        for option, pattern in _OPTIONS.items():
            found = re.search(pattern, str(self.options.get(option) or ""))
            if found:
                return option, found
        found = _URL.search(self.url)
        return None if found is None else ("", found)


def _replaced(text: str, match: re.Match[str], group: int, new: str) -> str:
    return text[: match.start(group)] + new + text[match.end(group) :]
