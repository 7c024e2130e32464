"""URLs and options of Google Cloud Storage, Azure and SFTP: what is taken, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from txnlog.errors import InvalidOption
from txnlog.storage import open_storage
from txnlog.storage.adapters.azure import AzureStorage
from txnlog.storage.adapters.gcs import GcsStorage


@pytest.mark.parametrize(
    ("url", "options", "shown"),
    [
        ("gs://bucket/a/b", {}, "gs://bucket/a/b"),
        ("gcs://bucket/a/", {"token": "anon"}, "gs://bucket/a"),
        ("az://container/a", {"account_name": "x"}, "az://container/a"),
        ("ABFSS://c@acc.dfs.core.windows.net/a/b", {}, "abfss://c@acc.dfs.core.windows.net/a/b"),
        ("abfs://container", {}, "abfs://container"),
        ("sftp://me@host:2222/data/store/", {}, "sftp://me@host:2222/data/store"),
    ],
)
def test_urls_that_are_taken(url: str, options: dict[str, Any], shown: str) -> None:
    """The address opens the same again."""
    storage = open_storage(url, options)
    assert storage.url == shown
    address = storage.address()
    assert open_storage(address.url, address.options).url == shown


@pytest.mark.parametrize(
    ("url", "options", "why"),
    [
        ("gs://", {}, "needs a bucket"),
        ("gs://key@bucket/a", {}, "credentials"),
        ("gs://bucket/a?x=1", {}, "credentials"),
        ("gs://bucket/a//b", {}, "cannot be the name"),
        ("gs://bucket/../b", {}, "cannot be the name"),
        ("gs://b/a", {"endpoint_url": "http://me:secret@host"}, "endpoint_url"),
        ("gs://b/a", {"token": "{not json"}, "service account"),
        ("gs://b/a", {"requests_timeout": "soon"}, "seconds"),
        ("gs://b/a", {"requests_timeout": "nan"}, "seconds"),
        ("gs://b/a", {"requests_timeout": 0}, "seconds"),
        ("gs://b/a", {"endpoint_url": "localhost:9000"}, "endpoint_url must be a whole URL"),
        ("s3://b/a", {"endpoint_url": "localhost:9000"}, "endpoint_url must be a whole URL"),
        ("s3://b/a", {"client_kwargs": {"endpoint_url": "host"}}, "must be a whole URL"),
        ("s3://b/a", {"endpoint_url": "http://host:99999"}, "endpoint_url: the port"),
        ("gs://b/a", {"token": "/none/account.json"}, "token names no file"),
        ("gs://b/a", {"token": '{"private_key": "secret"}'}, "lacks client_email, token_uri"),
        ("gs://b/a", {"token": {"client_id": "secret"}}, "token lacks client_email, private_key"),
        ("gs://b/a", {"session_kwargs": "x"}, "JSON"),
        ("az://", {}, "needs a container"),
        ("az://c@somewhere/a", {}, "the account's host"),
        ("az://c:key@acc.dfs.core.windows.net/a", {}, "credentials"),
        ("az://c/a?sig=1", {}, "credentials"),
        ("az://c/a//b", {}, "cannot be the name"),
        ("abfs://c@one.dfs.core.windows.net/a", {"account_name": "two"}, "another one"),
        ("az://c/a", {"timeout": "long"}, "whole number"),
        ("az://c/a", {"connection_string": "very secret"}, "connection_string must be"),
        ("az://c/a", {"connection_string": "AccountName=a;secret"}, "connection_string must be"),
        ("az://c/a", {"connection_string": "AccountKey=secret"}, "connection_string must be"),
        ("sftp://host", {}, "needs host and path"),
        ("sftp:///a", {}, "needs host and path"),
        ("sftp://me:secret@host/a", {}, "storage_options"),
        ("sftp://host:x/a", {}, "port"),
        ("sftp://host/a", {"port": 99999}, "option port"),
        ("sftp://host/a", {"port": "0"}, "option port"),
        ("sftp://host/a", {"client_keys": "/none/key"}, "client_keys .* /none/key"),
        ("sftp://host/a", {"known_hosts": "/none/hosts"}, "known_hosts .* /none/hosts"),
        ("sftp://host/a/../b", {}, "cannot be the name"),
        ("sftp://host/a", {"pkey": "x"}, "takes the storage options username"),
        ("sftp://one@host/a", {"username": "two"}, "different values of username"),
    ],
)
def test_urls_that_are_refused(url: str, options: dict[str, Any], why: str) -> None:
    """With what is wrong, and no secret."""
    with pytest.raises(InvalidOption, match=why) as caught:
        open_storage(url, options)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("host", ["[::1", "host]", "ho\u2100st", "me:secret@[::1"])
@pytest.mark.parametrize("place", ["sftp", "webhdfs", "swebhdfs", "hdfs", "ftp", "s3", "gs"])
def test_a_malformed_host_is_our_own_error(place: str, host: str) -> None:
    """In URLs and in endpoints: Python's own is a ValueError, which may show a password."""
    is_bucket = place in ("s3", "gs")
    options = {"endpoint_url": f"http://{host}:9000"} if is_bucket else {}
    url = f"{place}://bucket/a" if is_bucket else f"{place}://{host}/a"
    with pytest.raises(InvalidOption) as caught:
        open_storage(url, options, unsafe_single_writer=place == "ftp")
    assert "secret" not in str(caught.value)


def test_options_may_be_strings() -> None:
    """As they come from Spark and from the command line."""
    token = {"client_id": "a", "client_secret": "b", "refresh_token": "c"}
    given = {"requester_pays": "true", "token": json.dumps(token), "requests_timeout": "2.5"}
    storage = open_storage("gs://b/a", {**given, "session_kwargs": '{"trust_env": true}'})
    assert isinstance(storage, GcsStorage)
    assert storage.address().options == {
        "requester_pays": True,
        "token": token,
        "requests_timeout": 2.5,
        "session_kwargs": {"trust_env": True},
    }
    assert open_storage("gs://b/a", {"requester_pays": "project"}).address().options == {
        "requester_pays": "project"
    }
    azure = open_storage("az://c/a", {"anon": "false", "timeout": "30"})
    assert azure.address().options == {"anon": False, "timeout": 30}


def test_the_account_may_be_in_the_url() -> None:
    """As Hadoop has it, and in clouds other than the public one."""
    storage = open_storage("abfss://c@acc.dfs.core.windows.net/a", {"account_key": "x" * 20})
    other = open_storage("abfss://c@acc.dfs.core.chinacloudapi.cn/a")
    assert isinstance(storage, AzureStorage)
    assert isinstance(other, AzureStorage)
    assert storage._client_options["account_name"] == "acc"
    assert "account_host" not in storage._client_options
    assert other._client_options["account_host"] == "acc.blob.core.chinacloudapi.cn"


def test_what_one_check_covers_has_no_secrets() -> None:
    """An account and a container, a bucket, or a host."""
    key = "c2VjcmV0LXNlY3JldA=="
    connection = f"AccountName=acc;AccountKey={key};EndpointSuffix=core.windows.net"
    for storage, place in (
        (open_storage("az://c/a", {"connection_string": connection}), ("azure", "acc", "c")),
        (open_storage("abfs://c@acc.blob.core.windows.net/b"), ("azure", "acc", "c")),
        (open_storage("gs://bucket/a"), ("gcs", "", "bucket")),
        (open_storage("sftp://me@host/a", {"password": key}), ("sftp", "host", 22, "me")),
        (open_storage("sftp://host/a", {"port": 2, "username": "me"}), ("sftp", "host", 2, "me")),
    ):
        assert storage.server == place  # type: ignore[attr-defined]
