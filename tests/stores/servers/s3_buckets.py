"""What the servers that speak S3's protocol share: keys, options, and the bucket of the tests."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

KEY, SECRET = "test-stores", "test-stores-secret"
BUCKET = "test"
URL = f"s3://{BUCKET}"


def options_for(port: int) -> dict[str, object]:
    """Storage options for a server on a port of the loopback interface."""
    return {
        "key": KEY,
        "secret": SECRET,
        "endpoint_url": f"http://127.0.0.1:{port}",
        "client_kwargs": {"region_name": "us-east-1"},
    }


def variables_for(options: Mapping[str, object]) -> dict[str, str]:
    """Environment variables, which deltalake takes as options, that say the same as ours."""
    return {
        "AWS_ENDPOINT_URL": str(options["endpoint_url"]),
        "AWS_ACCESS_KEY_ID": str(options["key"]),
        "AWS_SECRET_ACCESS_KEY": str(options["secret"]),
        "AWS_REGION": "us-east-1",
    }


def make_bucket(options: dict[str, object]) -> None:
    """Create the bucket of the tests, unless it is there."""
    import s3fs

    given: dict[str, Any] = {**options, "skip_instance_cache": True}
    with suppress(FileExistsError):
        s3fs.S3FileSystem(**given).call_s3("create_bucket", Bucket=BUCKET)
