"""Storage on Azure Blob Storage and Data Lake Storage, through adlfs.

Put-if-absent is a Put Blob with ``If-None-Match: *``, adlfs's ``overwrite=False``. Knows URLs and
options, and nothing of requests.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from txnlog.errors import InvalidOption
from txnlog.storage.adapters.object_store import ObjectClient, ObjectStore
from txnlog.storage.base import Storage, check_name
from txnlog.storage.failure_messages import secrets_of
from txnlog.storage.option_types import parse_options

_BOOLEANS = (
    "anon",
    "assume_container_exists",
    "default_fill_cache",
    "skip_instance_cache",
    "use_listings_cache",
    "version_aware",
)
_INTEGERS = ("blocksize", "connection_timeout", "max_concurrency", "read_timeout", "timeout")
_HOST = re.compile(r"(?P<account>[a-z0-9-]+)\.(?:dfs|blob)\.(?P<suffix>[a-z0-9.-]+)")
_SUFFIX = "core.windows.net"


def open_url(url: str, options: Mapping[str, object]) -> Storage:
    """The storage at ``az://container/folder``, ``abfs://`` or ``abfss://``; see ``registry``.

    The account is an option, or in the URL as Hadoop has it:
    ``abfss://container@account.dfs.core.windows.net/folder``.
    """
    protocol, _, path = url.partition("://")
    place = path.partition("/")[0]
    if "?" in path or ":" in place or place.count("@") > 1:
        raise InvalidOption(
            "credentials and queries do not belong in an Azure URL: use storage_options"
        )
    container, _, host = place.partition("@")
    if not container:
        raise InvalidOption(f"an Azure URL needs a container, as in {protocol}://container/folder")
    if "@" in place and not _HOST.fullmatch(host):
        raise InvalidOption(
            "after the @ of an Azure URL comes the account's host, as in "
            f"{protocol}://container@account.dfs.core.windows.net/folder"
        )
    check_name(container + path[len(place) :].rstrip("/"))
    parsed = parse_options(options, booleans=_BOOLEANS, integers=_INTEGERS)
    _check_connection(str(parsed.get("connection_string") or ""))
    return AzureStorage(url.rstrip("/"), parsed)


class AzureStorage(ObjectStore[ObjectClient]):
    """Objects below ``az://container/prefix``.

    Options are adlfs's: account_name, account_key, sas_token, connection_string, ...

    Raises InvalidOption: URL and options name different accounts.
    """

    needs = "adlfs", "azure"
    connect_hint = (
        "name the account in the URL or as account_name, and give account_key, sas_token, "
        "connection_string, a service principal, or anon=False for the identity of this machine"
    )

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(url, options, _secrets_of(options or {}))
        _, _, host = url.partition("://")[2].partition("/")[0].partition("@")
        self._client_options = {**self._options, **_account_options(host, self._options)}

    @property
    def server(self) -> tuple[str, str, str]:
        given = self._client_options
        named = given.get("connection_string") or os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
        fields = _fields_of(str(named or ""))
        account = (
            fields.get("blobendpoint")
            or fields.get("accountname")
            or given.get("account_host")
            or given.get("account_name")
            or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
        )
        return "azure", str(account).partition("?")[0], self._bucket

    def _load_client(self) -> Callable[[], ObjectClient]:
        from txnlog.storage.adapters.azure_client import AzureClient

        return partial(AzureClient, self._bucket, self._client_options)


def _check_connection(text: str) -> None:
    """Raise InvalidOption if a connection string, unless it is "", cannot be one."""
    lacks_values = any("=" not in field for field in text.rstrip(";").split(";"))
    if text and (lacks_values or not _fields_of(text).keys() & {"accountname", "blobendpoint"}):
        raise InvalidOption(
            "storage option connection_string must be as the portal shows it, "
            "AccountName=...;AccountKey=... and so on"
        )


def _account_options(host: str, options: Mapping[str, Any]) -> dict[str, str]:
    """The account options from the host in a URL."""
    match = _HOST.fullmatch(host)
    if match is None:
        return {}
    account, suffix = match["account"], match["suffix"]
    if options.get("account_name") not in (None, account):
        raise InvalidOption(
            f"the URL names the account {account}, the storage option account_name another one"
        )
    found = {"account_name": account}
    if suffix != _SUFFIX and "account_host" not in options:
        found["account_host"] = f"{account}.blob.{suffix}"
    return found


def _secrets_of(options: Mapping[str, Any]) -> frozenset[str]:
    """Secrets, those within a connection string and the signature within a SAS token too."""
    found = set(secrets_of(options))
    connection = options.get("connection_string")
    if isinstance(connection, str):
        fields = _fields_of(connection)
        found |= {connection, *(fields.get(n, "") for n in ("accountkey", "sharedaccesssignature"))}
    for token in tuple(found):
        found |= set(re.findall(r"sig=([^&\s]+)", token))
    return frozenset(found - {""})


def _fields_of(connection_string: str) -> dict[str, str]:
    """The fields of a connection string by their names in lower case."""
    pairs = (field.partition("=") for field in connection_string.split(";"))
    return {name.strip().lower(): value.strip() for name, _, value in pairs if value}
