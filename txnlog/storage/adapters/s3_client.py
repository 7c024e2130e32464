"""The requests to S3 and servers that speak its protocol, with botocore's answers in common terms.

One level below fsspec's file functions, because those add a HEAD here and drop the condition there;
sessions, credentials and retries stay s3fs's. Knows buckets and keys; nothing of stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import ClientError  # type: ignore[import-untyped]

from txnlog.errors import UnsupportedFilesystem
from txnlog.storage.adapters.http_answers import BUSY_HINTS, Answer, RequestFailed
from txnlog.storage.adapters.object_store import PART_BYTES, ListingPage, ObjectClient
from txnlog.storage.adapters.s3_credentials import aws_surroundings
from txnlog.storage.adapters.s3_files import S3Files, code_of, status_of
from txnlog.storage.whole import TooLarge

_CONFLICTS = 10
"""A 409 says that another conditional PUT of the name is under way: neither has won yet. It is over
within a round trip or two, so asking again is pause enough; whoever still loses gets an error, and
the callers of put-if-absent wait before they repeat that."""
_PARTS_AT_ONCE = 2
"""An upload needs up to 2 * PART_BYTES of memory, whatever its size."""

_HINTS_BY_CODE = {
    "NoSuchBucket": "create the bucket, or correct the URL or the endpoint",
    "InvalidAccessKeyId": "the server does not know this access key: check storage_options, or "
    "the profile, which the next request reads again",
    "SignatureDoesNotMatch": "the secret does not match the key: check storage_options, or the "
    "profile, which the next request reads again",
    "RequestTimeTooSkewed": "the clock of this machine and the server's differ by too much: set it",
    "ExpiredToken": "the session has expired: renew the profile's, which the next request finds; "
    "for explicit credentials (key, secret, token) give new ones by opening the store again",
    "NoCredentialsError": "give key and secret in storage_options, or configure a profile",
    "EndpointConnectionError": "nothing answers: check endpoint_url, and that the server runs",
    "ConnectTimeoutError": "nothing answers: check endpoint_url, network and firewall",
    "ReadTimeoutError": "the server took too long: try again later",
}
_HINTS_BY_STATUS = BUSY_HINTS | {
    301: "the bucket is in another region: set client_kwargs={'region_name': ...}",
    400: "the server did not understand the request: check region and endpoint_url",
    403: "permission is denied: the credentials need s3:GetObject, PutObject, DeleteObject, "
    "ListBucket and AbortMultipartUpload on this bucket, and vacuum "
    "ListBucketMultipartUploads and ListMultipartUploadParts",
    409: "another create of this name is under way: try again",
    501: "the server does not implement this, maybe conditional creates (If-None-Match: *); "
    "without them it cannot carry a store",
}
_RETRIABLE_STATUSES = frozenset({408, 409, 429, 500})
"""Statuses below 502 with which the same request may succeed later."""
_NOT_ARRIVED = "the server waited for the rest of the request: check the network, or try again"
_TRANSIENT_CODES = frozenset({"IncompleteBody", "RequestTimeout"})
"""With these S3 answers 400 where a body did not arrive: the same request may succeed."""
_PERMANENT_CODES = frozenset({"NoCredentialsError", "InvalidAccessKeyId", "SignatureDoesNotMatch"})


class S3Client(ObjectClient):
    """One bucket, with the options of ``s3fs.S3FileSystem``."""

    def __init__(self, bucket: str, options: Mapping[str, Any]) -> None:
        self._bucket = bucket
        given = {**options, "use_listings_cache": False, "made_in": aws_surroundings()}
        try:
            self.files = S3Files(**given)
            conditional = self.files.knows_conditional_create()
            self.endpoint = str(self.files.s3.meta.endpoint_url)
        except TypeError:
            raise
        except Exception as error:
            raise _judge(error) from error
        if not conditional:
            raise UnsupportedFilesystem(
                f"s3://{bucket}: the installed botocore is too old for conditional creates, and "
                "would overwrite: pip install -U s3fs aiobotocore botocore"
            )

    def create(self, key: str, data: bytes) -> None:
        """See ObjectClient. Botocore repeats a PUT whose answer was lost: that may be TAKEN."""
        for left in reversed(range(_CONFLICTS)):
            try:
                self.ask("put_object", Key=key, Body=data, IfNoneMatch="*")
                return
            except RequestFailed as error:
                if status_of(error) != 409 or not left:
                    raise

    def write(self, key: str, data: bytes) -> None:
        self.ask("put_object", Key=key, Body=data)

    def write_file(self, key: str, path: str) -> None:
        with _judging():
            self.files.put_file(
                path,
                f"{self._bucket}/{key}",
                chunksize=PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
                ContentType="application/octet-stream",
            )

    def read(self, key: str) -> bytes:
        return self._read(key, None)

    def read_range(self, key: str, start: int, stop: int) -> bytes:
        return self._read(key, (start, stop))

    def _read(self, key: str, part: tuple[int, int] | None) -> bytes:
        with _judging():
            data: bytes = self.files.read_object(self._bucket, key, _range_of(part))
        return data

    def read_together(
        self, wanted: Sequence[tuple[str, tuple[int, int] | None]]
    ) -> list[bytes | RequestFailed | TooLarge]:
        """Objects and parts of them, all asked for at once: what was read, or why it was not."""
        ranges = [(key, _range_of(part)) for key, part in wanted]
        found: list[bytes | RequestFailed | TooLarge] = []
        for data in self.files.read_objects(self._bucket, ranges):
            if isinstance(data, bytes | TooLarge):
                found.append(data)
            elif isinstance(data, Exception):
                found.append(_judge(data))
            else:
                raise data
        return found

    def describe(self, key: str) -> tuple[int, int]:
        head = self.ask("head_object", Key=key)
        return int(head["ContentLength"]), int(head["LastModified"].timestamp() * 1000)

    def list_page(
        self, prefix: str, *, start_after: str, deep: bool, next_page: str | None
    ) -> ListingPage:
        given = {
            "Prefix": prefix,
            "StartAfter": start_after,
            "Delimiter": "" if deep else "/",
            "ContinuationToken": next_page or "",
        }
        page = self.ask("list_objects_v2", **{k: v for k, v in given.items() if v})
        return ListingPage(
            [(item["Key"], int(item["Size"])) for item in page.get("Contents", ())],
            [item["Prefix"] for item in page.get("CommonPrefixes", ())],
            _next_of(page, "NextContinuationToken") if page.get("IsTruncated") else None,
        )

    def delete(self, key: str) -> None:
        for _, refused in self.delete_together([key]):
            raise refused

    def delete_together(self, keys: Sequence[str]) -> list[tuple[str, RequestFailed]]:
        """Delete up to 1,000 objects; returns those that the server refused to delete, and why.

        Missing objects are not among them: some servers report these as errors.
        """
        objects = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        answer = self.ask("delete_objects", Delete=objects)
        errors = [one for one in answer.get("Errors", ()) if one.get("Code") != "NoSuchKey"]
        return [(one.get("Key", ""), _refusal_of(one)) for one in errors]

    def list_uploads(self, prefix: str) -> Iterator[tuple[str, str, int]]:
        """Uploads in parts that are not complete: key, id, and when they were begun, in ms."""
        markers = ("KeyMarker", "UploadIdMarker")
        for page in self._upload_pages("list_multipart_uploads", markers, Prefix=prefix):
            for found in page.get("Uploads", ()):
                yield found["Key"], found["UploadId"], int(found["Initiated"].timestamp() * 1000)

    def uploaded_bytes(self, key: str, upload_id: str) -> int:
        """How large the parts are that are there; 0 if the upload is over."""
        pages = self._upload_pages("list_parts", ("PartNumberMarker",), Key=key, UploadId=upload_id)
        return sum(int(part["Size"]) for page in pages for part in page.get("Parts", ()))

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Drop what was uploaded, if the upload is not over."""
        self._ask_about_upload("abort_multipart_upload", Key=key, UploadId=upload_id)

    def _upload_pages(
        self, request: str, markers: Sequence[str], **arguments: str
    ) -> Iterator[dict[str, Any]]:
        while True:
            page = self._ask_about_upload(request, **arguments)
            yield page
            if not page.get("IsTruncated"):
                return
            arguments |= {marker: _next_of(page, f"Next{marker}") for marker in markers}

    def _ask_about_upload(self, request: str, **arguments: str) -> dict[str, Any]:
        """The answer; an empty one if the upload is over."""
        try:
            return self.ask(request, **arguments)
        except RequestFailed as error:
            if code_of(error) == "NoSuchUpload":
                return {}
            raise

    def ask(self, request: str, **arguments: Any) -> dict[str, Any]:
        """The answer to any request for the bucket; raises RequestFailed."""
        with _judging():
            answer: dict[str, Any] = self.files.call_s3(request, Bucket=self._bucket, **arguments)
        return answer


def _next_of(page: Mapping[str, Any], marker: str) -> str:
    """Where a listing goes on that was cut. Raises RequestFailed: the server does not say."""
    found: str | None = page.get(marker)
    if found is None:
        raise RequestFailed(
            Answer.REFUSED,
            f"the server has cut a listing, and its answer has no {marker}",
            "it does not speak S3 as others do: ask its makers, or take another server",
        )
    return found


def _range_of(part: tuple[int, int] | None) -> str | None:
    return None if part is None else f"bytes={part[0]}-{part[1] - 1}"


def _refusal_of(refused: Mapping[str, str]) -> RequestFailed:
    """Why one of several objects was not deleted, as if it had been asked for alone."""
    status = 403 if refused.get("Code") == "AccessDenied" else 500
    answer = {"Error": refused, "ResponseMetadata": {"HTTPStatusCode": status}}
    return _judge(ClientError(answer, "DeleteObjects"))


@contextmanager
def _judging() -> Iterator[None]:
    """Raise RequestFailed, or TooLarge, for what s3fs raises in the block."""
    try:
        yield
    except TooLarge:
        raise
    except Exception as error:
        raise _judge(error) from error


def _judge(error: Exception) -> RequestFailed:
    status, code = status_of(error), code_of(error)
    text = str(error) or type(error).__name__
    hint = _HINTS_BY_CODE.get(code) or _HINTS_BY_STATUS.get(status or 0, "")
    if code in _TRANSIENT_CODES:
        return RequestFailed(Answer.BUSY, text, _NOT_ARRIVED)
    if status == 412:
        return RequestFailed(Answer.TAKEN, text)
    if status == 416:
        return RequestFailed(Answer.PAST_END, text)
    # A missing bucket is a 404 too, but nothing that a reader of one object should expect.
    if status == 404 and code != "NoSuchBucket":
        return RequestFailed(Answer.MISSING, text)
    busy = status is None or status in _RETRIABLE_STATUSES or status >= 502
    retriable = busy and code not in _PERMANENT_CODES
    return RequestFailed(Answer.BUSY if retriable else Answer.REFUSED, text, hint)
