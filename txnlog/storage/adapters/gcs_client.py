"""The requests to Google Cloud Storage: its JSON API, with the sessions and credentials of gcsfs.

One level below gcsfs's file functions: those tell a missing bucket from a missing object by no
means, log each refusal with a traceback, and look up what they have no need for. Imports gcsfs;
nothing else may. Knows buckets and keys; nothing of stores.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import requests
from fsspec.asyn import sync
from gcsfs.core import GCSFileSystem
from gcsfs.credentials import GoogleCredentials
from gcsfs.retry import HttpError, is_retriable
from google.auth.exceptions import RefreshError, TransportError
from google.auth.transport.requests import Request

from txnlog.storage.adapters.http_answers import (
    BUSY_HINTS,
    BUSY_STATUSES,
    Answer,
    RequestFailed,
    patiently,
    pause_asked,
)
from txnlog.storage.adapters.object_store import PART_BYTES, ListingPage, ObjectClient
from txnlog.storage.adapters.surroundings import KeptBySurroundings, surroundings
from txnlog.storage.whole import TooLarge, check_whole

_HINTS_BY_STATUS = BUSY_HINTS | {
    400: "the server did not understand the request: check the bucket's name and endpoint_url",
    401: "the credentials are missing, wrong or expired: check the storage option token, or run "
    "`gcloud auth application-default login`",
    403: "permission is denied: the account needs storage.objects.create, get, list and delete on "
    "this bucket (the role Storage Object User)",
    404: "create the bucket, or correct the URL or endpoint_url",
}
_NO_ANSWER = "nothing answers: check endpoint_url, network and firewall, and that the server runs"
_NO_CREDENTIALS = (
    "give a service account as the storage option token, or run `gcloud auth application-default "
    "login`"
)
_NOT_RENEWED = (
    "the credentials could not be renewed: check the network, and the server that gives tokens"
)
_CONNECT_S, _READ_S = 10, 60
_RENEWED_EARLY_S = 300
_VARIABLES = ("CLOUDSDK_", "GCE_", "GCSFS_", "GOOGLE_", "STORAGE_EMULATOR_HOST")
"""How the names of those begin that gcsfs and google-auth read."""
_FILES = {"GOOGLE_APPLICATION_CREDENTIALS": "~/.config/gcloud/application_default_credentials.json"}
_SESSION_AT_REST = 308
"""The status of an upload in parts that wants more."""
_SEEN = (200, 206)
_STALLS = 3
"""A part of which nothing arrives is sent so often again."""


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    headers: Mapping[str, str]
    body: bytes


class GcsClient(ObjectClient):
    """One bucket, with the options of ``gcsfs.GCSFileSystem``."""

    def __init__(self, bucket: str, options: Mapping[str, Any]) -> None:
        given = dict(options)
        seconds = given.pop("requests_timeout", None)
        # An upload may take long, as long as it gets on.
        self._timeout = (
            aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_READ_S)
            if seconds is None
            else aiohttp.ClientTimeout(total=seconds)
        )
        # The plain one, also where gcsfs would look up each bucket's kind first.
        self._session = _Session(**given, made_in=surroundings(_VARIABLES, _FILES))
        limits = (_CONNECT_S, _READ_S) if seconds is None else (seconds, seconds)
        self._session.credentials.maybe_refresh = partial(_renew, self._session.credentials, limits)
        self._bucket = quote(bucket, safe="")
        self._bucket_seen = False

    def create(self, key: str, data: bytes) -> None:
        self._put(key, data, {"ifGenerationMatch": "0"})

    def write(self, key: str, data: bytes) -> None:
        self._put(key, data, {})

    def _put(self, key: str, data: bytes, condition: Mapping[str, str]) -> None:
        self._ask(
            "POST",
            f"upload/storage/v1/b/{self._bucket}/o",
            {"uploadType": "media", "name": key, **condition},
            data=data,
        )

    def write_file(self, key: str, path: str) -> None:
        """In parts, through an upload session, which the server drops after a week if we die."""
        begin = partial(
            self._ask,
            "POST",
            f"upload/storage/v1/b/{self._bucket}/o",
            {"uploadType": "resumable", "name": key},
            headers={"X-Upload-Content-Type": "application/octet-stream"},
        )
        session = patiently(begin).headers["Location"]
        try:
            with Path(path).open("rb") as file:
                self._send_parts(session, file, Path(path).stat().st_size)
        except BaseException:
            self._drop_session(session)
            raise

    def _send_parts(self, session: str, file: io.BufferedReader, size_bytes: int) -> None:
        sent: int | None = 0
        stalls = 0
        while sent is not None:
            file.seek(sent)
            before, part = sent, file.read(PART_BYTES)
            try:
                sent = self._send_part(session, part, sent, size_bytes)
            except RequestFailed as error:
                if error.answer is not Answer.BUSY or stalls == _STALLS:
                    raise
                # Only the server knows how much has arrived.
                sent = patiently(partial(self._send_part, session, b"", None, size_bytes))
            stalls = stalls + 1 if sent == before else 0

    def _send_part(
        self, session: str, part: bytes, start: int | None, size_bytes: int
    ) -> int | None:
        """Send some bytes, or none to ask; returns how many are there, None if all."""
        sent = "*" if start is None else f"{start}-{start + len(part) - 1}"
        response = self._ask(
            "PUT",
            session,
            {},
            headers={"Content-Range": f"bytes {sent}/{size_bytes}"},
            data=part,
            expected=(200, 201, _SESSION_AT_REST),
        )
        if response.status != _SESSION_AT_REST:
            return None
        _, _, last = response.headers.get("Range", "").rpartition("-")
        return int(last) + 1 if last else 0

    def _drop_session(self, session: str) -> None:
        # The earlier error matters, and the server drops the session in time.
        with suppress(RequestFailed):
            self._ask("DELETE", session, {}, expected=(200, 204, 404, 410, 499))

    def read(self, key: str) -> bytes:
        return self._ask("GET", self._object(key), {"alt": "media"}).body

    def read_range(self, key: str, start: int, stop: int) -> bytes:
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        response = self._ask("GET", self._object(key), {"alt": "media"}, headers=headers)
        # A server may ignore the range.
        return response.body if response.status == 206 else response.body[start:stop]

    def describe(self, key: str) -> tuple[int, int]:
        response = self._ask("GET", self._object(key), {"fields": "size,timeCreated"})
        found = _decode(response.body)
        created = datetime.fromisoformat(str(found["timeCreated"]))
        return int(found["size"]), int(created.timestamp() * 1000)

    def list_page(
        self, prefix: str, *, start_after: str, deep: bool, next_page: str | None
    ) -> ListingPage:
        given = {
            "prefix": prefix,
            "startOffset": start_after,
            "delimiter": "" if deep else "/",
            "pageToken": next_page or "",
            "fields": "items(name,size),prefixes,nextPageToken",
        }
        response = self._ask("GET", f"storage/v1/b/{self._bucket}/o", given)
        page = _decode(response.body)
        return ListingPage(
            [(item["name"], int(item.get("size", 0))) for item in page.get("items") or ()],
            list(page.get("prefixes") or ()),
            page.get("nextPageToken") or None,
        )

    def delete(self, key: str) -> None:
        self._ask("DELETE", self._object(key), {}, expected=(200, 204))

    def _object(self, key: str) -> str:
        return f"storage/v1/b/{self._bucket}/o/{quote(key, safe='')}"

    def _ask(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str],
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
        expected: Collection[int] = _SEEN,
    ) -> _Response:
        """One request; raises RequestFailed."""
        ask = partial(self._session.ask, timeout=self._timeout)
        # Here, since it may renew the credentials by a request that waits: on the loop it would
        # stop those of all filesystems of fsspec's, to whatever server.
        signed = self._session.signed(headers or {})
        response: _Response = sync(self._session.loop, ask, method, path, parameters, signed, data)
        if response.status == 401 and (refused := self._session.renewable(signed)):
            signed = self._session.signed(headers or {}, refused)
            response = sync(self._session.loop, ask, method, path, parameters, signed, data)
        if response.status not in expected:
            raise self._judge(response)
        return response

    def _judge(self, response: _Response) -> RequestFailed:
        status, text = response.status, _message(response)
        if status == 412:
            return RequestFailed(Answer.TAKEN, text)
        if status == 416:
            return RequestFailed(Answer.PAST_END, text)
        # A missing bucket is a 404 too, but nothing that a reader of one object should expect.
        # 410: an upload that is over.
        if status == 410 or (status == 404 and ("No such object" in text or self._has_bucket())):
            return RequestFailed(Answer.MISSING, text)
        if status == 403 and b"ateLimitExceeded" in response.body:
            status = 429
        # 409: another request for this object is under way, and neither has won.
        busy = status in BUSY_STATUSES or status == 409
        return RequestFailed(
            Answer.BUSY if busy else Answer.REFUSED,
            f"{status} {text}",
            _HINTS_BY_STATUS.get(status, ""),
            pause_asked(response.headers.get("Retry-After")),
        )

    def _has_bucket(self) -> bool:
        """Whether the bucket is there, found out once, if the server's text does not say."""
        if not self._bucket_seen:
            path = f"storage/v1/b/{self._bucket}/o"
            parameters = {"maxResults": "1", "fields": "nextPageToken"}
            response = self._ask("GET", path, parameters, expected=(200, 404))
            self._bucket_seen = response.status == 200
        return self._bucket_seen


class _Session(KeptBySurroundings, GCSFileSystem):  # type: ignore[misc] # gcsfs has no types
    """gcsfs, for its session and its credentials.

    A class of its own has its own cache of instances in fsspec, so nobody else's are changed.
    """

    def signed(self, headers: Mapping[str, str], refused: str = "") -> Mapping[str, str]:
        """Headers with credentials, which are fresh: no ``refused`` token. Raises RequestFailed."""
        try:
            if refused:
                self.credentials.maybe_refresh(refused=refused)
            found: Mapping[str, str] = self._get_headers(headers)
        except Exception as error:
            is_lost = isinstance(error, (TransportError, TimeoutError)) or is_retriable(error)
            if is_lost and not isinstance(error, HttpError):
                raise RequestFailed(Answer.BUSY, str(error), _NOT_RENEWED) from error
            raise RequestFailed(Answer.REFUSED, str(error), _NO_CREDENTIALS) from error
        return found

    def renewable(self, sent: Mapping[str, str]) -> str:
        """The token that a request was sent with; "" if credentials cannot get another one.

        A server may end a token early, and a slow clock takes an expired one for fresh.
        """
        if not getattr(self.credentials.credentials, "refresh_token", True):
            return ""
        bearers = [value for value in sent.values() if value.startswith("Bearer ")]
        return bearers[0].removeprefix("Bearer ") if bearers else ""

    async def ask(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str],
        headers: Mapping[str, str],
        data: bytes | None,
        timeout: aiohttp.ClientTimeout,
    ) -> _Response:
        """One request, whatever its status. Raises RequestFailed: there was no answer."""
        given = self._get_params({k: v for k, v in parameters.items() if v})
        url = path if "://" in path else f"{self._location}/{path}"
        target = f"{url}?{urlencode(given, quote_via=quote)}" if given else url
        try:
            await self._set_session()
            async with self.session.request(
                method,
                target,
                headers=headers,
                data=None if data is None else io.BytesIO(data),
                timeout=timeout,
                allow_redirects=False,
            ) as answer:
                return _Response(answer.status, answer.headers, await _read_body(answer))
        except TooLarge:
            raise
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            text = str(error) or type(error).__name__
            raise RequestFailed(Answer.BUSY, text, _NO_ANSWER) from error
        # Where the session is made, as with a client's certificate.
        except Exception as error:
            raise RequestFailed(Answer.REFUSED, str(error), _NO_CREDENTIALS) from error


def _renew(
    held: GoogleCredentials,
    limits_s: tuple[float, float],
    early_s: float = _RENEWED_EARLY_S,
    refused: str = "",
) -> None:
    """Renew the credentials if they are about to expire, or have a token that was ``refused``.

    In gcsfs's place, which waits two minutes for an answer, in one thread after the other. Raises
    what google.auth does, and TimeoutError.
    """

    def are_fresh() -> bool:
        if held.credentials is None:
            return True
        is_refused = bool(refused) and held.credentials.token == refused
        return not is_refused and held._credentials_valid(early_s)  # noqa: SLF001

    if are_fresh():
        return
    if not held.lock.acquire(timeout=sum(limits_s)):
        raise TimeoutError("another thread waits for new credentials")
    try:
        if not are_fresh():
            with requests.Session() as session:
                held.credentials.refresh(partial(Request(session), timeout=limits_s))
    except RefreshError as error:
        raise HttpError({"code": 401, "message": str(error)}) from error
    finally:
        held.lock.release()


async def _read_body(answer: aiohttp.ClientResponse) -> bytes:
    """All of an answer, if it has not grown: an object can be marked as compressed by anybody.

    Raises TooLarge.
    """
    encoded = answer.headers.get("Content-Encoding", "identity") != "identity"
    if not encoded:
        check_whole(answer.content_length if answer.status == 200 else None)
        return await answer.read()
    body = bytearray()
    async for piece in answer.content.iter_any():
        body += piece
        check_whole(len(body))
    return bytes(body)


def _decode(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RequestFailed(Answer.BUSY, "the server's answer is not a JSON object")
    return found


def _message(response: _Response) -> str:
    """The server's message about an error."""
    text = response.body.decode(errors="replace").strip()
    try:
        error = json.loads(text)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError, RecursionError):
        return text[:500] or "no explanation"
