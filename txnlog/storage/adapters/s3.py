"""Storage on S3 and servers that speak its protocol, through s3fs.

Put-if-absent is a PUT with ``If-None-Match: *``. Requests are made one level below fsspec's file
functions, because those add a HEAD here and drop the condition there; sessions, credentials and
retries stay s3fs's. Knows keys and requests, and nothing of what objects mean.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from txnlog.errors import (
    InvalidOption,
    ObjectNotFound,
    StorageError,
    UnsupportedFilesystem,
    how_to_install,
)
from txnlog.storage.adapters.bucket_urls import bucket_path
from txnlog.storage.base import Address, Storage, UnfinishedUpload, Upload, check_name
from txnlog.storage.buffered_uploads import SpooledUpload
from txnlog.storage.failure_messages import failure, redact, secrets_of
from txnlog.storage.fork_safe_lock import ForkSafeLock
from txnlog.storage.option_types import parse_options
from txnlog.storage.server_storage import ServerStorage
from txnlog.storage.spool import Spool

if TYPE_CHECKING:
    from txnlog.storage.adapters.s3_client import S3Client

_CONFLICTS = 10
"""A 409 says that another conditional PUT of the name is under way: neither has won yet. It is over
within a round trip or two, so asking again is pause enough; whoever still loses gets an error, and
the callers of put-if-absent wait before they repeat that."""
_SMALL_BYTES = 1 << 20
_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 2
"""An upload needs up to 2 * _PART_BYTES of memory, whatever its size."""
_DELETE_AT_ONCE = 1000
_SMALL_READS_AT_ONCE = 8

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
_HINTS_BY_STATUS = {
    301: "the bucket is in another region: set client_kwargs={'region_name': ...}",
    400: "the server did not understand the request: check region and endpoint_url",
    403: "permission is denied: the credentials need s3:GetObject, PutObject, DeleteObject, "
    "ListBucket and AbortMultipartUpload on this bucket, and vacuum "
    "ListBucketMultipartUploads and ListMultipartUploadParts",
    409: "another create of this name is under way: try again",
    429: "the server asks for fewer requests: try again later",
    500: "the server has a problem: try again later",
    501: "the server does not implement this, maybe conditional creates (If-None-Match: *); "
    "without them it cannot carry a store",
    502: "the server has a problem: try again later",
    503: "the server is overloaded or down: try again later",
}

_CANNOT_COPY = (400, 403, 405, 501)
"""What servers say of an object that is too large to be copied in one step, or of any."""
_RETRIABLE_STATUSES = frozenset({408, 409, 429, 500})
"""Statuses below 502 with which the same request may succeed later."""
_PERMANENT_CODES = frozenset({"NoCredentialsError", "InvalidAccessKeyId", "SignatureDoesNotMatch"})


_NESTED = ("client_kwargs", "config_kwargs", "s3_additional_kwargs")
_BOOLEANS = (
    "anon",
    "use_ssl",
    "requester_pays",
    "version_aware",
    "skip_instance_cache",
    "fixed_upload_size",
    "cache_regions",
    "local_expiry_check",
    "use_listings_cache",
)
_INTEGERS = ("max_concurrency", "default_block_size")


def open_url(url: str, options: Mapping[str, object]) -> Storage:
    """The storage at ``s3://bucket/folder``, or ``s3a://``; see ``registry``."""
    path = bucket_path(url, "an S3")
    parsed = parse_options(options, nested=_NESTED, booleans=_BOOLEANS, integers=_INTEGERS)
    if urlsplit(_endpoint(parsed)).username is not None:
        # They would show in every error of the HTTP client.
        raise InvalidOption(
            "credentials do not belong in endpoint_url: use the options key and secret"
        )
    return S3Storage(path, parsed)


def _refusal_of(refused: Mapping[str, str]) -> Exception:
    """Why one of several objects was not deleted, as if it had been asked for alone."""
    from botocore.exceptions import ClientError  # type: ignore[import-untyped]

    status = 403 if refused.get("Code") == "AccessDenied" else 500
    answer = {"Error": refused, "ResponseMetadata": {"HTTPStatusCode": status}}
    error: Exception = ClientError(answer, "DeleteObjects")
    return error


def _endpoint(options: Mapping[str, Any]) -> str:
    """The server's URL; "" is AWS."""
    nested = options.get("client_kwargs") or {}
    return str(options.get("endpoint_url") or nested.get("endpoint_url") or "")


class S3Storage(ServerStorage):
    """Objects below ``s3://bucket/prefix``.

    Args:
        path: bucket and prefix, without the protocol.
        options: for ``s3fs.S3FileSystem``: key, secret, token, endpoint_url, client_kwargs, ...
    """

    def __init__(self, path: str, options: Mapping[str, Any] | None = None) -> None:
        self._bucket, _, prefix = path.strip("/").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._options = dict(options or {})
        self._secrets = secrets_of(self._options)
        self._connected: tuple[int, S3Client] | None = None
        self.url = f"s3://{self._bucket}/{prefix}".rstrip("/")

    def __reduce__(self) -> tuple[type[S3Storage], tuple[str, dict[str, Any]]]:
        return S3Storage, (f"{self._bucket}/{self._prefix}", self._options)

    def address(self) -> Address:
        return Address(self.url, self._options)

    @property
    def client(self) -> S3Client:
        """The connection: made when first used, and again after a fork.

        An event loop does not survive a fork, nor may two processes share a socket.

        Raises:
            UnsupportedFilesystem: s3fs is missing, or botocore is too old.
            InvalidOption: there is no such storage option.
        """
        connected = self._connected
        if connected is None or connected[0] != os.getpid():
            connected = self._connected = os.getpid(), self._connect()
        return connected[1]

    def _connect(self) -> S3Client:
        try:
            from txnlog.storage.adapters.s3_client import S3Client
            from txnlog.storage.adapters.s3_credentials import surroundings
        except ImportError as error:
            raise UnsupportedFilesystem(f"{self.url} needs s3fs: {how_to_install('s3')}") from error
        try:
            with _CONNECT_LOCK.mutex:
                client = S3Client(
                    **{**self._options, "use_listings_cache": False}, made_in=surroundings()
                )
                conditional = client.knows_conditional_create()
        except TypeError as error:
            why = redact(str(error), self._secrets)
            raise InvalidOption(
                f"{self.url}: s3fs or botocore does not know a storage option, or does not take "
                f"its type: {why}"
            ) from error
        except Exception as error:
            raise self._failure("connecting to", "", error) from error
        if not conditional:
            raise UnsupportedFilesystem(
                f"{self.url}: the installed botocore is too old for conditional creates, and "
                "would overwrite: pip install -U s3fs aiobotocore botocore"
            )
        return client

    def _key(self, name: str) -> str:
        return self._prefix + check_name(name)

    def _folder_prefix(self, folder: str) -> str:
        return f"{self._key(folder)}/" if folder else self._prefix

    def _failure(self, operation: str, name: str, error: BaseException) -> StorageError:
        from txnlog.storage.adapters.s3_client import code_of, status_of

        status = status_of(error)
        hint = _HINTS_BY_CODE.get(code_of(error)) or _HINTS_BY_STATUS.get(status or 0)
        retriable = status is None or status in _RETRIABLE_STATUSES or status >= 502
        return failure(
            operation,
            self.url,
            name,
            error,
            hint=hint,
            secrets=self._secrets,
            retriable=retriable and code_of(error) not in _PERMANENT_CODES,
        )

    # -- writing ---------------------------------------------------------------------------------

    @property
    def server(self) -> tuple[str, str, str]:
        return "s3", _endpoint(self._options), self._bucket

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See Storage. False may also be said of our own object.

        The first one of a process makes sure that the server keeps the promise, see ``probe``.

        botocore repeats a PUT whose answer was lost, and the server refuses the repetition; the
        caller reads the object back to find out.
        """
        from txnlog.storage.adapters.s3_client import status_of

        key, client = self._key(name), self.client
        self.check_before_write(name)
        for attempt in range(1, _CONFLICTS + 1):
            try:
                client.call_s3(
                    "put_object", Bucket=self._bucket, Key=key, Body=bytes(data), IfNoneMatch="*"
                )
            except Exception as error:
                status = status_of(error)
                if status == 412:
                    return False
                if status != 409 or attempt == _CONFLICTS:
                    raise self._failure("creating", name, error) from error
            else:
                return True
        raise AssertionError("the loop returns or raises")

    def put(self, name: str, data: bytes) -> None:
        key, client = self._key(name), self.client
        try:
            client.call_s3("put_object", Bucket=self._bucket, Key=key, Body=bytes(data))
        except Exception as error:
            raise self._failure("creating", name, error) from error

    def replace(self, name: str, data: bytes) -> None:
        self.put(name, data)

    def take_over(self, name: str, source: Storage) -> bool:
        """A copy that the server makes, of up to 5 GB."""
        from txnlog.storage.adapters.s3_client import status_of

        if not isinstance(source, S3Storage) or source.address().options != self._options:
            return False
        key, client = self._key(name), self.client
        bucket, _, prefix = source.url.removeprefix("s3://").partition("/")
        copied = {"Bucket": bucket, "Key": f"{prefix}/{name}" if prefix else name}
        try:
            client.call_s3("copy_object", Bucket=self._bucket, Key=key, CopySource=copied)
        except Exception as error:
            if status_of(error) in _CANNOT_COPY:
                return False
            raise self._read_failure(name, error) from error
        return True

    def upload(self, name: str) -> Upload:
        put_spooled = partial(self._put_spooled, check_name(name))
        return SpooledUpload(self.url, name, put_spooled)

    def _put_spooled(self, name: str, spool: Spool) -> None:
        if spool.size_bytes > _SMALL_BYTES:
            self.put_file(name, spool.name)
        else:
            self.put(name, spool.read())

    def put_file(self, name: str, path: str) -> None:
        """Upload a local file, in parts if it is large; it shows when it is complete."""
        key, client = self._key(name), self.client
        try:
            client.put_file(
                path,
                f"{self._bucket}/{key}",
                chunksize=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
                ContentType="application/octet-stream",
            )
        except Exception as error:
            raise self._failure("uploading", name, error) from error

    def delete(self, names: Iterable[str]) -> None:
        keys = [self._key(name) for name in names]
        for first in range(0, len(keys), _DELETE_AT_ONCE):
            some = keys[first : first + _DELETE_AT_ONCE]
            objects = {"Objects": [{"Key": key} for key in some], "Quiet": True}
            client = self.client
            try:
                answer = client.call_s3("delete_objects", Bucket=self._bucket, Delete=objects)
            except Exception as error:
                raise self._failure("deleting", self._name_of(some[0]), error) from error
            for refused in answer.get("Errors", ()):
                name = self._name_of(refused.get("Key", ""))
                reason = _refusal_of(refused)
                raise self._failure("deleting", name, reason) from reason

    def list_unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        arguments: dict[str, Any] = {"Bucket": self._bucket, "Prefix": self._prefix}
        while True:
            page = self._ask("listing uploads", "", "list_multipart_uploads", **arguments)
            for found in page.get("Uploads", ()):
                key = found["Key"]
                # Some servers ignore the prefix: another store's uploads are none of ours.
                if key.startswith(self._prefix):
                    yield UnfinishedUpload(
                        name=self._name_of(key),
                        upload_id=found["UploadId"],
                        begun_ms=int(found["Initiated"].timestamp() * 1000),
                        size_bytes=self._uploaded_bytes(key, found["UploadId"]),
                    )
            if not page.get("IsTruncated"):
                return
            arguments["KeyMarker"] = page["NextKeyMarker"]
            arguments["UploadIdMarker"] = page["NextUploadIdMarker"]

    def _uploaded_bytes(self, key: str, upload_id: str) -> int:
        """How large the parts are that are there; 0 if the upload is over."""
        arguments: dict[str, Any] = {"Bucket": self._bucket, "Key": key, "UploadId": upload_id}
        size_bytes = 0
        while True:
            page = self._ask("listing parts of", self._name_of(key), "list_parts", **arguments)
            size_bytes += sum(int(part["Size"]) for part in page.get("Parts", ()))
            if not page.get("IsTruncated"):
                return size_bytes
            arguments["PartNumberMarker"] = page["NextPartNumberMarker"]

    def abort_uploads(self, uploads: Iterable[UnfinishedUpload]) -> None:
        for upload in uploads:
            self._ask(
                "aborting an upload of",
                upload.name,
                "abort_multipart_upload",
                Bucket=self._bucket,
                Key=self._key(upload.name),
                UploadId=upload.upload_id,
            )

    def _ask(self, operation: str, name: str, request: str, **arguments: Any) -> dict[str, Any]:
        """An answer about uploads; an empty one if the upload is over."""
        from txnlog.storage.adapters.s3_client import code_of

        client = self.client
        try:
            answer: dict[str, Any] = client.call_s3(request, **arguments)
        except Exception as error:
            if code_of(error) == "NoSuchUpload":
                return {}
            raise self._failure(operation, name, error) from error
        return answer

    def _name_of(self, key: str) -> str:
        return key.removeprefix(self._prefix)

    # -- reading ---------------------------------------------------------------------------------

    def get(self, name: str) -> bytes:
        return self._read(name, None)

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        from txnlog.storage.adapters.s3_client import status_of

        if stop <= start:
            check_name(name)
            return b""
        try:
            return self._read(name, f"bytes={start}-{stop - 1}")
        except StorageError as error:
            if status_of(error.__cause__) == 416:  # begins at or behind the end
                return b""
            raise

    def get_many(self, names: Sequence[str]) -> list[bytes]:
        return self._read_many([(name, None) for name in names])

    def get_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        if any(stop <= start for _, start, stop in ranges):
            return super().get_ranges(ranges)
        return self._read_many(
            [(name, f"bytes={start}-{stop - 1}") for name, start, stop in ranges]
        )

    def small_reads_at_once(self) -> int:
        return _SMALL_READS_AT_ONCE

    def _read_many(self, wanted: Sequence[tuple[str, str | None]]) -> list[bytes]:
        """Read together what :meth:`_read` reads one by one, without a thread for each."""
        from txnlog.storage.adapters.s3_client import status_of

        keys = [(self._key(name), byte_range) for name, byte_range in wanted]
        found: list[bytes] = []
        for (name, _), data in zip(
            wanted, self.client.read_objects(self._bucket, keys), strict=True
        ):
            if isinstance(data, bytes):
                found.append(data)
            elif isinstance(data, Exception) and status_of(data) == 416:
                found.append(b"")
            elif isinstance(data, Exception):
                raise self._read_failure(name, data) from data
            else:
                raise data
        return found

    def _read(self, name: str, byte_range: str | None) -> bytes:
        key, client = self._key(name), self.client
        try:
            data: bytes = client.read_object(self._bucket, key, byte_range)
        except Exception as error:
            raise self._read_failure(name, error) from error
        return data

    def size(self, name: str) -> int:
        key, client = self._key(name), self.client
        try:
            return int(client.call_s3("head_object", Bucket=self._bucket, Key=key)["ContentLength"])
        except Exception as error:
            raise self._read_failure(name, error) from error

    def modified_ms(self, name: str) -> int | None:
        key, client = self._key(name), self.client
        try:
            head = client.call_s3("head_object", Bucket=self._bucket, Key=key)
            return int(head["LastModified"].timestamp() * 1000)
        except Exception as error:
            raise self._read_failure(name, error) from error

    def _read_failure(self, name: str, error: BaseException) -> StorageError:
        from txnlog.storage.adapters.s3_client import code_of, status_of

        # A missing bucket is a 404 too, but nothing that a reader of one object should expect.
        if status_of(error) == 404 and code_of(error) != "NoSuchBucket":
            return ObjectNotFound(f"there is no {self.url}/{name}")
        return self._failure("reading", name, error)

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        prefix = self._folder_prefix(folder)
        names: list[str] = []
        for page in self._pages(folder, Delimiter="/", StartAfter=prefix + start_after):
            names += [item["Key"][len(prefix) :] for item in page.get("Contents", ())]
        # Some tools leave an object of the folder's own name behind, and some servers list in
        # another order than S3's, which is that of strings.
        return sorted(name for name in names if name and name > start_after)

    def list_folders(self, folder: str) -> list[str]:
        prefix = self._folder_prefix(folder)
        found: list[str] = []
        for page in self._pages(folder, Delimiter="/"):
            found += [item["Prefix"][len(prefix) : -1] for item in page.get("CommonPrefixes", ())]
        return sorted(name for name in found if name)

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        for page in self._pages(folder):
            for item in page.get("Contents", ()):
                if not item["Key"].endswith("/"):
                    yield self._name_of(item["Key"]), int(item["Size"])

    def _pages(self, folder: str, **arguments: str) -> Iterator[dict[str, Any]]:
        """The pages of a listing, at most 1,000 objects each, one request each."""
        arguments |= {"Bucket": self._bucket, "Prefix": self._folder_prefix(folder)}
        client = self.client
        while True:
            try:
                page: dict[str, Any] = client.call_s3("list_objects_v2", **arguments)
            except Exception as error:
                raise self._failure("listing", folder, error) from error
            yield page
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]


_CONNECT_LOCK = ForkSafeLock()
"""Sixteen threads that begin at once make one client, not sixteen."""
