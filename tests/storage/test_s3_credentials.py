"""S3 credentials that are renewed while a process lives: whatever is open, or opened, has them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import make_server

from tests.support.runtime.forked_child import in_child
from tests.support.storage.scripted_s3 import run_server
from txnlog.errors import StorageError
from txnlog.storage import open_storage
from txnlog.storage.adapters.s3 import S3Storage

pytestmark = pytest.mark.s3

_REFUSAL = "<Error><Code>{}</Code><Message>The provided token has expired.</Message></Error>"
_ASSUMED = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>{}</AccessKeyId>
<SecretAccessKey>secret</SecretAccessKey><SessionToken>token</SessionToken>
<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>
</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"""


@dataclass
class ExpiringServer:
    """A real S3 server that knows only the keys in ``valid``.

    As STS it gives a web identity its token for a key. ``asked`` are the key and the method of each
    request.
    """

    valid: set[str] = field(default_factory=set)
    code: str = "ExpiredToken"
    asked: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""

    def __post_init__(self) -> None:
        self._application = create_backend_app("s3")
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        signed = environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2]
        key, method = signed.partition("/")[0], environ["REQUEST_METHOD"]
        if not key:
            form = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])).decode()
            self.asked.append(("", "STS"))
            start("200 OK", [("Content-Type", "text/xml")])
            return [_ASSUMED.format(parse_qs(form)["WebIdentityToken"][0]).encode()]
        with self._lock:
            self.asked.append((key, method))
            if key not in self.valid:
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                start("400 Bad Request", [("Content-Type", "application/xml")])
                return [] if method == "HEAD" else [_REFUSAL.format(self.code).encode()]
            return list(self._application(environ, start))


@pytest.fixture(scope="module")
def serving() -> Iterator[ExpiringServer]:
    found = ExpiringServer({"setup"})
    server = make_server("127.0.0.1", 0, found, threaded=True)
    with run_server(server, server.server_port) as found.url:
        options = {"key": "setup", "secret": "s", "skip_instance_cache": True}
        client = S3Storage("test", {**options, "endpoint_url": found.url}).client
        client.files.call_s3("create_bucket", Bucket="test")
        yield found


@pytest.fixture
def server(
    serving: ExpiringServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ExpiringServer:
    """The server as at the beginning, and an environment that has no credentials but the tests'."""
    serving.valid, serving.code = set(), "ExpiredToken"
    serving.asked.clear()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", serving.url)
    return serving


def write_profile(folder: Path, key: str, profile: str = "default") -> None:
    text = f"[{profile}]\naws_access_key_id={key}\naws_secret_access_key=s\naws_session_token=t\n"
    (folder / "credentials").write_text(text)


def open_at(server: ExpiringServer, request: pytest.FixtureRequest, **options: object) -> S3Storage:
    """A storage of the test's own, which makes only requests that the test asks for."""
    storage = open_storage(
        f"s3://test/{request.node.name}", {"endpoint_url": server.url, **options}
    )
    assert isinstance(storage, S3Storage)
    storage.trust()
    return storage


def test_a_profile_that_is_renewed_serves_a_storage_that_is_open(
    server: ExpiringServer, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Every kind of request goes on, uploads in parts and many at a time too."""
    large = b"x" * (20 << 20)

    def list_all(storage: S3Storage) -> int:
        return len(list(storage.list_all("")))

    def upload(storage: S3Storage) -> bytes:
        with storage.upload("large") as begun:
            begun.write(large)
        return storage.get("large")

    kinds: dict[str, tuple[Callable[[S3Storage], object], object]] = {
        "get": (lambda storage: storage.get("a"), b"old"),
        "get_range": (lambda storage: storage.get_range("a", 1, 2), b"l"),
        "get_many": (lambda storage: storage.get_many(["a"] * 40), [b"old"] * 40),
        "size": (lambda storage: storage.size("a"), 3),
        "list": (list_all, 1),
        "put_if_absent": (lambda storage: storage.put_if_absent("b", b"new"), True),
        "lost": (lambda storage: storage.put_if_absent("a", b"new"), False),
        "put": (lambda storage: storage.put("c", b"new"), None),
        "upload": (upload, large),
        "delete": (lambda storage: storage.delete(["b", "c", "large"]), None),
        "after": (list_all, 1),
    }
    server.valid = {"key"}
    write_profile(tmp_path, "key", "team")
    storage = open_at(server, request, profile="team")
    storage.put("a", b"old")
    for kind, (call, expected) in kinds.items():
        server.valid = {f"key-{kind}"}
        write_profile(tmp_path, f"key-{kind}", "team")
        assert call(storage) == expected, kind


def test_many_refusals_at_once_look_for_credentials_once(
    server: ExpiringServer, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A web identity whose session the server has ended before its time."""
    server.valid = {"first", "second"}
    (tmp_path / "token").write_text("first")
    (tmp_path / "config").write_text(
        f"[default]\nrole_arn=arn:aws:iam::123456789012:role/r\n"
        f"web_identity_token_file={tmp_path / 'token'}\n"
    )
    storage = open_at(server, request)
    storage.put("a", b"x")
    assert server.asked == [("", "STS"), ("first", "PUT")]
    server.asked.clear()
    server.valid = {"second"}
    (tmp_path / "token").write_text("second")
    assert storage.get_many(["a"] * 20) == [b"x"] * 20
    assert server.asked.count(("", "STS")) == 1
    assert server.asked.count(("second", "GET")) == 20


@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"])
def test_a_key_that_was_replaced_is_like_one_that_expired(
    server: ExpiringServer, request: pytest.FixtureRequest, tmp_path: Path, code: str
) -> None:
    server.valid, server.code = {"a"}, code
    write_profile(tmp_path, "a")
    storage = open_at(server, request)
    storage.put("a", b"x")
    server.valid = {"b"}
    write_profile(tmp_path, "b")
    assert storage.get("a") == b"x"


def test_what_has_not_been_renewed_is_refused_until_it_is(
    server: ExpiringServer, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """It is asked twice, not for ever; the error says how to go on."""
    server.valid = {"a"}
    write_profile(tmp_path, "a")
    storage = open_at(server, request)
    storage.put("a", b"x")
    server.valid = {"b"}
    server.asked.clear()
    with pytest.raises(StorageError, match=r"token has expired.*renew the profile") as refused:
        storage.get("a")
    assert not refused.value.retriable
    assert server.asked == [("a", "GET")] * 2
    write_profile(tmp_path, "b")
    assert storage.get("a") == b"x"


def test_credentials_that_come_later(
    server: ExpiringServer, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A notebook is open, its user has not logged in yet."""
    server.valid = {"a"}
    storage = open_at(server, request)
    with pytest.raises(StorageError, match="configure a profile"):
        storage.put("a", b"x")
    write_profile(tmp_path, "a")
    storage.put("a", b"x")
    assert storage.get("a") == b"x"


def test_quick_reads_go_on_after_a_renewal(
    server: ExpiringServer, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A refusal does not leave every later read to botocore."""
    server.valid = {"a"}
    write_profile(tmp_path, "a")
    storage = open_at(server, request)
    storage.put("a", b"x")
    storage.get("a")
    server.valid = {"b"}
    write_profile(tmp_path, "b")
    storage.get("a")
    storage.get("a")
    made: list[object] = []
    events = storage.client.files.s3.meta.events
    events.register("before-call.s3.GetObject", lambda **_: made.append(1))
    assert storage.get("a") == b"x"
    assert made == []


def test_what_is_opened_again_has_the_credentials_of_then(
    server: ExpiringServer,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also while the old ones are valid: they may be another user's."""
    server.valid = {"file", "file-2", "environment", "explicit", "explicit-2"}

    def key_of(**options: object) -> str:
        server.asked.clear()
        open_at(server, request, **options).put("a", b"x")
        return server.asked[0][0]

    write_profile(tmp_path, "file")
    assert key_of() == "file"
    write_profile(tmp_path, "file-2")
    assert key_of() == "file-2"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert key_of() == "environment"
    assert key_of(key="explicit", secret="s", token="t") == "explicit"
    assert key_of(key="explicit-2", secret="s", token="t") == "explicit-2"


def test_explicit_credentials_are_never_exchanged_for_others(
    server: ExpiringServer, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A profile that happens to be there may be anybody's."""
    server.valid = {"profile", "explicit"}
    write_profile(tmp_path, "profile")
    storages = [
        open_at(server, request, key="explicit", secret="s"),
        open_at(
            server,
            request,
            client_kwargs={"aws_access_key_id": "explicit", "aws_secret_access_key": "s"},
        ),
    ]
    for storage in storages:
        server.valid.add("explicit")
        storage.put("a", b"x")
        server.valid.discard("explicit")
        server.asked.clear()
        with pytest.raises(StorageError, match="opening the store again"):
            storage.get("a")
        assert server.asked == [("explicit", "GET")]


def test_one_client_serves_stores_that_are_opened_alike(
    server: ExpiringServer, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Making one takes longer than most requests."""
    write_profile(tmp_path, "a")
    assert open_at(server, request).client.files is open_at(server, request).client.files


@pytest.mark.parametrize("told", ["profile", "environment", "options"])
def test_servers_are_told_apart_wherever_they_are_named(
    server: ExpiringServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    """The check of one says nothing of another one with a bucket of that name."""
    text = ""
    for name in ("one", "two"):
        url = f"http://{name}.example:9000"
        text += f"[profile {name}]\nendpoint_url={url}\n"
    (tmp_path / "config").write_text(text)
    write_profile(tmp_path, "key", "one")
    for name in ("one", "two", "one"):
        url, options = f"http://{name}.example:9000", {"key": "a", "secret": "b"}
        if told == "environment":
            monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        else:
            options |= {"profile": name} if told == "profile" else {"endpoint_url": url}
        storage = open_storage("s3://bucket/store", options)
        assert isinstance(storage, S3Storage)
        assert storage.checked_for_s is None
        assert storage.server == ("s3", url, "bucket")


def test_renewed_keys_do_not_pile_up_clients(
    server: ExpiringServer, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that opens its store with new keys every hour. What is in use stays usable."""
    monkeypatch.setattr("txnlog.storage.adapters.surroundings._INSTANCES_KEPT", 3)
    server.valid = {"key-0"}
    opened = [open_at(server, request, key=f"key-{hour}", secret="s") for hour in range(5)]
    clients = [storage.client.files for storage in opened]
    assert list(type(clients[0])._cache.values()) == clients[2:]
    assert opened[0].put_if_absent("a", b"x")


def test_a_child_of_a_fork_renews_for_itself(
    server: ExpiringServer, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server.valid = {"a"}
    write_profile(tmp_path, "a")
    storage = open_at(server, request)
    storage.put("a", b"x")

    def read() -> bytes:
        return storage.get("a")

    server.valid = {"b"}
    write_profile(tmp_path, "b")
    assert in_child(read) == repr(b"x")
    write_profile(tmp_path, "b")
    assert storage.get("a") == b"x"
