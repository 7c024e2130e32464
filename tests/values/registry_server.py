"""A registry over real HTTP, that remembers what it was asked: Confluent's API, and Apicurio's."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

MILLION = 1_000_000


@dataclass
class Registry:
    """What the server has, and was asked."""

    url: str = ""
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    """By name the ids of its versions."""
    asked: list[str] = field(default_factory=list)
    credentials: list[str | None] = field(default_factory=list)
    answers: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    """What it answers instead: by path, a status, headers and a body."""
    everything: bytes | None = None
    """What it answers whatever it is asked, if not None."""

    def add(self, subject: str, schema_id: int, schema: str, **more: Any) -> None:
        self.schemas[schema_id] = {"schema": schema, **more}
        self.subjects.setdefault(subject, []).append(schema_id)

    def answer(self, path: str, query: str) -> tuple[int, dict[str, str], bytes]:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        if self.everything is not None:
            return 200, {}, self.everything
        if path in self.answers:
            return self.answers[path]
        if parts[:3] == ["apis", "registry", "v2"]:
            return self._own_api(parts[3:], query)
        match parts:
            case ["schemas", "ids", number] if int(number) in self.schemas:
                return 200, {}, json.dumps(self.schemas[int(number)]).encode()
            case ["subjects", subject, "versions", version] if subject in self.subjects:
                ids = self.subjects[subject]
                at = len(ids) if version == "latest" else int(version)
                if at <= len(ids):
                    found = {"subject": subject, "version": at, "id": ids[at - 1]}
                    return 200, {}, json.dumps({**found, **self.schemas[ids[at - 1]]}).encode()
        return 404, {}, json.dumps({"error_code": 40403, "message": "not found"}).encode()

    def _own_api(self, parts: list[str], query: str) -> tuple[int, dict[str, str], bytes]:
        """As Apicurio answers; global ids are the ids and a million."""
        match parts:
            case ["search", "artifacts"]:
                found = self.schemas.get(int(query.removeprefix("globalId=")) - MILLION)
                artifacts = [] if found is None else [{"type": found.get("schemaType", "AVRO")}]
                return 200, {}, json.dumps({"artifacts": artifacts, "count": 1}).encode()
            case ["ids", "globalIds", number] if int(number) - MILLION in self.schemas:
                return 200, {}, self.schemas[int(number) - MILLION]["schema"].encode()
            case ["ids", "globalIds", number, "references"]:
                references = self.schemas[int(number) - MILLION].get("references", [])
                return 200, {}, json.dumps(references).encode()
            case ["groups", "shop", "artifacts", subject, *which] if subject in self.subjects:
                ids = self.subjects[subject]
                at = len(ids) if which == ["meta"] else int(which[1])
                kind = self.schemas[ids[at - 1]].get("schemaType", "AVRO")
                meta = {"globalId": ids[at - 1] + MILLION, "type": kind, "version": str(at)}
                return 200, {}, json.dumps(meta).encode()
        return 404, {}, b'{"error_code": 404, "message": "not found"}'


@contextmanager
def serving() -> Iterator[Registry]:
    """A registry on a free port of this machine."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, query = urlsplit(self.path)[2:4]
            registry.asked.append(path)
            registry.credentials.append(self.headers.get("Authorization"))
            status, headers, body = registry.answer(path, query)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "Content-Length" not in headers:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
