"""A NameNode and a DataNode in the test process, over HTTP: as WebHDFS of Hadoop 3.4.2 answers.

Statuses, JSON and texts were taken down from the real one, and that a rename is decided under a
lock, a file shows while it is written, and DataNodes close the connection. It can be told to fail
where the real one does not on demand.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

_PREFIX = "/webhdfs/v1"
_PACKAGES = {
    "FileNotFoundException": "java.io",
    "IOException": "java.io",
    "StandbyException": "org.apache.hadoop.ipc",
    "AccessControlException": "org.apache.hadoop.security",
    "SafeModeException": "org.apache.hadoop.hdfs.server.namenode",
}
_STATUSES = {"FileNotFoundException": 404, "IllegalArgumentException": 400}


class Refusal(Exception):
    """An exception of Java's: its name and text."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name, text)
        self.name = name
        self.text = text


@dataclass
class File:
    """A file; one that is being written has no ``data`` yet."""

    data: bytes = b""
    modified_ms: int = 0
    flags: str = ""
    replication: int = 1


@dataclass(frozen=True)
class Request:
    """What was asked. ``step`` is "name" or "data", for the kind of node."""

    step: str
    operation: str
    path: str
    arguments: dict[str, str]


@dataclass
class FakeWebHdfs:
    """The files, what was asked, and what is to go wrong.

    ``fault`` is asked about each request: "" for none; "refuse" cuts the connection before anything
    is done, "lose" after it, "half" sends half of the answer; "503" is an answer of a proxy; any
    other text is the name of an exception of Java's.
    """

    files: dict[str, File] = field(default_factory=dict)
    folders: set[str] = field(default_factory=lambda: {"/"})
    requests: list[Request] = field(default_factory=list)
    edits: list[str] = field(default_factory=list)
    """What the NameNode has logged."""
    fault: Callable[[Request], str] = lambda _: ""
    page: int = 1000
    renames_with_options: bool = True
    """False: as gateways do, which answer {"boolean": false} whatever stands in the way."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    port: int = 0

    @property
    def operations(self) -> list[str]:
        """What was asked, without the paths."""
        return [f"{r.step} {r.operation}" for r in self.requests]

    # -- the NameNode ----------------------------------------------------------------------------

    def _make_folders(self, path: str) -> None:
        made = path
        while made not in self.folders:
            if made in self.files:
                raise Refusal("ParentNotDirectoryException", f"{made} (is not a directory)")
            self.folders.add(made)
            self.edits.append(f"mkdir {made}")
            made = _parent(made)

    def _children(self, path: str) -> list[str]:
        below = path.rstrip("/") + "/"
        found = [p for p in (*self.files, *self.folders) if p.startswith(below) and p != "/"]
        return sorted({p[len(below) :].partition("/")[0] for p in found})

    def _status(self, path: str, suffix: str = "") -> dict[str, Any]:
        file = self.files.get(path)
        if file is None and path not in self.folders:
            raise Refusal("FileNotFoundException", f"File does not exist: {path}")
        told = {"accessTime": 0, "childrenNum": 0, "group": "supergroup", "owner": "root"}
        kept = file or File()
        return told | {
            "length": len(kept.data),
            "modificationTime": kept.modified_ms,
            "pathSuffix": suffix,
            "permission": "644",
            "replication": kept.replication,
            "type": "DIRECTORY" if file is None else "FILE",
        }

    def get_file_status(self, path: str, _: dict[str, str]) -> dict[str, Any]:
        return {"FileStatus": self._status(path)}

    def list_status_batch(self, path: str, arguments: dict[str, str]) -> dict[str, Any]:
        if path not in self.folders and path not in self.files:
            raise Refusal("FileNotFoundException", f"File {path} does not exist.")
        after = arguments.get("startAfter", "")
        names = [n for n in self._children(path) if n > after]
        found = [self._status(f"{path.rstrip('/')}/{n}", n) for n in names[: self.page]]
        if path in self.files:
            found = [self._status(path)]
        return {
            "DirectoryListing": {
                "partialListing": {"FileStatuses": {"FileStatus": found}},
                "remainingEntries": max(len(names) - self.page, 0),
            }
        }

    def mkdirs(self, path: str, _: dict[str, str]) -> dict[str, Any]:
        self._make_folders(path)
        return {"boolean": True}

    def delete(self, path: str, _: dict[str, str]) -> dict[str, Any]:
        if path in self.folders and self._children(path):
            text = f"`{path} is non empty': Directory is not empty"
            raise Refusal("PathIsNotEmptyDirectoryException", text)
        there = path in self.files or path in self.folders
        self.files.pop(path, None)
        self.folders.discard(path)
        if there:
            self.edits.append(f"delete {path}")
        return {"boolean": there}

    def rename(self, source: str, arguments: dict[str, str]) -> dict[str, Any] | None:
        target = arguments["destination"]
        if "renameoptions" not in arguments or not self.renames_with_options:
            there = target in self.files or target in self.folders
            if there or source not in self.files or _parent(target) not in self.folders:
                return {"boolean": False}
            self._rename(source, target)
            return {"boolean": True}
        if source not in self.files:
            raise Refusal("FileNotFoundException", f"rename source {source} is not found.")
        if target in self.folders:
            text = f"Source {source} and destination {target} must both be directories"
            raise Refusal("IOException", text)
        if target in self.files:
            text = f"rename destination {target} already exists"
            raise Refusal("FileAlreadyExistsException", text)
        if _parent(target) in self.files:
            text = f"{_parent(target)} (is not a directory)"
            raise Refusal("ParentNotDirectoryException", text)
        if _parent(target) not in self.folders:
            text = f"rename destination parent {target} not found."
            raise Refusal("FileNotFoundException", text)
        self._rename(source, target)
        return None

    def _rename(self, source: str, target: str) -> None:
        self.files[target] = self.files.pop(source)
        self.edits.append(f"rename {target}")

    def set_times(self, path: str, arguments: dict[str, str]) -> None:
        self._status(path)
        self.files[path].modified_ms = int(arguments["modificationtime"])
        self.edits.append(f"times {path}")

    def create(self, path: str, arguments: dict[str, str]) -> dict[str, Any]:
        return self._redirect("CREATE", path, arguments)

    def open(self, path: str, arguments: dict[str, str]) -> dict[str, Any]:
        if path in self.folders:
            raise Refusal("FileNotFoundException", f"Path is not a file: {path}")
        if path not in self.files:
            raise Refusal("FileNotFoundException", f"File {path} not found.")
        offset, length = int(arguments.get("offset", 0)), len(self.files[path].data)
        if offset and offset >= length:
            text = f"Offset={offset} out of the range [0, {length}); OPEN, path={path}"
            raise Refusal("IOException", text)
        return self._redirect("OPEN", path, arguments)

    def _redirect(self, operation: str, path: str, arguments: dict[str, str]) -> dict[str, Any]:
        told = {k: v for k, v in arguments.items() if k not in ("op", "noredirect")}
        # The real one encodes the flags twice.
        told["createflag"] = quote(told.get("createflag", ""))
        query = "&".join(f"{name}={quote(value)}" for name, value in told.items())
        where = f"http://127.0.0.1:{self.port}{_PREFIX}{quote(path)}"
        return {"Location": f"{where}?op={operation}&namenoderpcaddress=127.0.0.1:9&{query}"}

    # -- the DataNode ----------------------------------------------------------------------------

    def begin_file(self, path: str, arguments: dict[str, str]) -> File:
        if path in self.files:
            text = f"{path} for client 127.0.0.1 already exists\n\tat org.apache.hadoop"
            raise Refusal("FileAlreadyExistsException", text)
        self._make_folders(_parent(path))
        file = File(
            flags=unquote(arguments.get("createflag", "")),
            replication=int(arguments.get("replication", 1)),
            modified_ms=int(time.time() * 1000),
        )
        self.files[path] = file
        self.edits.append(f"create {path}")
        return file

    def read(self, path: str, arguments: dict[str, str]) -> bytes:
        start = int(arguments.get("offset", 0))
        length = int(arguments["length"]) if "length" in arguments else None
        return self.files[path].data[start : None if length is None else start + length]


_NAME_NODE = {
    ("GET", "GETFILESTATUS"): FakeWebHdfs.get_file_status,
    ("GET", "LISTSTATUS_BATCH"): FakeWebHdfs.list_status_batch,
    ("GET", "OPEN"): FakeWebHdfs.open,
    ("PUT", "CREATE"): FakeWebHdfs.create,
    ("PUT", "MKDIRS"): FakeWebHdfs.mkdirs,
    ("PUT", "RENAME"): FakeWebHdfs.rename,
    ("PUT", "SETTIMES"): FakeWebHdfs.set_times,
    ("DELETE", "DELETE"): FakeWebHdfs.delete,
}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    hdfs: FakeWebHdfs

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path.removeprefix(_PREFIX))
        arguments = {k: v[-1] for k, v in parse_qs(parts.query, keep_blank_values=True).items()}
        step = "data" if "namenoderpcaddress" in arguments else "name"
        request = Request(step, arguments.get("op", ""), path, arguments)
        self.hdfs.requests.append(request)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.hdfs.fault(request)
        if fault == "refuse":
            self.close_connection = True
            return
        try:
            if fault in ("", "lose", "half"):
                status, answer, kind = self._carry_out(request, body)
            elif fault == "503":
                status, answer, kind = 503, b"<html>upstream</html>", "text/html"
            else:
                status, answer, kind = _describe(Refusal(fault, "told so"))
        except Refusal as refusal:
            status, answer, kind = _describe(refusal)
        if fault == "lose":
            self.close_connection = True
            return
        self._send(status, answer, kind, close=step == "data", half=fault == "half")

    def _carry_out(self, request: Request, body: bytes) -> tuple[int, bytes, str]:
        hdfs, path, arguments = self.hdfs, request.path, request.arguments
        if request.step == "name":
            call = _NAME_NODE.get((self.command, request.operation))
            if call is None:
                text = f'Invalid value for webhdfs parameter "op": {request.operation} is not valid'
                raise Refusal("IllegalArgumentException", text)
            with hdfs.lock:
                found = call(hdfs, path, arguments)
            if found is None:
                return 200, b"", "application/octet-stream"
            return 200, json.dumps(found).encode(), "application/json"
        if request.operation == "OPEN":
            return 200, hdfs.read(path, arguments), "application/octet-stream"
        with hdfs.lock:
            file = hdfs.begin_file(path, arguments)
        file.data = body  # seen empty until now
        return 201, b"", "application/octet-stream"

    def _send(
        self, status: int, body: bytes, kind: str, *, close: bool = False, half: bool = False
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if close:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if half else body)
        self.close_connection = self.close_connection or close or half

    do_GET = do_PUT = do_DELETE = _answer  # noqa: N815 - the base class's names

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    """With fewer, connections that come at one moment wait for a second."""


def _describe(refusal: Refusal) -> tuple[int, bytes, str]:
    package = _PACKAGES.get(refusal.name, "org.apache.hadoop.fs")
    told = {
        "exception": refusal.name,
        "javaClassName": f"{package}.{refusal.name}",
        "message": refusal.text,
    }
    status = _STATUSES.get(refusal.name, 403)
    return status, json.dumps({"RemoteException": told}).encode(), "application/json"


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


@contextmanager
def run_fake_webhdfs() -> Iterator[FakeWebHdfs]:
    """A cluster that answers until the block ends."""
    hdfs = FakeWebHdfs()
    handler = type("Handler", (_Handler,), {"hdfs": hdfs})
    server = _Server(("127.0.0.1", 0), handler)
    hdfs.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hdfs
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
