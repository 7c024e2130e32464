"""The requests to Azure Blob Storage, with the service client and credentials of adlfs.

One level below adlfs's file functions: those take any conflict for a taken name, read names that
have a '?' or '#' in them as URLs, and keep listings. Imports adlfs; nothing else may. Knows
containers and keys; nothing of stores.
"""

from __future__ import annotations

import asyncio
import io
import os
import weakref
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from adlfs import AzureBlobFileSystem
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
)
from azure.storage.blob import BlobBlock
from azure.storage.blob.aio import BlobPrefix
from fsspec.asyn import sync

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

T = TypeVar("T")

_HINTS_BY_CODE = {
    "AccountIsDisabled": "the storage account is disabled: enable it",
    "AuthenticationFailed": "the credentials are wrong or expired: check storage_options, and the "
    "clock of this machine",
    "AuthorizationPermissionMismatch": "the identity needs the role Storage Blob Data Contributor "
    "on this container",
    "ContainerBeingDeleted": "the container is being deleted: use another one",
    "ContainerNotFound": "create the container, or correct the URL or the account",
    "InvalidResourceName": "containers have 3 to 63 lower-case letters, digits and hyphens",
    "PublicAccessNotPermitted": "give credentials in storage_options",
    "NoAuthenticationInformation": "give credentials in storage_options",
}
_HINTS_BY_STATUS = BUSY_HINTS | {
    400: "the server did not understand the request: check account and container",
    401: "the credentials are missing, wrong or expired: check storage_options",
    403: "permission is denied: whoever writes needs to read, write, create, delete and list blobs "
    "in this container, in a SAS token sp=racwdl",
}
_NO_ANSWER = "nothing answers: check the account's name or host, network and firewall"
_NO_CREDENTIALS = "give account_key, sas_token, connection_string or a service principal"
_VARIABLES = ("AZURE_", "IDENTITY_", "MSI_")
"""How the names of those begin that adlfs and azure-identity read."""
_NOT_FOUND = ("BlobNotFound", "ResourceNotFound", "PathNotFound")
_PARTS_AT_ONCE = 2
"""An upload needs up to 2 * PART_BYTES of memory, whatever its size."""
_FOLDER = "hdi_isfolder"
"""The metadata by which accounts with real folders mark them in listings."""


class AzureClient(ObjectClient):
    """One container, with the options of ``adlfs.AzureBlobFileSystem``."""

    def __init__(self, container: str, options: Mapping[str, Any]) -> None:
        self._files = _Files(**options, made_in=surroundings(_VARIABLES, {}))
        _leave_to_the_parent(self._files)
        self._container = self._files.service_client.get_container_client(container)
        # We retry ourselves: the library waits 15 s before it retries.
        self._each: dict[str, Any] = {**self._files.timeouts(), "retry_total": 0}

    def create(self, key: str, data: bytes) -> None:
        self._put(key, data, overwrite=False)

    def write(self, key: str, data: bytes) -> None:
        self._put(key, data, overwrite=True)

    def _put(self, key: str, data: bytes, *, overwrite: bool) -> None:
        """One request: the library splits what is larger than 64 MiB, and no caller has that."""
        blob = self._container.get_blob_client(key)
        self._ask(partial(blob.upload_blob, data, overwrite=overwrite, **self._each))

    def write_file(self, key: str, path: str) -> None:
        """In blocks, which the server drops after a week if we die before they are a blob."""
        blob = self._container.get_blob_client(key)
        blocks: list[BlobBlock] = []
        with Path(path).open("rb") as file:
            while parts := self._next_parts(file):
                ids = [f"{len(blocks) + number:08d}" for number in range(len(parts))]
                patiently(partial(self._stage, blob, dict(zip(ids, parts, strict=True))))
                blocks += [BlobBlock(block_id=block_id) for block_id in ids]
        patiently(partial(self._ask, partial(blob.commit_block_list, blocks, **self._each)))

    def _next_parts(self, file: io.BufferedReader) -> list[bytes]:
        parts = (file.read(PART_BYTES) for _ in range(_PARTS_AT_ONCE))
        return [part for part in parts if part]

    def _stage(self, blob: Any, parts: Mapping[str, bytes]) -> None:
        async def stage() -> None:
            calls = [
                blob.stage_block(block_id, io.BytesIO(part), length=len(part), **self._each)
                for block_id, part in parts.items()
            ]
            done = await asyncio.gather(*calls, return_exceptions=True)
            for failed in done:
                if isinstance(failed, BaseException):
                    raise failed

        self._ask(stage)

    def read(self, key: str) -> bytes:
        return self._download(key)

    def read_range(self, key: str, start: int, stop: int) -> bytes:
        return self._download(key, offset=start, length=stop - start)

    def _download(self, key: str, **byte_range: int) -> bytes:
        """One request for up to 32 MiB, of which the library then asks for the rest."""
        whole = not byte_range
        blob = self._container.get_blob_client(key)

        async def download() -> bytes:
            # As it is stored: a blob that somebody has marked as compressed could be of any size.
            stream = await blob.download_blob(
                max_concurrency=_PARTS_AT_ONCE, decompress=False, **byte_range, **self._each
            )
            check_whole(stream.size if whole else None)
            data: bytes = await stream.readall()
            return data

        return self._ask(download)

    def describe(self, key: str) -> tuple[int, int]:
        blob = self._container.get_blob_client(key)
        found = self._ask(partial(blob.get_blob_properties, **self._each))
        return int(found.size), int(found.last_modified.timestamp() * 1000)

    def list_page(
        self,
        prefix: str,
        *,
        start_after: str,  # noqa: ARG002 - Azure's listings begin at the beginning
        deep: bool,
        next_page: str | None,
    ) -> ListingPage:
        given = {"name_starts_with": prefix, "include": ["metadata"], **self._each}
        listing = (
            self._container.list_blobs(**given) if deep else self._container.walk_blobs(**given)
        )
        pages = listing.by_page(next_page)

        async def list_one() -> ListingPage:
            objects: list[tuple[str, int]] = []
            folders: list[str] = []
            async for found in await anext(pages):
                if isinstance(found, BlobPrefix):
                    folders.append(found.name)
                elif (found.metadata or {}).get(_FOLDER) != "true":
                    objects.append((found.name, int(found.size)))
            return ListingPage(objects, folders, pages.continuation_token or None)

        return self._ask(list_one)

    def delete(self, key: str) -> None:
        blob = self._container.get_blob_client(key)
        self._ask(partial(blob.delete_blob, **self._each))

    def _ask(self, request: Callable[[], Awaitable[T]]) -> T:
        """One request; raises RequestFailed."""
        try:
            answer: T = sync(self._files.loop, request)
        except TooLarge:
            raise
        # The library lets errors of the connection below through, where a body breaks off.
        except (AzureError, aiohttp.ClientError, OSError) as error:
            raise _judge(error) from error
        return answer


class _Files(KeptBySurroundings, AzureBlobFileSystem):  # type: ignore[misc] # adlfs has no types
    """adlfs, for its service client.

    A class of its own has its own cache of instances in fsspec, so nobody else's are changed.
    """

    def timeouts(self) -> dict[str, int]:
        """The options' timeouts, in the form of the library's calls."""
        found: dict[str, int] = self._timeout_kwargs
        return found


_CLOSERS: list[weakref.finalize[..., AzureBlobFileSystem]] = []


def _leave_to_the_parent(files: AzureBlobFileSystem) -> None:
    """Keep a forked child from closing inherited connections when it ends.

    adlfs closes its connections at exit, on the event loop: that of the parent, so that a child
    would wait for ever.
    """
    for closer in tuple(weakref.finalize._registry):  # type: ignore[attr-defined] # noqa: SLF001
        found = closer.peek()
        if found is not None and found[0] is files and closer not in _CLOSERS:
            _CLOSERS.append(closer)


def _forget_closers() -> None:
    for closer in _CLOSERS:
        closer.atexit = False
    _CLOSERS.clear()


os.register_at_fork(after_in_child=_forget_closers)


def _judge(error: Exception) -> RequestFailed:
    # Then come the request's number, the time, and all of it again in XML.
    text = str(error).strip().partition("\n")[0] or type(error).__name__
    response: Any = getattr(error, "response", None)
    if not isinstance(error, HttpResponseError) or response is None:
        if isinstance(error, ClientAuthenticationError):
            return RequestFailed(Answer.REFUSED, text, _NO_CREDENTIALS)
        return RequestFailed(Answer.BUSY, text, _NO_ANSWER)
    status = int(error.status_code or 0)
    # Azure's code for the error, such as ContainerNotFound.
    code = str(response.headers.get("x-ms-error-code", ""))
    if code == "BlobAlreadyExists" or (status == 412 and code == "ConditionNotMet"):
        return RequestFailed(Answer.TAKEN, text)
    if status == 416:
        return RequestFailed(Answer.PAST_END, text)
    # A missing container is a 404 too, but nothing that a reader of one object should expect.
    if status == 404 and code in _NOT_FOUND:
        return RequestFailed(Answer.MISSING, text)
    return RequestFailed(
        Answer.BUSY if status in BUSY_STATUSES else Answer.REFUSED,
        f"{status} {code} {text}",
        _HINTS_BY_CODE.get(code) or _HINTS_BY_STATUS.get(status, ""),
        pause_asked(response.headers.get("Retry-After")),
    )
