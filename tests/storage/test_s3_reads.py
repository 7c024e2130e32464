"""Reads of S3 that botocore does not make: they are the requests that it would make, and fewer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from zlib import crc32

import pytest

from tests.support.storage.scripted_s3 import Scripted, error, half_a_body, scripted_server, success
from txnlog.clock import SystemClock
from txnlog.errors import ObjectNotFound, StorageError
from txnlog.storage import open_storage
from txnlog.storage.adapters.s3 import S3Storage
from txnlog.storage.adapters.s3_reads import _pattern_of
from txnlog.store import attach
from txnlog.testing import HeapStorage

pytestmark = pytest.mark.s3

KEYS = {"key": "AKIATEST", "secret": "the-secret-of-it"}
_SSE_C = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "k" * 32}
_VIRTUAL = {"s3": {"addressing_style": "virtual"}}
_OF_BOTOCORE = {"amz-sdk-invocation-id", "amz-sdk-request"}
"""Headers that number botocore's attempts."""


class _Refused(Exception):
    """Nothing is sent."""


def botocores_request(storage: S3Storage, name: str, byte_range: str | None) -> Any:
    """What botocore would send for an object."""
    sent: list[Any] = []

    def refuse(request: Any, **_: Any) -> None:
        sent.append(request)
        raise _Refused

    events = storage.client.files.s3.meta.events
    events.register("before-send.s3.GetObject", refuse, unique_id="refuse")
    with suppress(_Refused):
        storage.client.files.read_object("bucket", storage._key(name), byte_range)
    events.unregister("before-send.s3.GetObject", unique_id="refuse")
    return sent[0]


def headers_of(request: Any) -> dict[str, str]:
    found = {
        name.lower(): value.decode() if isinstance(value, bytes) else value
        for name, value in request.headers.items()
    }
    return {name: value for name, value in found.items() if name not in _OF_BOTOCORE}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"token": "of-a-session"},
        {"s3_additional_kwargs": _SSE_C},
        {"requester_pays": True},
        {"endpoint_url": "https://s3.example.test", "config_kwargs": _VIRTUAL},
        {"endpoint_url": "http://s3.example.test:80/behind/a/proxy"},
        {"endpoint_url": None, "client_kwargs": {"region_name": "eu-central-1"}},
    ],
    ids=["plain", "session", "customers key", "requester pays", "virtual", "proxy", "aws"],
)  # fmt: skip
@pytest.mark.parametrize("byte_range", [None, "bytes=3-99"])
def test_a_read_is_what_botocore_would_send(
    options: dict[str, Any], byte_range: str | None
) -> None:
    """URL, headers and signature, learnt from a read of another object and another range."""
    given = {
        "endpoint_url": "http://s3.example.test:9000",
        "client_kwargs": {"region_name": "us-east-1"},
        **KEYS,
        **options,
        "skip_instance_cache": True,
    }
    storage = open_storage("s3://bucket/fol der/a", given)
    assert isinstance(storage, S3Storage)
    name = "topics/ü+~ é%2F'(x)=&?/0.log"
    known = botocores_request(storage, "first", "bytes=7-7" if byte_range is None else None)
    expected = botocores_request(storage, name, byte_range)
    client = storage.client.files.s3
    pattern = _pattern_of(client, known, storage._key("first"))
    assert pattern is not None

    class Credentials:
        access_key, secret_key, token = *KEYS.values(), options.get("token")

    then = time.strptime(headers_of(expected)["x-amz-date"], "%Y%m%dT%H%M%SZ")
    made = pattern.request(storage._key(name), byte_range, Credentials(), then)
    assert (made.method, made.url, made.body) == ("GET", expected.url, None)
    assert headers_of(made) == headers_of(expected)
    assert headers_of(made)["authorization"].startswith("AWS4-HMAC-SHA256 ")


@pytest.mark.parametrize(
    "config",
    [{"signature_version": "s3"}, {"signature_version": "s3-query"}],
    ids=["version 2", "in the URL"],
)
def test_what_is_signed_in_another_way_is_botocores(config: dict[str, Any]) -> None:
    """It is not a pattern for others."""
    options = {**KEYS, "endpoint_url": "http://s3.example.test", "config_kwargs": config}
    storage = S3Storage("bucket/a", {**options, "skip_instance_cache": True})
    request = botocores_request(storage, "first", None)
    assert _pattern_of(storage.client.files.s3, request, storage._key("first")) is None


@pytest.fixture
def storage(s3_options: dict[str, Any]) -> S3Storage:
    """A storage with a client of its own."""
    storage = S3Storage("test/reads", {**s3_options, "skip_instance_cache": True})
    storage.trust()
    return storage


def count_calls(storage: S3Storage) -> Counter[str]:
    """By operation, the calls of botocore's from now on."""
    calls: Counter[str] = Counter()
    storage.client.files.s3.meta.events.register(
        "before-call.s3", lambda model, **_: calls.update([model.name])
    )
    return calls


def test_botocore_makes_the_first_read_alone(
    storage: S3Storage, s3_requests: Sequence[Any]
) -> None:
    """One request each; one that finds nothing is one too, and no reason to ask botocore."""
    for name in ("a", "b", "c"):
        storage.put(name, name.encode() * 9)
    calls, since = count_calls(storage), len(s3_requests)
    assert storage.get("a") == b"a" * 9
    assert storage.get_many(["b", "c"]) == [b"b" * 9, b"c" * 9]
    assert storage.get_ranges([("c", 2, 4), ("a", 8, 99)]) == [b"cc", b"a"]
    for missing in (storage.get, lambda name: storage.get_many(["a", name])):
        with pytest.raises(ObjectNotFound, match="there is no s3://test/reads/none"):
            missing("none")
    assert calls == {"GetObject": 1}
    assert len(s3_requests) - since == 1 + 2 + 2 + 1 + 2


def test_many_reads_at_once_are_limited(
    storage: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are asked for together, so many are on their way."""
    running = most = 0
    client = storage.client.files
    real = client._read_object

    async def counted(*arguments: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await real(*arguments)
        finally:
            running -= 1

    monkeypatch.setattr(client, "_read_object", counted)
    storage.put("a", b"x")
    assert storage.get_many(["a"] * 100) == [b"x"] * 100
    assert most == 32


def test_an_open_and_a_scan_are_few_requests(
    s3_options: dict[str, Any], s3_requests: Sequence[Any]
) -> None:
    """One for each segment of a hundred, and of the log what a checkpoint leaves to be read."""
    segments, path = 100, f"few-{time.time_ns()}"
    heap = HeapStorage()
    store = attach(heap, create=True, clock=SystemClock())
    store.topics.create("t")
    with store.producer() as producer:
        for number in range(segments):
            producer.send("t", b"%d" % number)
            producer.flush()
    from moto.s3.models import s3_backends

    for name, _ in heap.list_all(""):
        bucket = s3_backends["123456789012"]["aws"]
        bucket.put_object("test", f"{path}/{name}", heap.get(name))
    storage = S3Storage(f"test/{path}", {**s3_options, "skip_instance_cache": True})
    calls, since = count_calls(storage), len(s3_requests)
    scan = attach(storage, clock=SystemClock()).scan("t")
    # The store's file, two listings, a checkpoint, and the entries behind it: 96 to 100.
    assert len(s3_requests) - since == 1 + 2 + 1 + 5
    assert scan.to_arrow()["value"].to_pylist() == [b"%d" % n for n in range(segments)]
    assert len(s3_requests) - since == 1 + 2 + 1 + 5 + segments
    assert calls == {"GetObject": 1, "ListObjectsV2": 2}


# -- what is not simply the object ----------------------------------------------------------------


def says(body: bytes, **headers: str) -> Callable[[Scripted], None]:
    """An answer with a body."""

    def answer(handler: Scripted) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def checksum(body: bytes) -> str:
    import base64

    return base64.b64encode(crc32(body).to_bytes(4, "big")).decode()


@pytest.mark.parametrize(
    "odd",
    [
        error(500, "InternalError"),
        error(503, "SlowDown"),
        error(403, "RequestTimeTooSkewed"),
        error(404, "NoSuchBucket"),
        half_a_body,
        says(b"damaged", x_amz_checksum_crc32=checksum(b"correct")),
    ],
    ids=["500", "503", "403", "404", "half", "damaged"],
)
def test_what_is_not_simply_the_object_is_left_to_botocore(odd: Any) -> None:
    """It asks again, and what it gets counts."""
    right = says(b"correct", x_amz_checksum_crc32=checksum(b"correct"))
    with scripted_server(success, right, odd, right) as (storage, asked):
        assert storage.get("a") == b""
        assert storage.get("b") == b"correct"
        assert len(asked) == 2
        assert storage.get("b") == b"correct"
        assert len(asked) == 4


def test_a_range_that_was_not_kept_to_is_botocores() -> None:
    """A server that sends the whole object for a part of it."""
    with scripted_server(success, says(b"0123456789")) as (storage, asked):
        storage.get("a")
        storage.get_range("b", 3, 5)
        assert len(asked) == 3


def test_who_refuses_a_read_that_botocore_may_make_is_not_asked_so_again() -> None:
    """What the server wants may be anything: two requests for each read would be too many."""

    def wants_attempts_numbered(handler: Scripted) -> None:
        numbered = "amz-sdk-request" in handler.headers
        (success if numbered else error(403, "AccessDenied"))(handler)

    with scripted_server(wants_attempts_numbered) as (storage, asked):
        for expected in (1, 3, 4, 5):
            assert storage.get("a") == b""
            assert len(asked) == expected


def test_another_client_has_patterns_of_its_own(storage: S3Storage) -> None:
    """A session that s3fs has recreated, with other credentials it may be, is learnt from first."""
    storage.put("a", b"x")
    storage.get("a")
    storage.client.files.connect(refresh=True)
    calls = count_calls(storage)
    assert [storage.get("a"), storage.get("a")] == [b"x", b"x"]
    assert calls == {"GetObject": 1}


def test_a_listing_does_not_guess_what_times_are(
    storage: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Botocore's guess took most of the time that a listing takes; ages are told all the same."""
    from botocore import parsers  # type: ignore[import-untyped]

    def guess(_: object) -> None:
        raise AssertionError("guessed")

    storage.put("a", b"x")
    monkeypatch.setattr(parsers, "DEFAULT_TIMESTAMP_PARSER", guess)
    monkeypatch.setattr("txnlog.storage.adapters.s3_files.parse_timestamp", guess)
    assert "a" in storage.list_names("")
    monkeypatch.undo()
    found_ms = storage.modified_ms("a")
    assert found_ms is not None
    assert abs(found_ms - time.time() * 1000) < 60_000


@pytest.mark.parametrize(
    ("kind", "marker", "look"),
    [
        ("ListBucketResult", "NextContinuationToken", lambda one: one.list_names("a")),
        ("ListBucketResult", "NextContinuationToken", lambda one: [*one.list_all("a")]),
        (
            "ListMultipartUploadsResult",
            "NextKeyMarker",
            lambda one: [*one.list_unfinished_uploads()],
        ),
    ],
    ids=["names", "all", "uploads"],
)
def test_a_listing_that_is_cut_without_a_marker_is_an_error_of_our_own(
    kind: str, marker: str, look: Callable[[S3Storage], object]
) -> None:
    """What was listed so far is not all, and nothing says where to go on."""
    body = f"<{kind}><IsTruncated>true</IsTruncated></{kind}>".encode()
    with (
        scripted_server(says(body), says(body)) as (storage, _),
        pytest.raises(StorageError, match=f"has cut a listing, and its answer has no {marker}"),
    ):
        look(storage)
