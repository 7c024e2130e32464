"""The S3 client: s3fs, with what txnlog needs of it changed. Imports s3fs; nothing else may.

Knows buckets, keys and botocore; nothing of stores.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import gzip
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from aiobotocore.session import AioSession  # type: ignore[import-untyped]
from botocore.loaders import JSONFileLoader, Loader, create_loader  # type: ignore[import-untyped]
from botocore.utils import parse_timestamp  # type: ignore[import-untyped]
from fsspec.asyn import sync_wrapper
from s3fs import S3FileSystem
from s3fs.core import S3_RETRYABLE_ERRORS

from txnlog.storage.adapters.s3_credentials import Renewal, may_be_credentials
from txnlog.storage.adapters.s3_reads import QuickReads, noting_requests, watch_requests
from txnlog.storage.adapters.surroundings import KeptBySurroundings
from txnlog.storage.whole import check_whole

_BODY_ATTEMPTS = 3
_READS_AT_ONCE = 32
"""How many requests are made together, by however many threads: half of the connections."""


class S3Files(KeptBySurroundings, S3FileSystem):  # type: ignore[misc] # s3fs has no types
    """s3fs with a read of one request, and with retries that end while a person still waits.

    A class of its own has its own cache of instances in fsspec, so nobody else's are changed.
    """

    # s3fs repeats what botocore has repeated already, by default 5 times 5. Together with the
    # attempts below: a server that refuses connections is reported within 3 s, one that does not
    # answer within 90 s (at the default timeouts), and throttling is waited out 6 times.
    retries = 2

    def _prepare_config_kwargs(self) -> dict[str, Any]:
        settings: dict[str, Any] = super()._prepare_config_kwargs()
        settings.setdefault("retries", {"mode": "standard", "total_max_attempts": 3})
        # gather() runs 16 requests at a time, for each of several threads.
        settings.setdefault("max_pool_connections", 64)
        return settings

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        given: Any = self.session
        self.session: Any = given or make_session(**self.kwargs)
        explicit = self.anon or self.key or "aws_access_key_id" in self.client_kwargs
        self._renewal: Renewal | None = None
        if not given and not explicit:
            self._renewal = Renewal(partial(make_session, **self.kwargs))

    async def get_s3(self, bucket: str | None = None) -> Any:
        """The client of botocore, whose requests with a body do not ask whether they may come.

        A server that stalls when it is asked (``Expect: 100-continue``) is waited for without any
        timeout; asked or not, a body costs a round trip less without.
        """
        client = await super().get_s3(bucket)
        client.meta.events.register_last(
            "before-call.s3", _send_body_at_once, unique_id="txnlog-send-body-at-once"
        )
        watch_requests(client)
        # Most of the time that a listing took went into its objects' times, which nobody asks for.
        parsers = self.session.get_component("response_parser_factory")
        parsers.set_parser_defaults(timestamp_parser=_parse_time)
        return client

    def _get_s3_method_kwargs(
        self, method: Any, *defaults: dict[str, Any], **arguments: Any
    ) -> dict[str, Any]:
        # Older releases say only in some requests who pays.
        found: dict[str, Any] = super()._get_s3_method_kwargs(
            method, self.req_kw, *defaults, **arguments
        )
        return found

    async def _call_s3(self, method: str, *defaults: dict[str, Any], **arguments: Any) -> Any:
        """A request; again, with other credentials, if these were refused and may be out of date.

        One that was refused has had no effect.
        """
        await self.set_session()
        client = await self.get_s3(arguments.get("Bucket"))
        used = Renewal.used_by(client)
        try:
            return await super()._call_s3(method, *defaults, **arguments)
        except Exception as error:
            if self._renewal is None or not may_be_credentials(code_of(error), method):
                raise
            if not await self._renewal.renew(client, used):
                raise
        self.__dict__.pop("_txnlog_reads", None)  # they have stopped at the refusal
        return await super()._call_s3(method, *defaults, **arguments)

    call_s3 = sync_wrapper(_call_s3)

    async def _read_object(self, bucket: str, key: str, byte_range: str | None) -> bytes:
        """The object, or a part such as ``bytes=0-9``.

        Not s3fs's ``cat_file``: that asks for the size first, unless told otherwise by an argument
        that older releases do not have.
        """
        await self.set_session()
        client = await super().get_s3(bucket)
        data = await self._quick_reads().read(client, bucket, key, byte_range)
        if data is not None:
            return data
        ranged = {} if byte_range is None else {"Range": byte_range}
        for attempt in range(1, _BODY_ATTEMPTS + 1):
            with noting_requests() as sent:
                answer = await self._call_s3("get_object", Bucket=bucket, Key=key, **ranged)
            try:
                if byte_range is None:
                    check_whole(answer.get("ContentLength"))
                body: bytes = await answer["Body"].read()
            except S3_RETRYABLE_ERRORS:
                # The connection broke within the body, which botocore does not repeat.
                if attempt == _BODY_ATTEMPTS:
                    raise
            else:
                if sent:
                    self._quick_reads().learn(client, bucket, key, sent[-1])
                return body
            finally:
                answer["Body"].close()
        raise AssertionError("the loop returns or raises")

    read_object = sync_wrapper(_read_object)

    def _quick_reads(self) -> QuickReads:
        quick: QuickReads = self.__dict__.setdefault("_txnlog_reads", QuickReads())
        return quick

    async def _read_objects(
        self, bucket: str, wanted: Sequence[tuple[str, str | None]]
    ) -> list[bytes | BaseException]:
        """For each key and range what :meth:`_read_object` returns, or raises."""
        limit: asyncio.Semaphore = self.__dict__.setdefault(
            "_txnlog_limit", asyncio.Semaphore(_READS_AT_ONCE)
        )

        async def read(key: str, byte_range: str | None) -> bytes:
            async with limit:
                return await self._read_object(bucket, key, byte_range)

        return await asyncio.gather(*(read(*one) for one in wanted), return_exceptions=True)

    read_objects = sync_wrapper(_read_objects)

    def knows_conditional_create(self) -> bool:
        """False if botocore is older than If-None-Match.

        s3fs drops arguments that botocore does not know: every create would overwrite.
        """
        operation = self.s3.meta.service_model.operation_model("PutObject")
        return "IfNoneMatch" in operation.input_shape.members


def _parse_time(text: str) -> dt.datetime:
    """Parse a time in S3's answers; other formats are left to botocore, whose parser is slow."""
    try:
        found = dt.datetime.fromisoformat(text)
        return found if found.tzinfo else found.replace(tzinfo=dt.UTC)
    except (TypeError, ValueError):
        return parse_timestamp(text)  # type: ignore[no-any-return]


def _send_body_at_once(params: dict[str, Any], **_: object) -> None:
    params["headers"].pop("Expect", None)


def status_of(error: BaseException | None) -> int | None:
    """The status code of the server's answer behind an error of s3fs, if there was one."""
    for answer in _answers(error):
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return int(status) if status is not None else None
    return None


def code_of(error: BaseException | None) -> str:
    """S3's code for the error, such as ``NoSuchBucket``, or the name of botocore's class for it."""
    for answer in _answers(error):
        return str(answer.get("Error", {}).get("Code", ""))
    return type(error).__name__


def _answers(error: BaseException | None) -> Iterator[dict[str, Any]]:
    while error is not None:
        answer = getattr(error, "response", None)
        if isinstance(answer, dict):
            yield answer
        error = error.__cause__


def make_session(**given: Any) -> AioSession:
    """A session of botocore's, as ``AioSession(**given)``, that loads models quickly.

    They are most of what a process does until its first request to S3: botocore parses megabytes of
    JSON into ordered dictionaries, and looks into the folder of each of its 400 services to learn
    that S3 is one of them.
    """
    session = AioSession(**given)
    searched = create_loader(session.get_config_variable("data_path")).search_paths
    loader = _QuickLoader(searched, include_default_search_paths=False)
    session.register_component("data_loader", loader)
    return session


class _QuickFiles(JSONFileLoader):  # type: ignore[misc] # botocore has no types
    def load_file(self, file_path: str) -> Any:
        """The content of a file, whose name is told without its ending."""
        plain, packed = Path(f"{file_path}.json"), Path(f"{file_path}.json.gz")
        if plain.is_file():
            return msgspec.json.decode(plain.read_bytes())
        if packed.is_file():
            return msgspec.json.decode(gzip.decompress(packed.read_bytes()))
        return super().load_file(file_path)


class _QuickLoader(Loader):  # type: ignore[misc] # botocore has no types
    FILE_LOADER_CLASS = _QuickFiles

    def list_available_services(self, type_name: str) -> list[str]:  # noqa: ARG002
        """All services with a folder; one without a model of the type fails when it is loaded."""
        folders = [Path(path) for path in self.search_paths]
        return sorted({one.name for path in folders if path.is_dir() for one in path.iterdir()})
