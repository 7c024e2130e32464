"""What Google Cloud Storage and Azure share: requests, patience, lost answers, parts, forks."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth.credentials import AnonymousCredentials
from google.oauth2.credentials import Credentials

from tests.support.storage.fake_clouds import (
    ACCOUNT_KEY,
    CONTAINER,
    PAGE,
    Cloud,
    Cut,
    Lost,
    Refused,
    Reply,
    azure_error,
    azure_options,
    fake_azure,
    fake_gcs,
    gcs_error,
    gcs_options,
)
from txnlog.clock import SystemClock
from txnlog.errors import (
    InvalidOption,
    ObjectNotFound,
    PutIfAbsentBroken,
    StorageError,
    UnsupportedFilesystem,
)
from txnlog.storage import open_storage
from txnlog.storage.adapters import azure_client, gcs_client, http_answers, object_store
from txnlog.storage.adapters.azure import AzureStorage
from txnlog.storage.adapters.gcs import GcsStorage
from txnlog.storage.base import Storage
from txnlog.storage.create_once import create_once
from txnlog.storage.probe import probe
from txnlog.testing.conformance.interface import CHECKS, Check, long_listings_are_complete

_COUNTER = itertools.count()


@dataclass(frozen=True)
class Kind:
    """One of the two services, and how the tests speak of it."""

    protocol: str
    cloud: Cloud
    options: dict[str, Any]
    error: Callable[..., Reply]

    def open(self, path: str = "") -> Storage:
        storage = open_storage(
            f"{self.protocol}://{path or f'{CONTAINER}/s-{next(_COUNTER)}'}", self.options
        )
        storage.trust()  # requests are counted
        return storage


@pytest.fixture(scope="module")
def gcs() -> Iterator[Kind]:
    with fake_gcs() as cloud:
        yield Kind(
            "gs",
            cloud,
            gcs_options(cloud),
            lambda status, _, **more: gcs_error(status, "told so", **more),
        )


@pytest.fixture(scope="module")
def azure() -> Iterator[Kind]:
    with fake_azure() as cloud:
        yield Kind(
            "az",
            cloud,
            azure_options(cloud),
            lambda status, code, **more: azure_error(status, code, "told so", **more),
        )


@pytest.fixture(params=["gcs", "azure"])
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    """Each service, with nothing planned."""
    found: Kind = request.getfixturevalue(request.param)
    found.cloud.asked.clear()
    yield found
    found.cloud.plans.clear()
    found.cloud.forever = None


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds for which the adapter would have slept."""
    slept: list[float] = []
    monkeypatch.setattr(http_answers, "sleep", slept.append)
    return slept


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, marks=[pytest.mark.more] if check is long_listings_are_complete else [])
        for check in CHECKS
    ],
    ids=lambda check: check.__name__,
)
def test_it_conforms(kind: Kind, check: Check) -> None:
    """The suite that every adapter passes; emulators are for `make test-stores`."""
    check(kind.open())


def methods(kind: Kind) -> list[str]:
    """The methods of the requests since the last call."""
    asked = [method for method, _ in kind.cloud.asked]
    kind.cloud.asked.clear()
    return asked


def test_each_operation_is_one_request(kind: Kind) -> None:
    """No question before a read, no listing before a write, no repetition."""
    storage = kind.open()
    storage.put_if_absent("a", b"x" * 1000)
    storage.put("b", b"x")
    with storage.upload("c") as upload:
        upload.write(b"x" * 1000)
    put = "POST" if kind.protocol == "gs" else "PUT"
    assert methods(kind) == [put] * 3
    storage.get("a")
    storage.get_range("a", 3, 9)
    storage.list_names("")
    storage.list_folders("")
    assert methods(kind) == ["GET"] * 4
    storage.size("a")
    assert methods(kind) == ["GET" if kind.protocol == "gs" else "HEAD"]
    storage.delete(["a", "b", "c"])
    storage.delete([])
    assert methods(kind) == ["DELETE"] * 3


def test_listings_are_as_many_requests_as_pages(kind: Kind) -> None:
    """Where the service can begin behind a name, what is before costs nothing."""
    storage = kind.open("test/pages")
    names = [f"{number:05d}" for number in range(2 * PAGE + 1)]
    for name in names:
        kind.cloud.put(f"pages/many/{name}", b"")
    assert storage.list_names("many") == names
    assert methods(kind) == ["GET"] * 3
    assert storage.list_names("many", names[-4]) == names[-3:]
    assert methods(kind) == ["GET"] * (1 if kind.protocol == "gs" else 3)
    assert [name for name, _ in storage.list_all("")] == [f"many/{name}" for name in names]


def test_a_prefix_is_not_left(kind: Kind) -> None:
    """Stores side by side, one's name the beginning of the other's, are apart."""
    one, other = kind.open("test/side"), kind.open("test/side-by")
    one.put("a/x", b"1")
    other.put("a/y", b"2")
    assert one.list_names("a") == ["x"]
    assert [name for name, _ in one.list_all("")] == ["a/x"]
    assert one.list_folders("") == other.list_folders("") == ["a"]


def test_an_address_opens_the_same_storage(kind: Kind) -> None:
    """Elsewhere, and pickled, with options that came as strings."""
    storage = kind.open()
    storage.put("a", b"x")
    address = storage.address()
    as_text = {k: v if isinstance(v, str) else json.dumps(v) for k, v in address.options.items()}
    assert open_storage(address.url, as_text).get("a") == b"x"
    other: Storage = pickle.loads(pickle.dumps(storage))
    assert other.get("a") == b"x"


# -- lost answers --------------------------------------------------------------------------------


def test_a_create_whose_answer_was_lost_is_found_out(kind: Kind, pauses: list[float]) -> None:
    """Hazard 1: it is repeated and refused; the object is read back, and is ours."""
    storage = kind.open()
    kind.cloud.plans.extend([Lost])
    assert not storage.put_if_absent("a", b"mine")
    assert storage.get("a") == b"mine"
    kind.cloud.plans.extend([Lost])
    assert create_once(storage, "b", b"nonce 1", SystemClock())
    assert not create_once(storage, "b", b"nonce 2", SystemClock())
    # aiohttp repeats a PUT over a connection that was in use before without asking us.
    assert len(pauses) == (2 if kind.protocol == "gs" else 0)


def test_a_create_that_never_arrived_is_made(kind: Kind, pauses: list[float]) -> None:
    """The connection breaks before anything happens."""
    storage = kind.open()
    kind.cloud.plans.extend([Refused, Refused])
    assert storage.put_if_absent("a", b"x")


def test_answers_that_stay_away_are_an_error(kind: Kind, pauses: list[float]) -> None:
    """The outcome is unknown, and whoever commits may try again."""
    storage = kind.open()
    kind.cloud.forever = Refused
    with pytest.raises(StorageError, match=r"creating .*/a failed: .*nothing answers") as caught:
        storage.put_if_absent("a", b"x")
    assert caught.value.retriable
    assert len(pauses) == 3


def test_half_a_body_is_never_returned(kind: Kind, pauses: list[float]) -> None:
    """It is read again; then an error."""
    storage = kind.open()
    storage.put("a", b"0123456789" * 100)
    kind.cloud.plans.extend([Cut])
    assert storage.get("a") == b"0123456789" * 100
    if kind.protocol == "gs":  # Azure's library has pauses of its own here, of 9 s in all
        kind.cloud.forever = Cut
        with pytest.raises(StorageError, match=r"reading .*/a failed"):
            storage.get_range("a", 100, 900)


# -- throttling ----------------------------------------------------------------------------------


def test_throttling_is_waited_out(kind: Kind, pauses: list[float]) -> None:
    """429 and 503, longer each time, and as long as the server asks for."""
    storage = kind.open()
    busy = [kind.error(429, "TooManyRequests"), kind.error(503, "ServerBusy")]
    kind.cloud.plans.extend(busy)
    assert storage.put_if_absent("a", b"x")
    assert len(pauses) == 2
    assert pauses[0] < pauses[1]
    pauses.clear()
    kind.cloud.plans.append(kind.error(503, "ServerBusy", headers={"Retry-After": "10"}))
    assert storage.get("a") == b"x"
    assert 7 <= pauses[0] <= 13


def test_a_pause_of_a_minute_is_left_to_the_caller(kind: Kind, pauses: list[float]) -> None:
    """A commit has a deadline, and whoever reads can do something else."""
    storage = kind.open()
    kind.cloud.plans.append(kind.error(503, "ServerBusy", headers={"Retry-After": "60"}))
    with pytest.raises(StorageError, match="overloaded or down") as caught:
        storage.get("a")
    assert caught.value.retriable
    assert pauses == []


@pytest.mark.parametrize(
    ("status", "code", "hint"),
    [
        (400, "InvalidInput", "did not understand"),
        (401, "InvalidToken", "missing, wrong or expired"),
        (403, "AuthorizationFailure", "permission is denied"),
        (404, "ContainerNotFound", "create the (bucket|container)"),
        (500, "InternalError", "try again later"),
        (503, "ServerBusy", "overloaded or down"),
    ],
)
def test_errors_say_what_to_do(
    kind: Kind, pauses: list[float], status: int, code: str, hint: str
) -> None:
    """Operation, object, what the server said, and a remedy; the cause is kept."""
    storage = kind.open("test/errors")
    kind.cloud.forever = kind.error(status, code)
    for call in (
        lambda: storage.put_if_absent("a", b"x"),
        lambda: storage.get("a"),
        lambda: storage.list_names("a"),
        lambda: storage.delete(["a"]),
    ):
        with pytest.raises(StorageError, match=rf"test/errors/a failed: .*{hint}") as caught:
            call()
        assert type(caught.value) is StorageError
        assert caught.value.retriable == (status >= 500)
        assert caught.value.__cause__ is not None


def test_a_missing_container_is_not_a_missing_object(kind: Kind) -> None:
    """A reader of one object must not take a wrong bucket for a deleted object."""
    with pytest.raises(StorageError, match="create the") as caught:
        kind.open("another/x").get("a")
    assert not isinstance(caught.value, ObjectNotFound)


def test_a_conflict_of_another_kind_is_no_taken_name(azure: Kind) -> None:
    """Adlfs takes any conflict for one: a container that is being deleted too."""
    storage = azure.open()
    azure.cloud.plans.append(azure.error(409, "ContainerBeingDeleted"))
    with pytest.raises(StorageError, match="being deleted"):
        storage.put_if_absent("a", b"x")


def test_a_conflict_of_two_creates_is_asked_again(gcs: Kind, pauses: list[float]) -> None:
    """Neither has won yet."""
    storage = gcs.open()
    gcs.cloud.plans.append(gcs_error(409, "conflict"))
    assert storage.put_if_absent("a", b"x")


def test_folders_of_azure_are_no_objects(azure: Kind) -> None:
    """Accounts with real folders list them among the blobs, with a mark."""
    storage = azure.open("test/folders")
    folder = (
        "<Blob><Name>folders/a/b</Name><Properties><Content-Length>0</Content-Length>"
        "<BlobType>BlockBlob</BlobType></Properties><Metadata><hdi_isfolder>true</hdi_isfolder>"
        "</Metadata></Blob>"
    )
    blob = folder.replace("a/b", "a/c").replace(">true<", ">false<")
    listing = (
        "<?xml version='1.0' encoding='utf-8'?><EnumerationResults><Blobs>"
        f"{folder}{blob}</Blobs><NextMarker/></EnumerationResults>"
    )
    listed = Reply(200, listing.encode(), {"Content-Type": "application/xml"})
    azure.cloud.plans.extend([listed, listed])
    assert list(storage.list_all("")) == [("a/c", 0)]
    assert storage.list_names("a") == ["c"]
    assert "include=metadata" in azure.cloud.asked[-1][1]


# -- parts ---------------------------------------------------------------------------------------


_PART_BYTES = 1 << 18
CONTENT = bytes(range(256)) * (_PART_BYTES // 256) * 2 + b"and a little more"


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload of half a megabyte takes three."""
    for module in (azure_client, gcs_client, object_store):
        monkeypatch.setattr(module, "PART_BYTES", _PART_BYTES)


def upload(storage: Storage, name: str) -> None:
    with storage.upload(name) as going:
        going.write(CONTENT)


@pytest.mark.usefixtures("small_parts")
def test_large_uploads_go_in_parts(kind: Kind) -> None:
    """They show when they are complete."""
    storage = kind.open()
    upload(storage, "large")
    parts = [
        path for method, path in kind.cloud.asked if method == "PUT" and "blocklist" not in path
    ]
    assert len(parts) == 3
    assert storage.get("large") == CONTENT


@pytest.mark.parametrize("trouble", [Lost, Refused, 503])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.usefixtures("small_parts")
def test_a_part_that_fails_is_sent_again(
    kind: Kind, pauses: list[float], trouble: Any, number: int
) -> None:
    """Whichever it is, and whether it has arrived or not; the last request too."""
    storage = kind.open()
    planned = kind.error(503, "ServerBusy") if trouble == 503 else trouble
    kind.cloud.plans.extend([*[None] * (number - 1), planned])
    upload(storage, "large")
    assert storage.get("large") == CONTENT


@pytest.mark.usefixtures("small_parts")
def test_what_has_arrived_is_asked_for(gcs: Kind, pauses: list[float]) -> None:
    """After trouble with a part the server says where to go on, maybe within it."""
    storage = gcs.open()
    gcs.cloud.asked.clear()
    within = Reply(308, b"", {"Range": "bytes=0-99"})
    gcs.cloud.plans.extend([None, gcs_error(503, "busy"), within])
    with pytest.raises(StorageError, match="bytes are missing"):  # the fake has none of them
        upload(storage, "large")
    assert methods(gcs) == ["POST", "PUT", "PUT", "PUT", "DELETE"]


@pytest.mark.usefixtures("small_parts")
def test_an_upload_that_fails_leaves_nothing(kind: Kind, pauses: list[float]) -> None:
    """Hazard 8: no object, and the session is given up where there is one."""
    storage = kind.open()
    kind.cloud.plans.extend([None, None, kind.error(403, "AuthorizationFailure")])
    with pytest.raises(StorageError, match=r"uploading .*/large failed: .*permission is denied"):
        upload(storage, "large")
    assert list(storage.list_all("")) == []
    if kind.protocol == "gs":
        assert "DELETE" in methods(kind)


FORGOTTEN = pytest.mark.parametrize("forgotten", [404, 410])


@FORGOTTEN
@pytest.mark.usefixtures("small_parts")
def test_an_upload_whose_last_answer_was_lost_is_looked_for(
    gcs: Kind, pauses: list[float], forgotten: int
) -> None:
    """The answer to its last part was lost."""
    storage = gcs.open()
    gcs.cloud.plans.extend([None, None, None, Lost, gcs_error(forgotten, "told so")])
    upload(storage, "large")
    assert not gcs.cloud.plans
    assert storage.get("large") == CONTENT


@FORGOTTEN
@pytest.mark.usefixtures("small_parts")
def test_an_upload_that_was_forgotten_is_no_missing_object(gcs: Kind, forgotten: int) -> None:
    """The service drops sessions after a week, and now and then earlier."""
    storage = gcs.open()
    gcs.cloud.plans.extend([None, None, gcs_error(forgotten, "told so")])
    with pytest.raises(StorageError, match=r"uploading .*/large failed") as caught:
        upload(storage, "large")
    assert not isinstance(caught.value, ObjectNotFound)
    assert caught.value.retriable


@pytest.mark.usefixtures("small_parts")
def test_an_upload_that_gets_nowhere_ends(gcs: Kind, pauses: list[float]) -> None:
    """A server that takes no byte of a part, and says so, is not asked for ever."""
    storage = gcs.open()
    gcs.cloud.asked.clear()
    at_rest = Reply(308)
    gcs.cloud.plans.extend([None, *[gcs_error(503, "busy"), at_rest] * 20])
    try:
        with pytest.raises(StorageError, match="overloaded or down"):
            upload(storage, "large")
        assert len(gcs.cloud.asked) < 20
    finally:
        gcs.cloud.plans.clear()


# -- the condition, secrets, forks ---------------------------------------------------------------


def test_the_probe_refuses_a_server_that_ignores_the_condition(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over real HTTP: a server that takes the condition and overwrites."""

    class Forgetful(dict[str, Any]):
        def __contains__(self, _: object) -> bool:
            return False

    storage = kind.open()
    monkeypatch.setattr(kind.cloud, "objects", Forgetful())
    with pytest.raises(PutIfAbsentBroken, match="the same name was created twice"):
        probe(storage)


def test_keys_of_azure_stay_secret(azure: Kind) -> None:
    """Neither a connection string nor the key in it, even if the server repeats them."""
    storage = azure.open("test/secret")
    connection = azure.options["connection_string"]
    azure.cloud.plans.append(azure_error(400, "X", f"{ACCOUNT_KEY} of {connection}"))
    with pytest.raises(StorageError) as caught:
        storage.put_if_absent("a", b"x")
    text = f"{storage!r} {storage.url} {caught.value} {caught.value!r} {storage.address()!r}"
    assert "***" in text
    assert ACCOUNT_KEY not in text
    assert connection not in text


def test_signatures_of_azure_stay_secret(azure: Kind) -> None:
    """The signature of a SAS token, in options and in any text."""
    token = "sv=2026-01-01&sp=racwdl&sig=c2lnbmF0dXJl%2Bc2ln"
    storage = open_storage("az://test/secret", {"account_name": "a", "sas_token": token})
    assert isinstance(storage, AzureStorage)
    said = OSError(f"{token}: c2lnbmF0dXJl%2Bc2ln; sig=another%2Bone")
    error = storage._failure("reading", "x", said)
    for secret in (token, "c2lnbmF0dXJl", "another"):
        assert secret not in f"{error} {storage!r} {storage.address()!r}"


def test_keys_of_google_stay_secret() -> None:
    """A service account that is invalid: the message says where to look, and shows nothing."""
    token = {
        "type": "service_account",
        "client_email": "a@b",
        "token_uri": "http://127.0.0.1:9",
        "private_key": "-----BEGIN very secret-----",
    }
    storage = open_storage("gs://test/secret", {"token": json.dumps(token)})
    with pytest.raises(
        StorageError, match=r"connecting to gs://test/secret failed.*token"
    ) as caught:
        storage.get("a")
    assert "very secret" not in f"{caught.value} {storage!r} {storage.address()!r}"


def test_an_option_of_another_type_is_the_options_fault() -> None:
    """Nothing to try again, and the library's word for it is passed on."""
    with pytest.raises(InvalidOption, match=r"gs://test/x: gcsfs .* storage option.*list"):
        open_storage("gs://test/x", {"token": "anon", "access": []}).get("a")


_FORKS = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
from txnlog.storage import open_storage
storage = open_storage(sys.argv[1], json.loads(sys.argv[2]))
storage.put("before", b"x")
child = os.fork()
if child == 0:
    fine = storage.get("before") == b"x" and storage.put_if_absent("child", b"y")
    sys.exit(0 if fine else 1)  # with all that is done at exit
status = os.waitpid(child, 0)[1]
assert status == 0, status
assert storage.list_names("") == ["before", "child"]
"""


@pytest.mark.few(1)
def test_a_connection_survives_a_fork(kind: Kind) -> None:
    """A child makes a connection of its own, and ends without waiting for the parent's loop."""
    url = f"{kind.protocol}://test/forked-{next(_COUNTER)}"
    arguments = [sys.executable, "-c", _FORKS, url, json.dumps(kind.options)]
    done = subprocess.run(arguments, check=True, timeout=30, capture_output=True)
    assert done.stderr == b""


_TOLD: dict[str, Callable[[Kind], tuple[str, str]]] = {
    "gs": lambda kind: ("STORAGE_EMULATOR_HOST", kind.options["endpoint_url"]),
    "az": lambda kind: ("AZURE_STORAGE_CONNECTION_STRING", kind.options["connection_string"]),
}
"""The variable that names the server."""


def test_who_opens_a_store_after_the_environment_has_changed_finds_another_server(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients are kept, and serve who finds the environment as they have found it."""
    given = {"token": "anon"} if kind.protocol == "gs" else {}
    variable, value = _TOLD[kind.protocol](kind)

    def opened() -> Storage:
        return open_storage(f"{kind.protocol}://{CONTAINER}/a-{next(_COUNTER)}", given)

    with (fake_gcs if kind.protocol == "gs" else fake_azure)() as other:
        for cloud in (kind.cloud, other, kind.cloud):
            cloud.asked.clear()
            monkeypatch.setenv(variable, value.replace(kind.cloud.url, cloud.url))
            first, second = opened(), opened()
            assert first.list_names("") == second.list_names("") == []
            assert len(cloud.asked) == 2
            assert _files_of(first) is _files_of(second)


@pytest.mark.parametrize("file", ["another", "same"])
def test_an_account_of_google_that_is_named_anew_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """By another file, or by the same one with another content."""
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    about = {"type": "service_account", "token_uri": "http://127.0.0.1:9/token", "project_id": "p"}
    for name in ("one", "other"):
        told = {**about, "client_email": f"{name}@p.iam", "private_key": key.decode()}
        path = tmp_path / (name if file == "another" else file)
        path.write_text(json.dumps(told))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        storage = open_storage("gs://bucket/store", {"token": "google_default", "project": "p"})
        found = storage.client._session.credentials.credentials  # type: ignore[attr-defined]
        assert found.service_account_email == f"{name}@p.iam"


def _files_of(storage: Storage) -> object:
    client = storage.client  # type: ignore[attr-defined]
    return getattr(client, "_session", None) or client._files


def test_a_server_that_is_gone_is_noticed_quickly(pauses: list[float]) -> None:
    """A refused connection is an error at once, but for the pauses."""
    begin = time.monotonic()
    options = {"endpoint_url": "http://127.0.0.1:9", "token": "anon"}
    with pytest.raises(StorageError, match=r"reading gs://test/gone/a failed: .*endpoint_url"):
        open_storage("gs://test/gone", options).get("a")
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize(
    ("url", "module", "package"), [("gs://a/b", "gcsfs", "gcs"), ("az://a/b", "adlfs", "azure")]
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, url: str, module: str, package: str
) -> None:
    """The remedy is in the message."""
    client = f"txnlog.storage.adapters.{package}_client"
    monkeypatch.delitem(sys.modules, client, raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnsupportedFilesystem, match=rf"pip install '{module}>=\S+'"):
        open_storage(url).get("a")
    assert os.environ.get("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT") is None


@contextmanager
def silent_tokens() -> Iterator[tuple[str, threading.Event]]:
    """A server that takes connections and answers none: its URL, and whether it was asked."""
    asked, over = threading.Event(), threading.Event()

    def serve(listener: socket.socket) -> None:
        with ExitStack() as stack:
            while not over.is_set():
                connection = stack.enter_context(listener.accept()[0])
                if connection.recv(1):
                    asked.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        finally:
            over.set()
            socket.create_connection(listener.getsockname()).close()
            thread.join()


def with_old_token(url: str, token_uri: str, **options: object) -> GcsStorage:
    """A storage whose credentials are to be renewed before its first request."""
    soon = datetime.now(UTC).replace(tzinfo=None) + timedelta(seconds=280)
    token = Credentials(  # type: ignore[no-untyped-call]
        "old",
        refresh_token="renewing",
        token_uri=token_uri,
        client_id="txnlog",
        client_secret="secret",
        expiry=soon,
    )
    return GcsStorage(url, {"token": token, **options})


def test_a_server_of_tokens_that_is_silent_stops_no_other_requests(
    gcs: Kind, pauses: list[float]
) -> None:
    """They share a loop with those of all filesystems of fsspec's."""
    other = gcs.open()
    with ThreadPoolExecutor(2) as pool, silent_tokens() as (uri, asked):
        storage = with_old_token("gs://test/x", uri, endpoint_url=gcs.cloud.url)
        waits = pool.submit(storage.get, "a")
        assert asked.wait(30)
        assert pool.submit(other.list_names, "").result(30) == []
        assert not waits.done()
    with pytest.raises(StorageError, match="credentials could not be renewed") as caught:
        waits.result()
    assert caught.value.retriable
    assert len(pauses) == 3


def test_new_credentials_are_waited_for_within_a_time(gcs: Kind, pauses: list[float]) -> None:
    """By all threads that need them."""
    with ThreadPoolExecutor(4) as pool, silent_tokens() as (uri, _):
        options = {"endpoint_url": gcs.cloud.url, "requests_timeout": 0.05}
        storage = with_old_token("gs://test/x", uri, **options)
        for waits in [pool.submit(storage.get, "a") for _ in range(4)]:
            with pytest.raises(StorageError, match="credentials could not be renewed"):
                waits.result(30)
    assert len(pauses) == 12


class _Renewed:
    """Credentials that a server may end before they expire."""

    expiry = None
    tokens = 0

    def __init__(self, lock: threading.Lock) -> None:
        self.token = "0"
        self.valid = True
        self._lock = lock

    def apply(self, headers: dict[str, str]) -> None:
        headers["authorization"] = f"Bearer {self.token}"

    def refresh(self, _: object) -> None:
        assert self.token, "others may send it just now"
        assert self._lock.locked()
        self.tokens += 1
        self.token = str(self.tokens)


@pytest.mark.parametrize("refusals", [1, 2])
def test_credentials_that_google_refuses_are_renewed_once(gcs: Kind, refusals: int) -> None:
    """They may have been ended early, or a slow clock takes them for fresh."""
    storage = gcs.open()
    storage.put("a", b"x")
    client: Any = storage.client  # type: ignore[attr-defined]
    kept = client._session.credentials
    kept.credentials = held = _Renewed(kept.lock)
    gcs.cloud.plans += [gcs.error(401, "authError")] * refusals
    if refusals == 1:
        assert storage.get("a") == b"x"
    else:
        with pytest.raises(StorageError, match="missing, wrong or expired"):
            storage.get("a")
    assert held.token == "1"


def test_who_has_no_credentials_is_refused_at_once(gcs: Kind) -> None:
    storage = gcs.open()
    storage.put("a", b"x")
    client: Any = storage.client  # type: ignore[attr-defined]
    anonymous: Any = AnonymousCredentials
    client._session.credentials.credentials = anonymous()
    gcs.cloud.plans.append(gcs.error(401, "required"))
    with pytest.raises(StorageError, match="missing, wrong or expired"):
        storage.get("a")
    assert storage.get("a") == b"x"


def test_what_google_calls_forbidden_may_be_too_much_at_once(
    gcs: Kind, pauses: list[float]
) -> None:
    """Its older answer to too many requests."""
    storage = gcs.open()
    storage.put("a", b"x")
    gcs.cloud.plans.append(gcs_error(403, "rateLimitExceeded"))
    assert storage.get("a") == b"x"
    assert len(pauses) == 1
