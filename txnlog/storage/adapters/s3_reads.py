"""Reads of S3 objects that take a third of the processor time that botocore takes for one.

A read that botocore has made, and that was answered, is the pattern of those that follow: the same
request for another key and range, signed again, over the same connections. Whatever comes back that
is not simply the object is left to botocore, with its retries and errors.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, urlsplit

import aiohttp
from botocore.awsrequest import AWSPreparedRequest  # type: ignore[import-untyped]
from botocore.exceptions import ClientError, HTTPClientError  # type: ignore[import-untyped]

from txnlog.storage.whole import TooLarge, check_whole

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_AUTHORIZATION: Final = re.compile(
    _ALGORITHM + r" Credential=[^,]+/\d{8}/([^/,]+)/s3/aws4_request, SignedHeaders=([^,]+), .*"
)
_OF_ONE_REQUEST: Final = frozenset(
    {
        "amz-sdk-invocation-id",
        "amz-sdk-request",
        "authorization",
        "range",
        "x-amz-date",
        "x-amz-security-token",
        "x-amzn-trace-id",
    }
)
"""Headers that the next request must not repeat."""
_EVENT: Final = "before-send.s3.GetObject"
_REFUSED: Final = frozenset({400, 401, 403})
_NO_SUCH_KEY: Final = re.compile(rb"<Code>NoSuchKey</Code>")

_SENT: ContextVar[list[Any] | None] = ContextVar("_SENT", default=None)


@contextmanager
def noting_requests() -> Iterator[list[Any]]:
    """The reads that botocore sends from this task in the block, of a client that is watched."""
    sent: list[Any] = []
    token = _SENT.set(sent)
    try:
        yield sent
    finally:
        _SENT.reset(token)


def watch_requests(client: Any) -> None:
    """Have a client of botocore's tell :func:`noting_requests` which reads it sends."""
    client.meta.events.register_last(_EVENT, _note, unique_id="txnlog-note-reads")


def _note(request: Any, **_: object) -> None:
    sent = _SENT.get()
    if sent is not None:
        sent.append(request)


@dataclass(slots=True)
class QuickReads:
    """The read patterns of one client, by bucket."""

    _patterns: dict[str, _Pattern | None] = field(default_factory=dict)
    """By bucket; None if quick reads are refused there."""

    def learn(self, client: Any, bucket: str, key: str, request: Any) -> None:
        """Take a request for an object, which was answered, for the pattern of others.

        Connections and credentials are where botocore has kept them for ten years, and s3fs looks
        for them too; with a client that has none there, every read is botocore's.
        """
        if self._patterns.get(bucket, request) is None or not _is_known(client):
            return
        pattern = _pattern_of(client, request, key)
        if pattern is not None:
            self._patterns[bucket] = pattern

    async def read(
        self, client: Any, bucket: str, key: str, byte_range: str | None
    ) -> bytes | None:
        """The object, or a part such as ``bytes=0-9``; None if botocore must be asked.

        Raises ClientError if there is no such object, and TooLarge.
        """
        pattern = self._patterns.get(bucket)
        if pattern is None or pattern.client is not client:
            return None
        try:
            signer, endpoint = client._request_signer, client._endpoint  # noqa: SLF001 - see learn
            credentials = await signer._credentials.get_frozen_credentials()  # noqa: SLF001
            request = pattern.request(key, byte_range, credentials, time.gmtime())
            await client.meta.events.emit(_EVENT, request=request)
            answer = await endpoint.http_session.send(request)
            try:
                if byte_range is None:
                    check_whole(answer.headers.get("content-length"))
                body: bytes = await answer.content
            finally:
                answer.raw.close()
        except TooLarge:
            raise
        except (HTTPClientError, aiohttp.ClientError, OSError):
            return None
        status = answer.status_code
        if status == 404 and _NO_SUCH_KEY.search(body):
            metadata = {"HTTPStatusCode": status, "HTTPHeaders": dict(answer.headers)}
            error = {"Code": "NoSuchKey", "Message": "The specified key does not exist."}
            raise ClientError({"Error": error, "ResponseMetadata": metadata}, "GetObject")
        if status in _REFUSED:
            # This server needs something else, which botocore handles.
            self._patterns[bucket] = None
        complete = status == (206 if byte_range else 200) and _is_whole(answer.headers, body)
        return body if complete else None


def _is_known(client: Any) -> bool:
    credentials = getattr(getattr(client, "_request_signer", None), "_credentials", None)
    connections = getattr(getattr(client, "_endpoint", None), "http_session", None)
    return hasattr(credentials, "get_frozen_credentials") and hasattr(connections, "send")


def _is_whole(headers: Mapping[str, str], body: bytes) -> bool:
    """Whether a body has the announced length, and checksum if there is one."""
    if int(headers.get("content-length", len(body))) != len(body):
        return False
    told = headers.get("x-amz-checksum-crc32", "")
    if not told or "-" in told or "content-range" in headers:
        return True  # of parts, or of more than was read
    import binascii

    return binascii.a2b_base64(told) == binascii.crc32(body).to_bytes(4, "big")


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A signed request for an object, without its key, range and signature.

    ``signed`` are the names of the signed headers, without those that differ from request to
    request.
    """

    client: Any
    base_url: str
    host: str
    headers: Mapping[str, str]
    signed: frozenset[str]
    region: str

    def request(
        self, key: str, byte_range: str | None, credentials: Any, now: time.struct_time
    ) -> AWSPreparedRequest:
        """The request for an object, signed at a time."""
        url = self.base_url + quote(key, safe="/~")
        headers = dict(self.headers)
        if byte_range is not None:
            headers["Range"] = byte_range
        headers["X-Amz-Date"] = time.strftime("%Y%m%dT%H%M%SZ", now)
        if credentials.token:
            headers["X-Amz-Security-Token"] = credentials.token
        headers["Authorization"] = self._signature(url, headers, credentials)
        return AWSPreparedRequest("GET", url, headers, None, stream_output=True)

    def _signature(self, url: str, headers: Mapping[str, str], credentials: Any) -> str:
        """The header that AWS Signature Version 4 prescribes."""
        at = headers["X-Amz-Date"]
        lower = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
        lower["host"] = self.host
        names = sorted(name for name in lower if name in self.signed or name in _OF_ONE_REQUEST)
        signed = ";".join(names)
        lines = ["GET", urlsplit(url).path, "", *(f"{name}:{lower[name]}" for name in names)]
        canonical = "\n".join([*lines, "", signed, lower["x-amz-content-sha256"]])
        scope = f"{at[:8]}/{self.region}/s3/aws4_request"
        text = "\n".join([_ALGORITHM, at, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        key = _signing_key(credentials.secret_key, at[:8], self.region)
        signature = hmac.new(key, text.encode(), "sha256").hexdigest()
        credential = f"{credentials.access_key}/{scope}"
        return (
            f"{_ALGORITHM} Credential={credential}, SignedHeaders={signed}, Signature={signature}"
        )


@lru_cache(maxsize=8)
def _signing_key(secret: str, day: str, region: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), "sha256").digest()
    return key


def _pattern_of(client: Any, request: Any, key: str) -> _Pattern | None:
    """The pattern from a request; None if others cannot be made like it."""
    parts = urlsplit(request.url)
    path = quote(key, safe="/~")
    if request.method != "GET" or parts.query or not request.url.endswith(f"/{path}"):
        return None
    headers = {
        name: value.decode() if isinstance(value, bytes) else str(value)
        for name, value in request.headers.items()
    }
    lower = {name.lower() for name in headers}
    kept = {name: value for name, value in headers.items() if name.lower() not in _OF_ONE_REQUEST}
    found = _AUTHORIZATION.fullmatch(headers.get("Authorization", ""))
    if found is None or "host" in lower or "x-amz-content-sha256" not in lower:
        return None  # signed in another way, or not at all
    region, signed = found[1], frozenset(found[2].split(";")) - _OF_ONE_REQUEST
    default = {"http": ":80", "https": ":443"}.get(parts.scheme, "")
    host = parts.netloc.lower().removesuffix(default)
    base_url = request.url.removesuffix(path)
    return _Pattern(client, base_url, host, kept, signed, region)
