"""Requests to a NameNode and DataNodes over HTTP. Imports requests; nothing else may.

Knows paths, HTTP and what Hadoop answers, and nothing of stores. Addresses hold tokens, so that no
text of an error has one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import requests
from requests.adapters import HTTPAdapter

from txnlog.errors import UnsupportedFilesystem, how_to_install
from txnlog.storage import whole
from txnlog.storage.adapters.hdfs import (
    HdfsClient,
    HdfsStatus,
    NoParentFolder,
    RemoteError,
    remote_failure,
)

_POOLED = 64
"""Connections that are kept to each host: gather() runs 16 calls, for each of several threads."""
_CONNECT_TIMEOUT_S = 10
_TIMEOUT_S = 60
_ATTEMPTS = 3
"""Attempts of repeatable requests: to every NameNode in turn."""
_QUERY = re.compile(r"\?[^\s'\"()<>]*")
_ELSEWHERE = frozenset({"StandbyException", "ObserverRetryOnActiveException"})
_SYNCED = "CREATE,SYNC_BLOCK"
"""The DataNodes sync each block when it is complete, and its name in the folder: what WebHDFS has
for hsync. Hadoop's own default leaves it to the operating system."""


class WebHdfsClient(HdfsClient):
    """One session, used by all threads of a process.

    Of ``namenodes``, as in ``http://host:9870``, the first that is active is used.
    """

    def __init__(self, namenodes: Sequence[str], options: Mapping[str, Any]) -> None:
        self._namenodes = list(namenodes)
        self._active = 0
        self._replication = options.get("replication")
        self._data_proxy = dict(options.get("data_proxy") or {})
        self._timeout_s = options.get("timeout_s") or _TIMEOUT_S
        self._identity = _identity(options)
        self._session = _make_session(options)

    # -- the requests of a storage ---------------------------------------------------------------

    def create(self, path: str, data: bytes | Path) -> None:
        arguments = {"overwrite": "false", "createflag": _SYNCED, "noredirect": "true"}
        if self._replication:
            arguments["replication"] = str(self._replication)
        for turn in range(1, self._turns + 1):
            namenode, answer = self._ask_any("PUT", path, "CREATE", arguments)
            try:
                self._send_body(self._location(answer), data)
            except _NoAnswer:
                # Maybe it was as below, and the DataNode hung up before it had the whole body.
                self._pass_over(namenode)
                raise
            except _Elsewhere:
                # A NameNode on standby names a DataNode all the same, which then asks it in vain.
                self._pass_over(namenode)
                if turn == self._turns:
                    raise
            else:
                return

    def _send_body(self, where: str, data: bytes | Path) -> None:
        headers = {"Content-Type": "application/octet-stream"}
        if isinstance(data, bytes):
            self._send("PUT", where, data=data, headers=headers)
        else:
            with data.open("rb") as file:
                self._send("PUT", where, data=file if data.stat().st_size else b"", headers=headers)

    def rename(self, source: str, target: str) -> None:
        arguments = {"destination": target, "renameoptions": "NONE"}
        answer = self._ask("PUT", source, "RENAME", arguments, repeat=False)
        if answer.content and answer.json().get("boolean") is False:
            # A gateway that renames as Hadoop did before there were options: it says no reason.
            self._explain_refused_rename(source, target)

    def _explain_refused_rename(self, source: str, target: str) -> None:
        try:
            self.status(target)
        except FileNotFoundError:
            self.status(source)
            raise NoParentFolder(f"there is no folder for {target}") from None
        raise FileExistsError(f"{target} exists")

    def make_folders(self, path: str) -> None:
        self._ask("PUT", path, "MKDIRS")

    def delete(self, path: str) -> None:
        self._ask("DELETE", path, "DELETE", {"recursive": "false"})

    def read(self, path: str, start: int, stop: int | None) -> bytes:
        arguments = {"noredirect": "true"}
        if start:
            arguments["offset"] = str(start)
        end = whole.MOST_WHOLE_BYTES + 1 if stop is None else stop
        arguments["length"] = str(end - start)
        try:
            answer = self._ask("GET", path, "OPEN", arguments)
        except RemoteError as error:
            if "out of the range" in str(error):  # begins at or behind the end
                return b""
            raise
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                data = self._send("GET", self._location(answer)).content
            except (_NoAnswer, _Elsewhere):
                # Maybe the DataNode has gone: the NameNode may name another one. Or the NameNode
                # is on standby since it has named this one: then it says so.
                if attempt == _ATTEMPTS:
                    raise
                answer = self._ask("GET", path, "OPEN", arguments)
            else:
                if stop is None:
                    whole.check_whole(len(data))
                return data
        raise AssertionError("the loop returns or raises")

    def status(self, path: str) -> HdfsStatus:
        return _parse_status(self._ask("GET", path, "GETFILESTATUS").json()["FileStatus"])

    def list_folder(self, path: str, start_after: str) -> Iterator[HdfsStatus]:
        while True:
            after = {"startAfter": start_after} if start_after else {}
            listing = self._ask("GET", path, "LISTSTATUS_BATCH", after).json()["DirectoryListing"]
            page = listing["partialListing"]["FileStatuses"]["FileStatus"]
            for found in page:
                yield _parse_status(found)
            if not page or not listing["remainingEntries"]:
                return
            start_after = page[-1]["pathSuffix"]

    def log_edit(self, path: str, found: HdfsStatus) -> None:
        times = {"modificationtime": str(found.modified_ms), "accesstime": "-1"}
        self._ask("PUT", path, "SETTIMES", times)

    # -- requests in general ---------------------------------------------------------------------

    def _ask(
        self,
        method: str,
        path: str,
        operation: str,
        arguments: Mapping[str, str] | None = None,
        *,
        repeat: bool = True,
    ) -> requests.Response:
        """Send a request to the active NameNode, which is found by asking all of them.

        If there was no answer it is sent again, unless ``repeat`` is False: then the answer to a
        second one could differ.
        """
        return self._ask_any(method, path, operation, arguments, repeat=repeat)[1]

    def _ask_any(
        self,
        method: str,
        path: str,
        operation: str,
        arguments: Mapping[str, str] | None = None,
        *,
        repeat: bool = True,
    ) -> tuple[int, requests.Response]:
        """Ask the NameNodes in turn; return which of them has answered, and the answer."""
        parameters = {"op": operation, **self._identity, **(arguments or {})}
        for turn in range(1, self._turns + 1):
            namenode = self._active
            address = f"{self._namenodes[namenode]}/webhdfs/v1{quote(path)}"
            try:
                return namenode, self._send(method, address, params=parameters)
            except _NoAnswer as error:
                if turn == self._turns or not (repeat or error.unsent):
                    raise
            except _Elsewhere:
                if turn == self._turns:
                    raise
            self._pass_over(namenode)
        raise AssertionError("the loop returns or raises")

    @property
    def _turns(self) -> int:
        return max(_ATTEMPTS, len(self._namenodes) + 1)

    def _pass_over(self, namenode: int) -> None:
        """From now on the next one is asked, unless another thread has found the active one."""
        if self._active == namenode:
            self._active = (namenode + 1) % len(self._namenodes)

    def _location(self, answer: requests.Response) -> str:
        """The DataNode that the NameNode has chosen: for a read, one that is near to us."""
        location = str(answer.json()["Location"])
        for shown, reached in self._data_proxy.items():
            if location.startswith(shown):
                return str(reached) + location[len(shown) :]
        return location

    def _send(self, method: str, address: str, **arguments: Any) -> requests.Response:
        try:
            answer = self._session.request(
                method,
                address,
                timeout=(_CONNECT_TIMEOUT_S, self._timeout_s),
                allow_redirects=False,
                **arguments,
            )
        except requests.RequestException as error:
            # Not chained: the original has the address, and so maybe a token.
            raise _no_answer(address, error) from None
        if answer.status_code < 300:
            return answer
        raise _failure(answer)


class _NoAnswer(OSError):
    """No whole answer came; the request may have taken effect."""

    unsent = False
    """No connection was made: it took no effect."""
    hint: str | None = None


class _Elsewhere(RemoteError):
    """This NameNode is not the active one, and has done nothing."""


def _no_answer(address: str, error: requests.RequestException) -> _NoAnswer:
    host = urlsplit(address).netloc
    reason = _QUERY.sub("", str(error))
    failed = _NoAnswer(f"{type(error).__name__} of {host}: {reason}")
    failed.unsent = _is_unsent(error)
    if isinstance(error, requests.exceptions.SSLError):
        failed.hint = "the certificate is not trusted: set session_verify to a certificate file"
    elif failed.unsent:
        failed.hint = "nothing answers: check host and HTTP port, and that the cluster runs"
    return failed


def _is_unsent(error: requests.RequestException) -> bool:
    """Whether the connection could not even be made."""
    if isinstance(error, requests.exceptions.ConnectTimeout | requests.exceptions.SSLError):
        return True
    cause = error.args[0] if error.args else None
    return type(getattr(cause, "reason", None)).__name__ in (
        "NewConnectionError",
        "NameResolutionError",
    )


def _failure(answer: requests.Response) -> Exception:
    """The exception for an answer that tells of one."""
    try:
        told = answer.json()["RemoteException"]
        kind = str(told.get("javaClassName") or told["exception"])
        text = str(told["message"])
    except (ValueError, LookupError, TypeError):
        return _unexpected(answer)
    found = remote_failure(kind, _QUERY.sub("", text))
    if isinstance(found, RemoteError) and kind.rpartition(".")[2] in _ELSEWHERE:
        return _Elsewhere(str(found), found.hint, retriable=True)
    return found


def _unexpected(answer: requests.Response) -> Exception:
    """For an answer that no NameNode or DataNode gives: of its HTTP status alone."""
    what = f"HTTP {answer.status_code} {answer.reason}"
    if answer.status_code in (401, 407):
        hint = "the cluster asks who you are: set token, or kerberos=True and run kinit"
        return RemoteError(what, hint, retriable=False)
    if answer.status_code in (404, 405, 301, 302, 307, 308):
        hint = "this does not answer as WebHDFS does: check host and HTTP port"
        return RemoteError(what, hint, retriable=False)
    retriable = answer.status_code >= 500 or answer.status_code in (408, 429)
    return RemoteError(what, None, retriable)


def _parse_status(found: Mapping[str, Any]) -> HdfsStatus:
    return HdfsStatus(
        name=str(found["pathSuffix"]),
        is_folder=found["type"] == "DIRECTORY",
        size_bytes=int(found["length"]),
        modified_ms=int(found["modificationTime"]),
    )


def _identity(options: Mapping[str, Any]) -> dict[str, str]:
    """Our identity, sent with each request."""
    told = {"delegation": "token", "user.name": "user", "doas": "proxy_to"}
    return {key: str(options[name]) for key, name in told.items() if options.get(name)}


def _make_session(options: Mapping[str, Any]) -> requests.Session:
    session = requests.Session()
    # Neither ~/.netrc nor a proxy stands between us and a cluster; looking for them takes longer
    # than some requests.
    session.trust_env = False
    session.verify = options.get("session_verify", True)
    session.cert = options.get("session_cert")
    session.headers["X-XSRF-HEADER"] = "txnlog"  # where dfs.webhdfs.rest-csrf is enabled
    session.auth = _kerberos(options)
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=_POOLED, pool_connections=_POOLED))
    return session


def _kerberos(options: Mapping[str, Any]) -> Any:
    if not options.get("kerberos"):
        return None
    try:
        from requests_kerberos import HTTPKerberosAuth
    except ImportError as error:
        raise UnsupportedFilesystem(
            f"the option kerberos needs requests-kerberos: {how_to_install('hdfs-kerberos')}"
        ) from error
    return HTTPKerberosAuth(**(options.get("kerb_kwargs") or {}))
