"""Storage on Google Cloud Storage, through gcsfs.

Put-if-absent is an upload with ``ifGenerationMatch=0``, gcsfs's ``mode="create"``. Knows URLs and
options, and nothing of requests.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from txnlog.errors import InvalidOption
from txnlog.storage.adapters.object_store import (
    ObjectClient,
    ObjectStore,
    bucket_path,
    check_endpoint,
)
from txnlog.storage.base import Storage
from txnlog.storage.option_types import parse_options

_SERVICE_FIELDS = {"client_email", "private_key", "token_uri"}
_USER_FIELDS = {"client_id", "client_secret", "refresh_token"}
_BOOLEANS = ("skip_instance_cache", "use_listings_cache")


def open_url(url: str, options: Mapping[str, object]) -> Storage:
    """The storage at ``gs://bucket/folder``, or ``gcs://``; see ``registry``."""
    path = bucket_path(url, "a GCS")
    parsed = parse_options(options, nested=("session_kwargs",), booleans=_BOOLEANS)
    if "token" in parsed:
        parsed["token"] = _parse_token(parsed["token"])
    if "requester_pays" in parsed:  # a project to be billed, or true
        pays = parsed["requester_pays"]
        if isinstance(pays, str) and pays.lower() in ("true", "false"):
            parsed["requester_pays"] = pays.lower() == "true"
    if "requests_timeout" in parsed:
        parsed["requests_timeout"] = _parse_seconds(parsed["requests_timeout"])
    check_endpoint(str(parsed.get("endpoint_url") or ""), "the option token")
    return GcsStorage(f"gs://{path.rstrip('/')}", parsed)


def _parse_token(token: object) -> object:
    """A service account's JSON as a mapping; a path or the name of a method stays as it is."""
    if isinstance(token, Mapping):
        return _check_account(token)
    if isinstance(token, str) and token.endswith(".json") and not Path(token).is_file():
        raise InvalidOption(f"storage option token names no file: there is no {token} here")
    if not isinstance(token, str) or not token.lstrip().startswith("{"):
        return token
    try:
        found: Mapping[str, object] = json.loads(token)
    except (ValueError, RecursionError):
        raise InvalidOption(
            "storage option token must be a service account's JSON, a path to one, or a method "
            "such as google_default"
        ) from None
    return _check_account(found)


def _check_account(token: Mapping[str, object]) -> Mapping[str, object]:
    """A service account's fields, or a user's. Raises InvalidOption: some are missing."""
    lacking = [sorted(fields - token.keys()) for fields in (_SERVICE_FIELDS, _USER_FIELDS)]
    if all(lacking):
        raise InvalidOption(
            f"storage option token lacks {', '.join(lacking[0])}: give the whole JSON of a service "
            "account's key"
        )
    return token


def _parse_seconds(value: object) -> float:
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < inf:
        raise InvalidOption("storage option requests_timeout must be a number of seconds")
    return seconds


class GcsStorage(ObjectStore[ObjectClient]):
    """Objects below ``gs://bucket/prefix``.

    Options are gcsfs's: token, project, endpoint_url, requester_pays, session_kwargs, ...
    """

    needs = "gcsfs", "gcs"
    connect_hint = "check the storage options token and project"

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(url, options)

    @property
    def server(self) -> tuple[str, str, str]:
        emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
        return "gcs", str(self._options.get("endpoint_url") or emulator), self._bucket

    def _load_client(self) -> Callable[[], ObjectClient]:
        from txnlog.storage.adapters.gcs_client import GcsClient

        return partial(GcsClient, self._bucket, self._options)
