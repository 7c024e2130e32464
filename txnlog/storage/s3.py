"""Storage on S3 and servers that speak its protocol, through s3fs.

Put-if-absent is a PUT with ``If-None-Match: *``. Requests are made one level below fsspec's file
functions, because those add a HEAD here and drop the condition there; sessions, credentials and
retries stay s3fs's.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from txnlog.errors import ObjectNotFound, StorageError, UnsupportedFilesystem
from txnlog.storage.base import Storage, Upload, check_name
from txnlog.storage.failures import failure

_CONFLICTS = 10
"""A 409 says that another conditional PUT of the name is under way: neither has won yet."""
_SMALL_BYTES = 1 << 20
_PART_BYTES = 8 << 20
_DELETE_AT_ONCE = 1000


class S3Storage(Storage):
    """Objects below ``s3://bucket/prefix``.

    Args:
        path: bucket and prefix, without the protocol.
        options: for ``s3fs.S3FileSystem``: key, secret, token, endpoint_url, client_kwargs, ...
    """

    def __init__(self, path: str, options: Mapping[str, Any] | None = None) -> None:
        self._bucket, _, prefix = path.strip("/").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._options = dict(options or {})
        self._filesystem: Any = None
        self._process = -1
        self.url = f"s3://{self._bucket}/{prefix}".rstrip("/")

    def __reduce__(self) -> tuple[type[S3Storage], tuple[str, dict[str, Any]]]:
        return S3Storage, (f"{self._bucket}/{self._prefix}", self._options)

    def __repr__(self) -> str:
        return f"S3Storage({self.url!r})"

    @property
    def _fs(self) -> Any:
        # Made when first used and anew after a fork: an event loop does not survive one.
        if self._filesystem is None or self._process != os.getpid():
            try:
                import s3fs
            except ImportError as error:
                raise UnsupportedFilesystem(
                    f"{self.url} needs s3fs: pip install 'txnlog[s3]'"
                ) from error
            self._filesystem = s3fs.S3FileSystem(**{"use_listings_cache": False, **self._options})
            self._process = os.getpid()
        return self._filesystem

    def _key(self, name: str) -> str:
        return self._prefix + check_name(name)

    def _folder_prefix(self, folder: str) -> str:
        return f"{self._key(folder)}/" if folder else self._prefix

    # -- writing ---------------------------------------------------------------------------------

    def put_if_absent(self, name: str, data: bytes) -> bool:
        key = self._key(name)
        for attempt in range(_CONFLICTS):
            try:
                self._fs.call_s3(
                    "put_object",
                    Bucket=self._bucket,
                    Key=key,
                    Body=bytes(data),
                    IfNoneMatch="*",
                )
                return True
            except Exception as error:
                status = _http_status(error)
                if status == 412:
                    return False
                if status != 409 or attempt == _CONFLICTS - 1:
                    raise failure("creating", self.url, name, error) from error
        raise AssertionError("unreachable")

    def put(self, name: str, data: bytes) -> None:
        key = self._key(name)
        try:
            self._fs.call_s3("put_object", Bucket=self._bucket, Key=key, Body=bytes(data))
        except Exception as error:
            raise failure("creating", self.url, name, error) from error

    def upload(self, name: str) -> Upload:
        return _S3Upload(self, name)

    def put_file(self, name: str, path: str) -> None:
        """Upload a local file, in parts if it is large; it shows when it is complete."""
        try:
            self._fs.put_file(
                path,
                f"{self._bucket}/{self._key(name)}",
                chunksize=_PART_BYTES,
                max_concurrency=2,
                ContentType="application/octet-stream",
            )
        except Exception as error:
            raise failure("uploading", self.url, name, error) from error

    def delete(self, names: Iterable[str]) -> None:
        keys = [{"Key": self._key(name)} for name in names]
        for first in range(0, len(keys), _DELETE_AT_ONCE):
            some = keys[first : first + _DELETE_AT_ONCE]
            try:
                answer = self._fs.call_s3(
                    "delete_objects", Bucket=self._bucket, Delete={"Objects": some, "Quiet": True}
                )
            except Exception as error:
                raise failure("deleting", self.url, some[0]["Key"], error) from error
            for failed in answer.get("Errors", ()):
                reason = OSError(f"{failed.get('Code')} {failed.get('Message')}")
                raise failure("deleting", self.url, failed.get("Key", ""), reason)

    # -- reading ---------------------------------------------------------------------------------

    def get(self, name: str) -> bytes:
        return self._read(name, None, None)

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        if stop <= start:
            return b""
        try:
            return self._read(name, start, stop)
        except StorageError as error:
            if _http_status(error.__cause__) == 416:  # begins at or behind the end
                return b""
            raise

    def _read(self, name: str, start: int | None, stop: int | None) -> bytes:
        path = f"{self._bucket}/{self._key(name)}"
        try:
            # With more concurrency s3fs would ask for the size first.
            data: bytes = self._fs.cat_file(path, start=start, end=stop, max_concurrency=1)
            return data
        except FileNotFoundError as error:
            raise ObjectNotFound(f"there is no {self.url}/{name}") from error
        except Exception as error:
            raise failure("reading", self.url, name, error) from error

    def size(self, name: str) -> int:
        key = self._key(name)
        try:
            answer = self._fs.call_s3("head_object", Bucket=self._bucket, Key=key)
            return int(answer["ContentLength"])
        except Exception as error:
            if isinstance(error, FileNotFoundError) or _http_status(error) == 404:
                raise ObjectNotFound(f"there is no {self.url}/{name}") from error
            raise failure("reading", self.url, name, error) from error

    def list(self, folder: str, start_after: str = "") -> list[str]:
        prefix = self._folder_prefix(folder)
        names = []
        for page in self._pages(folder, Delimiter="/", StartAfter=prefix + start_after):
            names += [item["Key"][len(prefix) :] for item in page.get("Contents", ())]
        # Some tools leave an object of the folder's own name behind; and S3 sorts by UTF-8.
        return sorted(name for name in names if name and name > start_after)

    def list_folders(self, folder: str) -> list[str]:
        prefix = self._folder_prefix(folder)
        found = []
        for page in self._pages(folder, Delimiter="/"):
            found += [item["Prefix"][len(prefix) : -1] for item in page.get("CommonPrefixes", ())]
        return sorted(name for name in found if name)

    def list_all(self, folder: str) -> Iterator[tuple[str, int]]:
        for page in self._pages(folder):
            for item in page.get("Contents", ()):
                yield item["Key"][len(self._prefix) :], int(item["Size"])

    def _pages(self, folder: str, **arguments: str) -> Iterator[dict[str, Any]]:
        """The pages of a listing, at most 1,000 objects each, one request each."""
        arguments |= {"Bucket": self._bucket, "Prefix": self._folder_prefix(folder)}
        while True:
            try:
                page: dict[str, Any] = self._fs.call_s3("list_objects_v2", **arguments)
            except Exception as error:
                raise failure("listing", self.url, folder, error) from error
            yield page
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]


class _S3Upload(Upload):
    """Spooled to a local temporary file, so that memory stays small, and uploaded at the end."""

    def __init__(self, storage: S3Storage, name: str) -> None:
        check_name(name)
        self._storage = storage
        self._name = name
        self._size_bytes = 0
        try:
            self._spool = tempfile.NamedTemporaryFile(prefix="txnlog-")  # noqa: SIM115
        except OSError as error:
            raise failure("spooling", storage.url, name, error) from error

    def write(self, data: bytes) -> int:
        try:
            self._size_bytes += len(data)
            return self._spool.write(data)
        except OSError as error:
            raise failure("spooling", self._storage.url, self._name, error) from error

    def close(self) -> None:
        if self._spool.closed:
            return
        with self._spool:
            self._spool.flush()
            if self._size_bytes <= _SMALL_BYTES:
                self._spool.seek(0)
                self._storage.put(self._name, self._spool.read())
            else:
                self._storage.put_file(self._name, self._spool.name)

    def discard(self) -> None:
        self._spool.close()


def _http_status(error: BaseException | None) -> int | None:
    """The status code of botocore's answer behind an error of s3fs, if there is one."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return int(status) if status is not None else None
        error = error.__cause__
    return None
