"""Storage on S3 and servers that speak its protocol, through s3fs.

Put-if-absent is a PUT with ``If-None-Match: *``. Knows URLs and options, and what S3 has beyond
other services: many objects in one request, uploads that were killed, copies by the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from txnlog.errors import StorageError
from txnlog.storage.adapters.http_answers import Answer, RequestFailed, patiently
from txnlog.storage.adapters.object_store import READING, ObjectStore, bucket_path, check_endpoint
from txnlog.storage.base import Storage, UnfinishedUpload, lasts
from txnlog.storage.option_types import parse_options
from txnlog.storage.whole import TooLarge

if TYPE_CHECKING:
    from txnlog.storage.adapters.s3_client import S3Client

T = TypeVar("T")

_DELETE_AT_ONCE = 1000
_SMALL_READS_AT_ONCE = 8
_CANNOT_COPY = (400, 403, 405, 501)
"""What servers say of an object that is too large to be copied in one step, or of any."""

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
    check_endpoint(_endpoint(parsed), "the options key and secret")
    return S3Storage(path, parsed)


def _endpoint(options: Mapping[str, Any]) -> str:
    """The server's URL; "" is AWS."""
    nested = options.get("client_kwargs") or {}
    return str(options.get("endpoint_url") or nested.get("endpoint_url") or "")


class S3Storage(ObjectStore["S3Client"]):
    """Objects below ``s3://bucket/prefix``.

    Options are s3fs's: key, secret, token, endpoint_url, client_kwargs, ...
    """

    needs = "s3fs", "s3"

    def __init__(self, path: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"s3://{path.strip('/')}", options)

    def __reduce__(self) -> tuple[type[Self], tuple[str, dict[str, Any]]]:
        return type(self), (self.url.removeprefix("s3://"), self._options)

    @property
    def server(self) -> tuple[str, str, str]:
        """The endpoint is the client's: a profile or the environment may name it, too."""
        return "s3", self.client.endpoint, self._bucket

    @property
    def checked_for_s(self) -> float | None:
        # Who asks does not wait: while there is no client, nothing is checked.
        return super().checked_for_s if self._usable_client() else None

    def _load_client(self) -> Callable[[], S3Client]:
        from txnlog.storage.adapters.s3_client import S3Client

        return partial(S3Client, self._bucket, self._options)

    def _patiently(self, request: Callable[[], T]) -> T:
        """Make it once: botocore and s3fs have repeated it."""
        return request()

    # -- writing ---------------------------------------------------------------------------------

    def take_over(self, name: str, source: Storage) -> bool:
        """A copy that the server makes, of up to 5 GB."""
        from txnlog.storage.adapters.s3_files import status_of

        if not isinstance(source, S3Storage) or source.address().options != self._options:
            return False
        key, client = self._key(name), self.client
        bucket, _, prefix = source.url.removeprefix("s3://").partition("/")
        copied = {"Bucket": bucket, "Key": f"{prefix}/{name}" if prefix else name}
        try:
            client.ask("copy_object", Key=key, CopySource=copied)
        except RequestFailed as error:
            if status_of(error) in _CANNOT_COPY:
                return False
            raise self._failure(READING, name, error) from error
        return True

    def delete(self, names: Iterable[str]) -> None:
        keys = [self._key(name) for name in names]
        failed: StorageError | None = None
        for first in range(0, len(keys), _DELETE_AT_ONCE):
            try:
                self._delete_together(keys[first : first + _DELETE_AT_ONCE])
            except StorageError as error:
                if not lasts(error):
                    raise
                failed = failed or error
        if failed is not None:
            raise failed

    def _delete_together(self, keys: Sequence[str]) -> None:
        """Delete up to 1,000 objects; again those for which the server had no time."""
        client, left = self.client, keys
        refused: list[tuple[str, RequestFailed]] = []

        def delete_left() -> None:
            nonlocal left
            with self._explained("deleting", self._name_of(left[0])):
                answers = client.delete_together(left)
            refused.extend(one for one in answers if one[1].answer is not Answer.BUSY)
            busy = [one for one in answers if one[1].answer is Answer.BUSY]
            named = {key for key, _ in busy}
            left = [key for key in left if key in named] or left  # some servers name no keys
            if busy:
                raise busy[0][1]

        try:
            patiently(delete_left)
        except RequestFailed as error:
            refused.append((left[0], error))
        for key, why in refused:
            raise self._failure("deleting", self._name_of(key), why) from why

    def list_unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        client = self.client
        with self._explained("listing uploads", ""):
            for key, upload_id, begun_ms in client.list_uploads(self._prefix):
                # Some servers ignore the prefix: another store's uploads are none of ours.
                if key.startswith(self._prefix):
                    size_bytes = client.uploaded_bytes(key, upload_id)
                    yield UnfinishedUpload(self._name_of(key), upload_id, begun_ms, size_bytes)

    def abort_uploads(self, uploads: Iterable[UnfinishedUpload]) -> None:
        for upload in uploads:
            key, client = self._key(upload.name), self.client
            with self._explained("aborting an upload of", upload.name):
                client.abort_upload(key, upload.upload_id)

    def _name_of(self, key: str) -> str:
        return key.removeprefix(self._prefix)

    # -- reading ---------------------------------------------------------------------------------

    def get_many(self, names: Sequence[str]) -> list[bytes]:
        return self._read_together([(name, None) for name in names])

    def get_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        if any(stop <= start for _, start, stop in ranges):
            return super().get_ranges(ranges)
        return self._read_together([(name, (start, stop)) for name, start, stop in ranges])

    def small_reads_at_once(self) -> int:
        return _SMALL_READS_AT_ONCE

    def _read_together(self, wanted: Sequence[tuple[str, tuple[int, int] | None]]) -> list[bytes]:
        """Read what others read one by one, without a thread for each."""
        keys = [(self._key(name), part) for name, part in wanted]
        answers = self.client.read_together(keys)
        return [
            self._data_of(name, answer) for (name, _), answer in zip(wanted, answers, strict=True)
        ]

    def _data_of(self, name: str, answer: bytes | RequestFailed | TooLarge) -> bytes:
        if isinstance(answer, bytes):
            return answer
        if isinstance(answer, RequestFailed) and answer.answer is Answer.PAST_END:
            return b""
        raise self._failure(READING, name, answer) from answer
