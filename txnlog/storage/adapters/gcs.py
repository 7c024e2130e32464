"""Storage on Google Cloud Storage, through gcsfs.

Put-if-absent is an upload with ``ifGenerationMatch=0``, gcsfs's ``mode="create"``. Knows URLs and
options, and nothing of requests.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from txnlog.errors import InvalidOption
from txnlog.storage.adapters.bucket_urls import bucket_path, check_endpoint
from txnlog.storage.adapters.object_store import ObjectClient, ObjectStore
from txnlog.storage.base import Storage
from txnlog.storage.option_types import parse_options

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
    if not isinstance(token, str) or not token.lstrip().startswith("{"):
        return token
    try:
        found: object = json.loads(token)
    except (ValueError, RecursionError):
        raise InvalidOption(
            "storage option token must be a service account's JSON, a path to one, or a method "
            "such as google_default"
        ) from None
    return found


def _parse_seconds(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise InvalidOption("storage option requests_timeout must be a number of seconds") from None


class GcsStorage(ObjectStore[ObjectClient]):
    """Objects below ``gs://bucket/prefix``.

    Args:
        url: without credentials.
        options: for gcsfs: token, project, endpoint_url, requester_pays, session_kwargs, ...
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
