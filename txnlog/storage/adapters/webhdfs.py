"""Storage on HDFS through its HTTP interface: ``webhdfs://`` and ``swebhdfs://``, with requests.

Knows the storage options and where the NameNodes are; requests are made in ``webhdfs_client``.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from txnlog.errors import InvalidOption
from txnlog.storage.adapters.hdfs import HdfsClient, HdfsStorage, check_url
from txnlog.storage.base import Storage
from txnlog.storage.failure_messages import port_of, split_url
from txnlog.storage.option_types import parse_options

_OPTIONS = frozenset(
    {
        "namenodes",
        "user",
        "proxy_to",
        "token",
        "kerberos",
        "kerb_kwargs",
        "use_https",
        "session_verify",
        "session_cert",
        "data_proxy",
        "replication",
        "timeout_s",
    }
)
_DEFAULT_PORTS = {"http": 9870, "https": 9871}


def open_url(url: str, options: Mapping[str, object]) -> Storage:
    """The storage at ``webhdfs://host:9870/folder``, or ``swebhdfs://`` over TLS; see ``registry``.

    The options have the names that fsspec's webhdfs gives them, and:

    * ``user``: where neither ``token`` nor ``kerberos`` is given it is ``HADOOP_USER_NAME`` of the
      environment, or whoever is logged in;
    * ``namenodes``: "host:port,host:port", all of a cluster with several; the URL's host is then
      a name for the cluster. No observers: their listings may be old;
    * ``replication``: of new files; without it the cluster's ``dfs.replication``;
    * ``timeout_s``: how long an answer may take, 60 if not given.
    """
    check_url(url)
    parsed = parse_options(
        options,
        nested=("kerb_kwargs", "data_proxy"),
        booleans=("kerberos", "use_https"),
        integers=("replication", "timeout_s"),
    )
    unknown = sorted(parsed.keys() - _OPTIONS)
    if unknown:
        raise InvalidOption(
            f"webhdfs:// has no storage option {', '.join(unknown)}; it takes "
            f"{', '.join(sorted(_OPTIONS))}"
        )
    if "token" in parsed and parsed.keys() & {"user", "proxy_to", "kerberos"}:
        raise InvalidOption("a token says who you are: leave out user, proxy_to and kerberos")
    if not parsed.keys() & {"user", "token", "kerberos"}:
        # As Hadoop's own clients do; looked up here, so that Spark's executors are told the same.
        parsed["user"] = os.environ.get("HADOOP_USER_NAME") or _login()
    verify = parsed.get("session_verify")
    if isinstance(verify, str) and verify.strip().lower() in ("true", "false"):
        parsed["session_verify"] = verify.strip().lower() == "true"
    storage = WebHdfsStorage(url, parsed)
    storage.namenodes()  # to say at once that one is malformed
    return storage


def _login() -> str:
    with suppress(KeyError, OSError, ImportError):  # where nobody is logged in
        return getpass.getuser()
    return ""


class WebHdfsStorage(HdfsStorage):
    """Objects below ``webhdfs://host:port/folder``."""

    needs = "requests", "hdfs"

    def _load_client(self) -> Callable[[], HdfsClient]:
        from txnlog.storage.adapters.webhdfs_client import WebHdfsClient

        return partial(WebHdfsClient, self.namenodes(), self._options)

    def namenodes(self) -> list[str]:
        """The address of each NameNode, as in ``http://host:9870``. Raises InvalidOption."""
        secure = self.url.startswith("swebhdfs") or self._options.get("use_https")
        scheme = "https" if secure else "http"
        given = str(self._options.get("namenodes") or self._host)
        hosts = [name for host in given.split(",") if (name := host.strip().rstrip("/"))]
        port = _DEFAULT_PORTS[scheme]
        # An IPv6 address has colons within its brackets.
        found = [
            f"{scheme}://{host}" if ":" in host.rpartition("]")[2] else f"{scheme}://{host}:{port}"
            for host in hosts
        ]
        for address in found:
            what = "storage option namenodes"
            port_of(parts := split_url(address, what), what)
            if not parts.hostname or parts.path:
                raise InvalidOption(f"{what} must be HOST:PORT, or several with commas between")
        return found
