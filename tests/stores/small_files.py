"""Many small commits and a scan of them: txnlog, and deltalake on the same server beside it.

deltalake is no dependency of ours: it is installed into an environment of its own, and its side is
run there, as a script: ``python small_files.py URL OPTIONS``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

COMMITS, RECORDS = 100, 100
WHAT = f"{COMMITS} commits of {RECORDS} records, then a scan: {{}}"
_DELTALAKE = "1.6.6"
_SCRIPT = Path(__file__)


def run_txnlog(url: str, options: Mapping[str, object]) -> str:
    """Commit and scan; returns the figure."""
    import pyarrow as pa

    import txnlog

    store = txnlog.open(url, create=True, storage_options=options)
    store.create_topic("t")
    begun_s = time.perf_counter()
    with store.producer() as producer:
        for commit in range(COMMITS):
            values = [b"%d of %d" % (number, commit) for number in range(RECORDS)]
            producer.send_batch("t", pa.table({"value": pa.array(values, pa.binary())}))
            producer.flush()
    written_s = time.perf_counter() - begun_s
    begun_s = time.perf_counter()
    rows = txnlog.open(url, storage_options=options).scan("t").to_arrow().num_rows
    scanned_s = time.perf_counter() - begun_s
    return _figure(rows, written_s, scanned_s)


def _figure(rows: int, written_s: float, scanned_s: float) -> str:
    assert rows == COMMITS * RECORDS
    return f"{written_s * 1000 / COMMITS:.0f} ms a commit; scanned in {scanned_s * 1000:.0f} ms"


def deltalake_knows(url: str) -> bool:
    """Whether its side can be run there."""
    return url.startswith(("s3://", "/"))


def run_deltalake(url: str, options: Mapping[str, object]) -> str:
    """The same with deltalake, in its own environment; returns the figure."""
    from servers import CannotStart, building, cache_folder, run_tool

    folder = cache_folder() / f"deltalake-{_DELTALAKE}"
    python = folder / "bin" / "python"
    given = {}
    if "endpoint_url" in options:
        given = {
            "AWS_ACCESS_KEY_ID": options["key"],
            "AWS_SECRET_ACCESS_KEY": options["secret"],
            "AWS_ENDPOINT_URL": options["endpoint_url"],
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "conditional_put": "etag",
        }
    try:
        with building():
            if not (folder / "installed").exists():
                run_tool([sys.executable, "-m", "venv", folder])
                run_tool([python, "-m", "pip", "install", f"deltalake=={_DELTALAKE}", "pyarrow"])
                (folder / "installed").touch()
        return run_tool([python, _SCRIPT, url, json.dumps(given)]).strip()
    except CannotStart as why:
        return f"could not be run: {why}"


def _main(url: str, options: dict[str, str]) -> None:
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    begun_s = time.perf_counter()
    for commit in range(COMMITS):
        values = [b"%d of %d" % (number, commit) for number in range(RECORDS)]
        table = pa.table({"value": pa.array(values, pa.binary())})
        write_deltalake(url, table, mode="append", storage_options=options)
    written_s = time.perf_counter() - begun_s
    begun_s = time.perf_counter()
    rows = DeltaTable(url, storage_options=options).to_pyarrow_table().num_rows
    scanned_s = time.perf_counter() - begun_s
    sys.stdout.write(_figure(rows, written_s, scanned_s) + "\n")


if __name__ == "__main__":
    _main(sys.argv[1], json.loads(sys.argv[2]))
