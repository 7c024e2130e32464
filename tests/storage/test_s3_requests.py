"""What is sent to S3: who we are, where it goes, who pays, how it is encrypted; and what is shared.

Each option of ``storage_options`` is looked for in every request that needs it.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from txnlog.errors import InvalidOption, StorageError
from txnlog.storage import open_storage
from txnlog.storage.adapters.s3 import S3Storage

pytestmark = pytest.mark.s3

_COUNTER = itertools.count()
_LARGE = bytes(17 << 20)


class Sent:
    """The requests of a storage: by operation, the headers of each."""

    def __init__(self, storage: S3Storage) -> None:
        self.headers: dict[str, list[dict[str, str]]] = {}
        self.urls: list[str] = []
        storage.client.files.s3.meta.events.register("before-send.s3", self._note)

    def _note(self, request: Any, event_name: str, **_: Any) -> None:
        operation = event_name.rpartition(".")[2]
        headers = {
            name.lower(): value.decode() if isinstance(value, bytes) else str(value)
            for name, value in request.headers.items()
        }
        self.headers.setdefault(operation, []).append(headers)
        self.urls.append(request.url)

    def with_header(self, name: str, value: str | None = None) -> set[str]:
        """The operations all of whose requests have a header; with ``value``, that one."""
        return {
            operation
            for operation, requests in self.headers.items()
            if all(headers.get(name) == value if value else name in headers for headers in requests)
        }

    def without_header(self, name: str) -> set[str]:
        return {op for op, requests in self.headers.items() if all(name not in h for h in requests)}


def do_everything(storage: S3Storage) -> Sent:
    """Each kind of request that a store makes."""
    sent = Sent(storage)
    storage.put_if_absent("a", b"x")
    storage.put("b", b"x")
    with storage.upload("c") as upload:
        upload.write(_LARGE)
    assert storage.get("a") == b"x"
    assert storage.get_range("c", 3, 5) == _LARGE[3:5]
    assert storage.size("c") == len(_LARGE)
    assert storage.modified_ms("a") is not None
    assert storage.list_names("") == ["a", "b", "c"]
    begun = storage.client.files.call_s3(
        "create_multipart_upload", Bucket="test", Key=storage._key("killed")
    )
    part = {"Bucket": "test", "Key": storage._key("killed"), "UploadId": begun["UploadId"]}
    storage.client.files.call_s3("upload_part", PartNumber=1, Body=b"x", **part)
    (left,) = storage.list_unfinished_uploads()
    storage.abort_uploads([left])
    storage.delete(["a", "b", "c"])
    return sent


WRITES = {"PutObject", "CreateMultipartUpload"}
PARTS = {"UploadPart", "CompleteMultipartUpload", "AbortMultipartUpload", "ListParts"}
READS = {"GetObject", "HeadObject"}
OTHERS = {"ListObjectsV2", "DeleteObjects", "ListMultipartUploads"}
ALL = WRITES | PARTS | READS | OTHERS


def open_anew(s3_options: dict[str, Any], **options: object) -> S3Storage:
    """A storage with a connection of its own, options as they come from Spark."""
    given = {**s3_options, **options, "skip_instance_cache": "true"}
    storage = open_storage(f"s3://test/sent-{next(_COUNTER)}", given)
    assert isinstance(storage, S3Storage)
    storage.trust()
    return storage


def test_encryption_with_a_servers_key_is_asked_for_in_every_write(
    s3_options: dict[str, Any],
) -> None:
    """``s3_additional_kwargs`` as JSON: small objects and large ones, and no other request."""
    extra = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "a-key", "StorageClass": "STANDARD"}
    storage = open_anew(s3_options, s3_additional_kwargs=json.dumps(extra))
    sent = do_everything(storage)
    assert sent.headers.keys() == ALL
    assert sent.with_header("x-amz-server-side-encryption", "aws:kms") == WRITES
    assert sent.with_header("x-amz-server-side-encryption-aws-kms-key-id", "a-key") == WRITES
    assert sent.without_header("x-amz-server-side-encryption") == ALL - WRITES


def test_a_key_of_the_customers_goes_with_every_write_part_and_read(
    s3_options: dict[str, Any],
) -> None:
    """SSE-C: without the key the server could neither write a part nor read."""
    key = "k" * 32
    extra = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": key}
    storage = open_anew(s3_options, s3_additional_kwargs=extra)
    sent = do_everything(storage)
    prefix = "x-amz-server-side-encryption-customer"
    needing = WRITES | READS | {"UploadPart"}
    for header in (f"{prefix}-algorithm", f"{prefix}-key", f"{prefix}-key-md5"):
        assert sent.with_header(header) >= needing
        assert sent.without_header(header) >= OTHERS
    assert key not in repr(storage)
    assert key in storage._secrets


@pytest.mark.parametrize("given", [pytest.param(True, marks=pytest.mark.more), "true"])
def test_whoever_asks_pays_for_every_request(given: object, s3_options: dict[str, Any]) -> None:
    """A bucket whose requester pays refuses all that does not say so."""
    sent = do_everything(open_anew(s3_options, requester_pays=given))
    assert sent.with_header("x-amz-request-payer", "requester") == ALL


class _Refused(Exception):
    """Nothing is sent."""


def first_request(url: str, **options: object) -> Any:
    """The first request of a put, which is not sent."""
    storage = open_storage(url, {**options, "skip_instance_cache": True})
    assert isinstance(storage, S3Storage)
    storage.trust()
    found: list[Any] = []

    def refuse(request: Any, **_: Any) -> None:
        found.append(request)
        raise _Refused

    storage.client.files.s3.meta.events.register("before-send.s3.PutObject", refuse)
    with suppress(StorageError):
        storage.put("a", b"x")
    return found[0]


KEYS = {"key": "AKIATEST", "secret": "the-secret-of-it"}


def scope(request: Any) -> list[str]:
    """The scope of a signed request: access key, date, region, service."""
    signed = request.headers["Authorization"]
    text = signed.decode() if isinstance(signed, bytes) else signed
    credential: str = text.partition("Credential=")[2].partition(",")[0]
    return credential.split("/")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("style", "host", "path"),
    [("path", "s3.example.test:9000", "/bucket/folder/a"),
     ("virtual", "bucket.s3.example.test:9000", "/folder/a")],
)  # fmt: skip
def test_endpoint_region_and_path_style(style: str, host: str, path: str) -> None:
    """Where the request goes, and for which region it is signed."""
    request = first_request(
        "s3://bucket/folder",
        **KEYS,
        endpoint_url="http://s3.example.test:9000",
        client_kwargs='{"region_name": "eu-central-1"}',
        config_kwargs=json.dumps({"s3": {"addressing_style": style}}),
    )
    parts = urlsplit(request.url)
    assert (parts.netloc, parts.path) == (host, path)
    assert (scope(request)[0], scope(request)[2]) == ("AKIATEST", "eu-central-1")


def test_a_sessions_token_goes_along() -> None:
    """Temporary credentials are three values."""
    request = first_request("s3://bucket/folder", **KEYS, token="the-token")
    assert request.headers["X-Amz-Security-Token"] in ("the-token", b"the-token")


@pytest.fixture
def aws_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes what is usually in ~/.aws."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)

    def write(config: str, credentials: str) -> None:
        for name, variable, text in (
            ("config", "AWS_CONFIG_FILE", config),
            ("credentials", "AWS_SHARED_CREDENTIALS_FILE", credentials),
        ):
            (tmp_path / name).write_text(text)
            monkeypatch.setenv(variable, str(tmp_path / name))

    return write


def test_a_profile_says_who_we_are_and_where(aws_files: Callable[[str, str], None]) -> None:
    """``profile`` names one of ~/.aws/config: its keys, region and endpoint."""
    aws_files(
        "[profile lake]\nregion = eu-west-3\nendpoint_url = http://lake.example.test\n",
        "[lake]\naws_access_key_id = AKIALAKE\naws_secret_access_key = lakes\n",
    )
    request = first_request("s3://bucket/folder", profile="lake")
    assert (scope(request)[0], scope(request)[2]) == ("AKIALAKE", "eu-west-3")
    assert "lake.example.test" in urlsplit(request.url).netloc


_ASSUMED = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>
<Credentials><AccessKeyId>ASIAROLE</AccessKeyId><SecretAccessKey>roles</SecretAccessKey>
<SessionToken>token-of-the-role</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration>
</Credentials></AssumeRoleResult></AssumeRoleResponse>"""


@contextmanager
def token_service() -> Iterator[tuple[str, list[dict[str, list[str]]]]]:
    """A token service, and what it was asked."""
    asked: list[dict[str, list[str]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            asked.append(parse_qs(self.rfile.read(length).decode()))
            self.send_response(200)
            self.send_header("Content-Length", str(len(_ASSUMED)))
            self.end_headers()
            self.wfile.write(_ASSUMED.encode())

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_role_is_assumed(
    aws_files: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile with a role: requests are signed with what the token service gives for it."""
    aws_files(
        "[profile job]\nrole_arn = arn:aws:iam::123456789012:role/etl\nsource_profile = me\n"
        "region = us-east-1\n",
        "[me]\naws_access_key_id = AKIAME\naws_secret_access_key = mine\n",
    )
    with token_service() as (endpoint, asked):
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", endpoint)
        request = first_request("s3://bucket/folder", profile="job")
    assert asked[0]["Action"] == ["AssumeRole"]
    assert asked[0]["RoleArn"] == ["arn:aws:iam::123456789012:role/etl"]
    assert scope(request)[0] == "ASIAROLE"
    assert request.headers["X-Amz-Security-Token"] in ("token-of-the-role", b"token-of-the-role")


def test_an_option_that_nobody_knows_is_named() -> None:
    """No request is made, and nothing is tried again."""
    storage = S3Storage("bucket/folder", {**KEYS, "regoin": "eu-west-1"})
    with pytest.raises(InvalidOption, match="regoin"):
        storage.get("a")


# -- what is shared ------------------------------------------------------------------------------


def test_connections_are_shared_and_sized(s3_options: dict[str, Any]) -> None:
    """Storages with the same options have one client; clients of a process have one event loop.

    The pool is large enough for several threads that gather, and users may choose its size.
    """
    one, other = S3Storage("test/one", s3_options), S3Storage("test/other", s3_options)
    assert one.client.files is other.client.files
    assert one.client.files.s3.meta.config.max_pool_connections == 64
    own = {**s3_options, "config_kwargs": {"max_pool_connections": 7}}
    sized = S3Storage("test/one", own)
    assert sized.client.files is not one.client.files
    assert sized.client.files.s3.meta.config.max_pool_connections == 7
    assert sized.client.files.loop is one.client.files.loop


# -- uploads that were killed --------------------------------------------------------------------


def begin_upload(storage: S3Storage, name: str, *parts: bytes) -> str:
    """The leftovers of a process killed during an upload."""
    where = {"Bucket": "test", "Key": storage._key(name)}
    upload_id: str = storage.client.files.call_s3("create_multipart_upload", **where)["UploadId"]
    for number, part in enumerate(parts, 1):
        storage.client.files.call_s3(
            "upload_part", PartNumber=number, Body=part, UploadId=upload_id, **where
        )
    return upload_id


def test_uploads_that_were_killed_are_listed_and_aborted(s3_options: dict[str, Any]) -> None:
    """The uploads below the store's prefix, with their sizes; another store's stay."""
    storage = open_anew(s3_options)
    beside = S3Storage(f"test/{storage.url.rpartition('/')[2]}-beside", s3_options)
    upload_id = begin_upload(storage, "data/killed", bytes(5 << 20), b"tail")
    other_id = begin_upload(beside, "data/theirs", b"x")
    (left,) = storage.list_unfinished_uploads()
    assert (left.name, left.upload_id) == ("data/killed", upload_id)
    assert left.size_bytes == (5 << 20) + 4
    assert list(storage.list_all("")) == []
    storage.abort_uploads([left])
    assert list(storage.list_unfinished_uploads()) == []
    storage.abort_uploads([left])  # it is over
    (theirs,) = beside.list_unfinished_uploads()
    assert theirs.upload_id == other_id
    beside.abort_uploads([theirs])
