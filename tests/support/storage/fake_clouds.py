"""Google Cloud Storage and Azure Blob Storage over HTTP in the test process, as far as we use them.

Creates race honestly: condition and write are one step. What real servers and emulators do not show
on demand is planned: lost answers, cut bodies, errors. Written from the two services' references,
with no code shared with the adapters.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

CONTAINER = "test"
"""The bucket, or container, that is there."""
PAGE = 100
"""So many names a page of a listing has."""
_SESSION_AT_REST = 308


@dataclass(frozen=True)
class Reply:
    """What a server answers."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class Lost:
    """A plan: the request takes effect, and its answer is lost."""


class Refused:
    """A plan: the connection is closed before anything happens."""


class Cut:
    """A plan: the connection is closed within the answer's body."""


Plan = Reply | type[Lost] | type[Refused] | type[Cut] | None


class Cloud:
    """What the server holds, what it was asked, and what it is to do to the next requests.

    Attributes:
        asked: methods and paths with queries, in order.
        plans: for the next requests, one each; None is the truth.
        forever: for all that follow.
    """

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.pending: dict[str, Any] = {}
        self.lock = threading.Lock()
        self.numbers = itertools.count()
        self.asked: list[tuple[str, str]] = []
        self.plans: deque[Plan] = deque()
        self.forever: Plan = None
        self.url = ""

    def plan(self) -> Plan:
        with self.lock:
            return self.plans.popleft() if self.plans else self.forever

    def names(self, prefix: str, delimiter: str) -> tuple[list[str], list[str]]:
        """Objects, and what those deeper down begin with."""
        found, folders = [], set()
        for name in sorted(self.objects):
            if name.startswith(prefix):
                rest = name[len(prefix) :]
                if delimiter and delimiter in rest:
                    folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
                else:
                    found.append(name)
        return found, sorted(folders)

    def put(self, name: str, data: bytes) -> None:
        self.objects[name] = (data, time.time())


@dataclass(frozen=True)
class Request:
    """A request as the services see it: the path's parts are unquoted."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


Answerer = Callable[[Cloud, Request], Reply]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    cloud: Cloud
    answerer: Answerer

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = self._read_chunks()
        query = {k: v[0] for k, v in parse_qs(parts.query, keep_blank_values=True).items()}
        request = Request(self.command, parts.path, query, self.headers, body)  # type: ignore[arg-type]
        self.cloud.asked.append((self.command, self.path))
        plan = self.cloud.plan()
        if plan is Refused:
            self.close_connection = True
            return
        reply = plan if isinstance(plan, Reply) else type(self).answerer(self.cloud, request)
        if plan is Lost:
            self.close_connection = True
            return
        self._send(reply, cut=plan is Cut)

    def _read_chunks(self) -> bytes:
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _send(self, reply: Reply, *, cut: bool) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if "Content-Length" not in reply.headers:
            self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if cut:
            self.close_connection = True
            self.wfile.write(reply.body[: len(reply.body) // 2])
        elif self.command != "HEAD":
            self.wfile.write(reply.body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815 - the base class's names

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 64
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep quiet about connections that were cut."""


@contextmanager
def _running(answerer: Answerer) -> Iterator[Cloud]:
    cloud = Cloud()
    handler = type("Handler", (_Handler,), {"cloud": cloud, "answerer": staticmethod(answerer)})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    cloud.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield cloud
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# -- Google Cloud Storage ------------------------------------------------------------------------


@contextmanager
def fake_gcs() -> Iterator[Cloud]:
    """The JSON API with a bucket ``test``."""
    with _running(_gcs) as cloud:
        yield cloud


def gcs_options(cloud: Cloud) -> dict[str, Any]:
    """Storage options for :func:`fake_gcs`."""
    return {"endpoint_url": cloud.url, "token": "anon"}


def gcs_error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Reply:
    """An error as the service gives it."""
    body = json.dumps({"error": {"code": status, "message": message}}).encode()
    return Reply(status, body, {"Content-Type": "application/json", **(headers or {})})


def _gcs(cloud: Cloud, request: Request) -> Reply:
    if request.path.startswith("/session/"):
        return _gcs_session(cloud, request)
    found = re.fullmatch(r"(/upload)?/storage/v1/b/([^/]+)/o(?:/(.+))?", request.path)
    assert found, request
    if unquote(found[2]) != CONTAINER:
        return gcs_error(404, "The specified bucket does not exist.")
    if found[1]:
        return _gcs_upload(cloud, request)
    if found[3] is None:
        return _gcs_list(cloud, request)
    name = unquote(found[3])
    with cloud.lock:
        held = cloud.objects.get(name)
        if held is None:
            return gcs_error(404, f"No such object: {CONTAINER}/{name}")
        if request.method == "DELETE":
            del cloud.objects[name]
            return Reply(204)
    if request.query.get("alt") == "media":
        return _ranged(held[0], request.headers.get("Range"), {})
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(held[1]))
    return Reply(200, json.dumps({"size": str(len(held[0])), "timeCreated": created}).encode())


def _gcs_upload(cloud: Cloud, request: Request) -> Reply:
    name = request.query["name"]
    if request.query["uploadType"] == "resumable":
        session = str(next(cloud.numbers))
        cloud.pending[session] = (name, bytearray())
        return Reply(200, b"", {"Location": f"{cloud.url}/session/{session}"})
    assert request.query["uploadType"] == "media"
    with cloud.lock:
        if request.query.get("ifGenerationMatch") == "0" and name in cloud.objects:
            return gcs_error(412, "At least one of the pre-conditions you specified did not hold.")
        cloud.put(name, request.body)
    return Reply(200, json.dumps({"name": name}).encode())


def _gcs_session(cloud: Cloud, request: Request) -> Reply:
    key = request.path.rpartition("/")[2]
    with cloud.lock:
        if key not in cloud.pending:
            return gcs_error(404, "no such upload")
        if request.method == "DELETE":
            del cloud.pending[key]
            return Reply(499)
        name, data = cloud.pending[key]
        found = re.fullmatch(r"bytes (?:\*|(\d+)-(\d+))/(\d+)", request.headers["Content-Range"])
        assert found, request.headers["Content-Range"]
        if found[1] is not None:
            assert len(request.body) == int(found[2]) - int(found[1]) + 1
            if int(found[1]) > len(data):  # the service ignores bytes that it has
                return gcs_error(400, "bytes are missing before these")
            data[int(found[1]) :] = request.body
        if len(data) == int(found[3]):
            cloud.put(name, bytes(data))
            return Reply(200, json.dumps({"name": name}).encode())
        seen = {"Range": f"bytes=0-{len(data) - 1}"} if data else {}
        return Reply(_SESSION_AT_REST, b"", seen)


def _gcs_list(cloud: Cloud, request: Request) -> Reply:
    query = request.query
    with cloud.lock:
        names, folders = cloud.names(query.get("prefix", ""), query.get("delimiter", ""))
        sizes = {name: len(cloud.objects[name][0]) for name in names}
    names = [name for name in names if name >= query.get("startOffset", "")]
    begin = int(query.get("pageToken") or 0)
    page: dict[str, Any] = {}
    if names[begin:]:
        shown = names[begin : begin + PAGE]
        page["items"] = [{"name": name, "size": str(sizes[name])} for name in shown]
    if folders and begin == 0:
        page["prefixes"] = folders
    if names[begin + PAGE :]:
        page["nextPageToken"] = str(begin + PAGE)
    return Reply(200, json.dumps(page).encode(), {"Content-Type": "application/json"})


def _ranged(data: bytes, asked: str | None, headers: Mapping[str, str]) -> Reply:
    if asked is None:
        return Reply(200, data, headers)
    found = re.fullmatch(r"bytes=(\d+)-(\d+)", asked)
    assert found, asked
    start, stop = int(found[1]), min(int(found[2]) + 1, len(data))
    if start >= len(data):
        return Reply(416, b"", {"x-ms-error-code": "InvalidRange"})
    part = data[start:stop]
    shown = {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}
    return Reply(206, part, {**headers, **shown})


# -- Azure ---------------------------------------------------------------------------------------

ACCOUNT = "devaccount"
ACCOUNT_KEY = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA=="


@contextmanager
def fake_azure() -> Iterator[Cloud]:
    """The Blob service with a container ``test``."""
    with _running(_azure) as cloud:
        yield cloud


def azure_options(cloud: Cloud) -> dict[str, Any]:
    """Storage options for :func:`fake_azure`."""
    return {
        "connection_string": f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};"
        f"AccountKey={ACCOUNT_KEY};BlobEndpoint={cloud.url}/{ACCOUNT};"
    }


def azure_error(
    status: int, code: str, message: str = "", headers: Mapping[str, str] | None = None
) -> Reply:
    """An error as the service gives it."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    given = {"x-ms-error-code": code, "Content-Type": "application/xml", **(headers or {})}
    return Reply(status, body.encode(), given)


def _azure(cloud: Cloud, request: Request) -> Reply:
    _, account, container, *rest = request.path.split("/", 3)
    assert account == ACCOUNT
    assert request.headers.get("Authorization", "").startswith(f"SharedKey {ACCOUNT}:")
    if unquote(container) != CONTAINER:
        return azure_error(404, "ContainerNotFound", "The specified container does not exist.")
    if not rest:
        assert request.query["comp"] == "list"
        return _azure_list(cloud, request)
    name = unquote(rest[0])
    if request.method == "PUT":
        return _azure_put(cloud, request, name)
    with cloud.lock:
        held = cloud.objects.get(name)
        if held is None:
            return azure_error(404, "BlobNotFound", "The specified blob does not exist.")
        if request.method == "DELETE":
            del cloud.objects[name]
            return Reply(202)
    data, modified = held
    headers = {
        "ETag": f'"{int(modified * 1e6):x}"',
        "Last-Modified": formatdate(modified, usegmt=True),
        "x-ms-blob-type": "BlockBlob",
    }
    if request.method == "HEAD":
        return Reply(200, b"", {**headers, "Content-Length": str(len(data))})
    return _ranged(data, request.headers.get("x-ms-range"), headers)


def _azure_put(cloud: Cloud, request: Request, name: str) -> Reply:
    done = {"ETag": '"0"', "Last-Modified": formatdate(usegmt=True)}
    with cloud.lock:
        blocks = cloud.pending.setdefault(name, {})
        if request.query.get("comp") == "block":
            blocks[request.query["blockid"]] = request.body
            return Reply(201)
        if request.headers.get("If-None-Match") == "*" and name in cloud.objects:
            return azure_error(409, "BlobAlreadyExists", "The specified blob already exists.")
        if request.query.get("comp") == "blocklist":
            ids = [str(block.text) for block in ET.fromstring(request.body)]
            if not blocks.keys() >= set(ids):
                return azure_error(400, "InvalidBlockList")
            cloud.put(name, b"".join(blocks[block_id] for block_id in ids))
        else:
            cloud.put(name, request.body)
    return Reply(201, b"", done)


def _azure_list(cloud: Cloud, request: Request) -> Reply:
    query = request.query
    with cloud.lock:
        names, folders = cloud.names(query.get("prefix", ""), query.get("delimiter", ""))
        sizes = {name: len(cloud.objects[name][0]) for name in names}
    begin = int(query.get("marker") or 0)
    shown = "".join(
        f"<Blob><Name>{escape(name)}</Name><Properties><Content-Length>{sizes[name]}"
        "</Content-Length><BlobType>BlockBlob</BlobType></Properties></Blob>"
        for name in names[begin : begin + PAGE]
    )
    if begin == 0:
        shown += "".join(
            f"<BlobPrefix><Name>{escape(name)}</Name></BlobPrefix>" for name in folders
        )
    marker = str(begin + PAGE) if names[begin + PAGE :] else ""
    body = (
        f"<?xml version='1.0' encoding='utf-8'?><EnumerationResults><Blobs>{shown}</Blobs>"
        f"<NextMarker>{marker}</NextMarker></EnumerationResults>"
    )
    return Reply(200, body.encode(), {"Content-Type": "application/xml"})
