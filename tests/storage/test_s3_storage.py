"""What is particular to S3: the number of requests, retries, errors, secrets, parts, forks."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.storage.scripted_s3 import (
    KEY,
    SECRET,
    TOKEN,
    Scripted,
    error,
    half_a_body,
    hang_up,
    run_server,
    scripted_server,
    success,
)
from txnlog.errors import (
    ObjectNotFound,
    PutIfAbsentBroken,
    StorageError,
    UnsupportedFilesystem,
)
from txnlog.storage.adapters.s3 import S3Storage
from txnlog.storage.probe import probe

pytestmark = pytest.mark.s3

_COUNTER = itertools.count()


@pytest.fixture
def storage(s3_options: dict[str, Any]) -> S3Storage:
    """An empty storage with a connection of its own."""
    options = {**s3_options, "skip_instance_cache": True}
    storage = S3Storage(f"test/s3-{next(_COUNTER)}", options)
    storage.trust()  # requests are counted
    return storage


def record_requests(storage: S3Storage) -> list[str]:
    """The names of the requests that botocore sends for ``storage`` from now on."""
    sent: list[str] = []
    events = storage.client.files.s3.meta.events
    events.register("before-send.s3", lambda request, **_: sent.append(request.method))
    return sent


def test_each_operation_is_one_request(storage: S3Storage) -> None:
    """No HEAD before a GET, no listing before a PUT, no repetition."""
    sent = record_requests(storage)
    storage.put_if_absent("a", b"x" * 1000)
    storage.put("b", b"x")
    storage.get("a")
    storage.get_range("a", 3, 9)
    storage.get_range("a", 9, 9)
    storage.size("a")
    storage.list_names("")
    storage.list_folders("")
    with storage.upload("c") as upload:
        upload.write(b"x" * 1000)
    storage.delete(["a", "b", "c"])
    storage.delete([])
    assert sent == ["PUT", "PUT", "GET", "GET", "HEAD", "GET", "GET", "PUT", "POST"]


def test_the_server_copies_what_another_folder_has(
    storage: S3Storage, s3_options: dict[str, Any]
) -> None:
    """In one request; what is done to the source later changes nothing."""
    other = S3Storage(f"test/s3-{next(_COUNTER)}", {**s3_options, "skip_instance_cache": True})
    other.put("f/a b", b"x" * 1000)
    sent = record_requests(storage)
    assert storage.take_over("f/a b", other)
    assert sent == ["PUT"]
    other.delete(["f/a b"])
    assert storage.get("f/a b") == b"x" * 1000
    with pytest.raises(ObjectNotFound):
        storage.take_over("f/a b", other)


def test_nothing_is_copied_with_the_credentials_of_another(storage: S3Storage) -> None:
    other = S3Storage("test/other", {"key": "other", "secret": "s"})
    assert not storage.take_over("a", other)


@pytest.mark.parametrize(
    ("status", "code"),
    [(501, "NotImplemented"), (400, "InvalidRequest"), (403, "AccessDenied")],
)
def test_where_a_server_does_not_copy_that_is_said(status: int, code: str) -> None:
    """Or not an object as large as that."""
    with scripted_server(error(status, code)) as (storage, asked):
        assert not storage.take_over("x", S3Storage("bucket/b", storage.address().options))
    assert asked == ["PUT"]


def test_a_listing_is_one_request_per_thousand_names(storage: S3Storage) -> None:
    """Pages are followed; a listing that starts after a name pays for what follows only."""
    names = [f"{number:05d}" for number in range(2001)]
    backend = _moto_bucket()
    for name in names:
        backend.put_object("test", f"{storage.url.rpartition('/')[2]}/many/{name}", b"")
    sent = record_requests(storage)
    assert storage.list_names("many") == names
    assert sent == ["GET"] * 3
    sent.clear()
    assert storage.list_names("many", "01900") == names[1901:]
    assert sent == ["GET"]
    storage.delete([f"many/{name}" for name in names])
    assert sent == ["GET", "POST", "POST", "POST"]
    assert storage.list_names("many") == []


def _moto_bucket() -> Any:
    """What moto keeps, its own store behind the server: 2,000 objects without 2,000 requests."""
    from moto.s3.models import s3_backends

    return s3_backends["123456789012"]["aws"]


def test_large_uploads_go_in_parts(storage: S3Storage) -> None:
    """An object of several parts arrives whole."""
    content = bytes(range(256)) * 4096 * 18
    operations: list[str] = []
    events = storage.client.files.s3.meta.events
    events.register("before-call.s3", lambda model, **_: operations.append(model.name))
    with storage.upload("large") as upload:
        upload.write(content)
    assert operations.count("UploadPart") == 3
    assert storage.get("large") == content


def test_an_upload_that_fails_in_a_part_leaves_nothing(storage: S3Storage) -> None:
    """Hazard 8: neither an object nor parts that somebody pays for."""

    def fail(params: dict[str, Any], **_: Any) -> None:
        if params["query_string"].get("partNumber") == 2:
            raise ConnectionError("the line is cut")

    storage.client.files.s3.meta.events.register("before-call.s3.UploadPart", fail)
    upload = storage.upload("large")
    upload.write(bytes(18 << 20))
    with pytest.raises(StorageError, match=r"uploading s3://test/.*/large failed: the line is cut"):
        upload.close()
    assert list(storage.list_all("")) == []
    pending = storage.client.files.call_s3("list_multipart_uploads", Bucket="test")
    assert pending.get("Uploads", []) == []


def begun(handler: Scripted) -> None:
    """An upload in parts begins."""
    body = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def described(size_bytes: int) -> Callable[[Scripted], None]:
    """An answer to a HEAD, or to a part."""

    def describe(handler: Scripted) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(size_bytes))
        handler.send_header("Last-Modified", "Tue, 01 Dec 2026 00:00:00 GMT")
        handler.send_header("ETag", '"e"')
        handler.end_headers()

    return describe


_LARGE_BYTES = 18 << 20


@pytest.mark.parametrize(
    ("found", "complete"),
    [
        (described(_LARGE_BYTES), True),
        (described(_LARGE_BYTES - 1), False),
        (error(404, "NoSuchKey"), False),
    ],
    ids=["it is there", "another is there", "nothing is there"],
)
def test_an_upload_whose_last_answer_was_lost_is_looked_for(
    found: Callable[[Scripted], None], complete: bool
) -> None:
    """The server has forgotten it by the time of the repetition, as MinIO does."""
    gone = error(404, "NoSuchUpload")
    script = [begun, *[described(0)] * 3, hang_up, gone, gone, found]
    with scripted_server(*script) as (storage, asked):
        upload = storage.upload("large")
        upload.write(bytes(_LARGE_BYTES))
        if complete:
            upload.close()
        else:
            with pytest.raises(StorageError, match="uploading s3://bucket/store/large") as told:
                upload.close()
            assert told.value.retriable
        assert asked == ["POST", "PUT", "PUT", "PUT", "POST", "POST", "DELETE", "HEAD"]


def test_a_prefix_is_not_left(s3_options: dict[str, Any]) -> None:
    """Stores side by side in one bucket, one's name the beginning of the other's, are apart."""
    one, other = S3Storage("test/side", s3_options), S3Storage("test/side-by", s3_options)
    one.put("a/x", b"1")
    other.put("a/y", b"2")
    assert one.list_names("a") == ["x"]
    assert [name for name, _ in one.list_all("")] == ["a/x"]
    assert one.list_folders("") == other.list_folders("") == ["a"]


# -- the condition -------------------------------------------------------------------------------


def test_the_probe_refuses_a_server_that_ignores_the_condition(s3_options: dict[str, Any]) -> None:
    """Over real HTTP: a server that takes If-None-Match and overwrites."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    application = DomainDispatcherApplication(create_backend_app)

    def ignores(environ: dict[str, Any], start_response: Any) -> Any:
        environ.pop("HTTP_IF_NONE_MATCH", None)
        return application(environ, start_response)

    server = make_server("127.0.0.1", 0, ignores, threaded=True)
    with run_server(server, server.server_port) as endpoint:
        storage = S3Storage("test/ignored", {**s3_options, "endpoint_url": endpoint})
        with pytest.raises(
            PutIfAbsentBroken, match=r"the same name was created twice.*If-None-Match"
        ):
            probe(storage)
        assert list(storage.list_all("")) == []


def test_an_old_botocore_is_refused(storage: S3Storage) -> None:
    """s3fs drops arguments that botocore does not know: without a check, creates overwrite."""
    operation = storage.client.files.s3.meta.service_model.operation_model("PutObject")
    # On this storage's own client, which nobody else uses.
    del operation.input_shape.members["IfNoneMatch"]
    assert not storage.client.files.knows_conditional_create()
    files = storage.client.files
    unconnected = S3Storage("test/old")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("txnlog.storage.adapters.s3_client.S3Files", lambda **_: files)
        with pytest.raises(UnsupportedFilesystem, match="botocore is too old"):
            unconnected.put_if_absent("a", b"x")


def test_a_missing_s3fs_names_the_package() -> None:
    """The remedy is in the message."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("s3_client", "s3_files"):
            patch.delitem(sys.modules, f"txnlog.storage.adapters.{module}", raising=False)
        patch.setitem(sys.modules, "s3fs", None)
        with pytest.raises(UnsupportedFilesystem, match=r"pip install 's3fs>=\S+'$"):
            S3Storage("test/missing").get("a")


# -- a server that misbehaves --------------------------------------------------------------------


def test_a_conflict_is_asked_again() -> None:
    """A 409 means that nobody has won yet: the create is repeated until it is decided."""
    conflict = error(409, "ConditionalRequestConflict")
    with scripted_server(conflict, conflict, success) as (storage, asked):
        assert storage.put_if_absent("a", b"x")
        assert len(asked) == 3
    with scripted_server(conflict, error(412, "PreconditionFailed")) as (storage, asked):
        assert not storage.put_if_absent("a", b"x")
        assert len(asked) == 2


def test_conflicts_without_end_are_an_error() -> None:
    """A bounded number of repetitions, then the caller decides."""
    with scripted_server(error(409, "ConditionalRequestConflict")) as (storage, asked):
        with pytest.raises(StorageError, match="creating s3://bucket/store/a failed"):
            storage.put_if_absent("a", b"x")
        assert len(asked) == 10


@pytest.mark.condition(55)
@pytest.mark.parametrize(
    ("status", "code", "hint"),
    [
        (503, "SlowDown", "overloaded or down"),
        (503, "ServiceUnavailable", "overloaded or down"),
        (500, "InternalError", "try again later"),
        (403, "AccessDenied", "s3:GetObject"),
        (403, "InvalidAccessKeyId", "does not know this access key"),
        (404, "NoSuchBucket", "create the bucket"),
        (501, "NotImplemented", "conditional creates"),
    ],
)
def test_errors_say_what_to_do(status: int, code: str, hint: str) -> None:
    """Operation, object, what the server said, and a remedy; the cause is kept."""
    with scripted_server(error(status, code)) as (storage, _):
        for call in (
            lambda: storage.put_if_absent("a", b"x"),
            lambda: storage.get("a"),
            lambda: storage.list_names("a"),
            lambda: storage.delete(["a"]),
        ):
            with pytest.raises(
                StorageError, match=rf"s3://bucket/store/a failed: .*{hint}"
            ) as caught:
                call()
            assert type(caught.value) is StorageError
            assert caught.value.__cause__ is not None


def refusing(**codes: str) -> Callable[[Scripted], None]:
    """The answer to a request that deletes several objects, but not these: why, by name."""

    def refuse(handler: Scripted) -> None:
        refused = "".join(
            f"<Error>{name and f'<Key>store/{name}</Key>'}<Code>{code}</Code>"
            "<Message>told so</Message></Error>"
            for name, code in codes.items()
        )
        body = f"<DeleteResult>{refused}</DeleteResult>".encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return refuse


def test_objects_that_a_busy_server_has_not_deleted_are_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only those; and what is refused for good keeps nothing behind it."""
    monkeypatch.setattr("txnlog.storage.adapters.http_answers.sleep", lambda _: None)
    monkeypatch.setattr("txnlog.storage.adapters.s3._DELETE_AT_ONCE", 3)
    answers = refusing(b="SlowDown"), refusing(), refusing(d="AccessDenied"), refusing()
    with scripted_server(*answers) as (storage, asked):
        with pytest.raises(StorageError, match="deleting s3://bucket/store/d failed"):
            storage.delete(["a", "b", "c", "d", "e", "f", "g"])
        assert len(asked) == 4


def test_a_busy_server_that_names_no_keys_is_asked_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("txnlog.storage.adapters.http_answers.sleep", lambda _: None)
    with scripted_server(refusing(**{"": "SlowDown"}), refusing()) as (storage, asked):
        storage.delete(["a", "b"])
        assert len(asked) == 2


def test_a_server_that_is_away_is_not_asked_for_every_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("txnlog.storage.adapters.http_answers.sleep", lambda _: None)
    monkeypatch.setattr("txnlog.storage.adapters.s3._DELETE_AT_ONCE", 1)
    with scripted_server(error(503, "SlowDown")) as (storage, asked):
        for names in (["a"], ["a", "b", "c"]):
            before = len(asked)
            with pytest.raises(StorageError, match="deleting s3://bucket/store/a failed"):
                storage.delete(names)
            assert len(asked) == before + 2


def test_an_object_that_is_gone_needs_no_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a server calls that an error or not; and others beside it may be asked for again."""
    monkeypatch.setattr("txnlog.storage.adapters.http_answers.sleep", lambda _: None)
    answers = refusing(a="NoSuchKey", b="SlowDown"), refusing(b="NoSuchKey")
    with scripted_server(*answers) as (storage, asked):
        storage.delete(["a", "b", "c"])
        assert len(asked) == 2


@pytest.mark.parametrize("code", ["IncompleteBody", "RequestTimeout"])
def test_a_body_that_did_not_arrive_may_be_sent_again(code: str) -> None:
    """The server says 400, though nothing is wrong with the request."""
    with (
        scripted_server(*[error(400, code)] * 10) as (storage, _),
        pytest.raises(StorageError, match="waited for the rest of the request") as caught,
    ):
        storage.put("a", b"x")
    assert caught.value.retriable


@pytest.mark.parametrize(("code", "retriable"), [("AccessDenied", False), ("InternalError", True)])
def test_one_of_several_objects_may_not_be_deleted(
    monkeypatch: pytest.MonkeyPatch, code: str, retriable: bool
) -> None:
    """The request succeeds, and names what is refused: as if that had been asked for alone."""
    monkeypatch.setattr("txnlog.storage.adapters.http_answers.sleep", lambda _: None)
    with (
        scripted_server(*[refusing(b=code)] * 4) as (storage, _),
        pytest.raises(
            StorageError, match=r"deleting s3://bucket/store/b failed: .*told so"
        ) as told,
    ):
        storage.delete(["a", "b"])
    assert told.value.retriable == retriable
    assert ("s3:GetObject, PutObject, DeleteObject" in str(told.value)) == (not retriable)


def test_throttling_is_waited_out() -> None:
    """A server that asks for patience gets it."""
    with scripted_server(error(503, "SlowDown"), success) as (storage, asked):
        assert storage.put_if_absent("a", b"x")
        assert len(asked) == 2


def test_a_broken_body_is_read_again_and_never_returned() -> None:
    """Half an object is not an object: repeated, then an error."""
    with scripted_server(half_a_body, success) as (storage, asked):
        assert storage.get("a") == b""
        assert len(asked) == 2
    with scripted_server(half_a_body) as (storage, asked):
        with pytest.raises(StorageError, match="reading s3://bucket/store/a failed"):
            storage.get("a")
        assert len(asked) == 3


@pytest.mark.condition(55)
def test_a_connection_that_breaks_is_an_error() -> None:
    """The server drops the connection; the effect is unknown."""
    with (
        scripted_server(hang_up) as (storage, _),
        pytest.raises(StorageError, match="creating s3://bucket/store/a failed"),
    ):
        storage.put_if_absent("a", b"x")


@pytest.mark.condition(55)
def test_a_server_that_is_gone_is_noticed_quickly(s3_options: dict[str, Any]) -> None:
    """With the default retries, a refused connection is an error within seconds."""
    storage = S3Storage("test/gone", {**s3_options, "endpoint_url": "http://127.0.0.1:9"})
    begin = time.monotonic()
    with pytest.raises(
        StorageError, match=r"reading s3://test/gone/a failed: .*check endpoint_url"
    ):
        storage.get("a")
    assert time.monotonic() - begin < 8


@contextmanager
def silent_server() -> Iterator[str]:
    """Takes connections and requests, and never answers: a machine that hangs."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.condition(55)
def test_a_server_that_is_silent_is_not_waited_for_without_end(s3_options: dict[str, Any]) -> None:
    """Whatever is asked of it, also with a body: botocore would ask whether that may come."""
    config = {"read_timeout": 0.2, "retries": {"total_max_attempts": 1}}
    with silent_server() as endpoint:
        given = {**s3_options, "endpoint_url": endpoint, "config_kwargs": config}
        storage = S3Storage("test/silent", given)
        storage.trust()
        upload = storage.upload("c")
        upload.write(b"x")
        calls = [
            lambda: storage.put_if_absent("a", b"x"),
            lambda: storage.put("b", b"x"),
            upload.close,
            lambda: storage.get("a"),
            lambda: storage.list_names(""),
            lambda: storage.delete(["a"]),
        ]
        with ThreadPoolExecutor(len(calls)) as pool:
            for future in [pool.submit(call) for call in calls]:
                with pytest.raises(StorageError, match="the server took too long"):
                    future.result(30)


def test_bodies_are_sent_without_asking(storage: S3Storage) -> None:
    """Asking costs a round trip, and no timeout counts while the server thinks about it."""
    asked: list[bool] = []
    storage.client.files.s3.meta.events.register(
        "before-send.s3", lambda request, **_: asked.append("Expect" in request.headers)
    )
    storage.put_if_absent("a", b"x")
    with storage.upload("large") as upload:
        upload.write(bytes(17 << 20))
    storage.delete(["a", "large"])
    assert asked == [False] * 7


def test_a_missing_bucket_is_not_a_missing_object(s3_options: dict[str, Any]) -> None:
    """A reader of one object must not take a wrong bucket for a deleted object."""
    storage = S3Storage("no-such-bucket/x", s3_options)
    with pytest.raises(StorageError, match="create the bucket") as caught:
        storage.get("a")
    assert not isinstance(caught.value, ObjectNotFound)


def test_secrets_stay_secret() -> None:
    """No key, secret or token in any text, even if the server repeats them in its message."""

    def chatty(handler: Scripted) -> None:
        error(400, f"Key {KEY} with {SECRET} and {TOKEN}")(handler)

    with scripted_server(chatty) as (storage, _):
        with pytest.raises(StorageError) as caught:
            storage.put_if_absent("a", b"x")
        shown = f"{storage!r} {storage.url} {caught.value} {caught.value!r}"
    assert "***" in shown
    for secret in (KEY, SECRET, TOKEN):
        assert secret not in shown


def test_a_full_spool_disk_is_a_clear_error(
    storage: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uploads are spooled on the local disk; the message says where, and nothing is published."""
    upload = storage.upload("large")
    upload.write(b"x" * 100)

    def full(_: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(upload._spool, "write", full)  # type: ignore[attr-defined]
    with pytest.raises(StorageError, match=r"TMPDIR.*disk is full"):
        upload.write(b"x" * 100)
    upload.discard()
    assert storage.list_names("") == []


_FORKS = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
from txnlog.storage import open_storage
storage = open_storage("s3://test/forked", json.loads(sys.argv[1]))
storage.put("before", b"x")
child = os.fork()
if child == 0:
    fine = storage.get("before") == b"x" and storage.put_if_absent("child", b"y")
    os._exit(0 if fine else 1)
status = os.waitpid(child, 0)[1]
assert status == 0, status
assert storage.list_names("") == ["before", "child"]
"""


def test_a_connection_survives_a_fork(s3_options: dict[str, Any]) -> None:
    """A child that inherits a used storage makes a connection of its own; the parent's lives on."""
    import json

    arguments = [sys.executable, "-c", _FORKS, json.dumps(s3_options)]
    subprocess.run(arguments, check=True, timeout=30)
