"""Many small commits and scans of them: txnlog, and deltalake on the same server beside it.

deltalake is no dependency of ours: it is installed into an environment of its own, and its side is
run there, as a script: ``python small_files.py deltalake URL OPTIONS``. Scans are made in a fresh
process on both sides, whose modules are imported before the clock runs.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

COMMITS, RECORDS, SCANS = 100, 100, 9
WHAT = f"{COMMITS} commits of {RECORDS} records, then scans: {{}}"
_DELTALAKE = "1.6.6"
_SCRIPT = Path(__file__)


def run_txnlog(url: str, options: Mapping[str, object]) -> str:
    """Commit and scan; returns the figure. Raises CannotStart: the scans fail."""
    import pyarrow as pa
    from servers import run_tool

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
    given = json.dumps(dict(options))
    scanned = run_tool([sys.executable, _SCRIPT, "txnlog", url, given], nice=False).strip()
    return _figure(written_s, scanned)


def _figure(written_s: float, scanned: str) -> str:
    return f"{written_s * 1000 / COMMITS:.0f} ms a commit; {scanned}"


def _time_scans(scan: Callable[[], int]) -> str:
    """What it takes a process that has not been there before, and then."""
    times_ms = []
    for _ in range(1 + SCANS):
        begun_s = time.perf_counter()
        rows = scan()
        times_ms.append((time.perf_counter() - begun_s) * 1000)
        assert rows == COMMITS * RECORDS
    first_ms, *later_ms = times_ms
    median_ms = statistics.median(later_ms)
    return f"scanned in {first_ms:.0f} ms, then in {median_ms:.0f} ms (median of {SCANS})"


def _scan_txnlog(url: str, options: dict[str, object]) -> str:
    import txnlog.store
    from txnlog.storage import open_storage

    open_storage(url, options).address()  # imports the adapter
    if url.startswith("s3:"):
        import txnlog.storage.adapters.s3_client
    import txnlog.segments.formats.columns

    return _time_scans(
        lambda: txnlog.store.open_store(url, storage_options=options).scan("t").to_arrow().num_rows
    )


def deltalake_knows(url: str) -> bool:
    """Whether its side can be run there."""
    return url.startswith(("s3://", "/"))


def run_deltalake(url: str, options: Mapping[str, object]) -> str:
    """The same with deltalake, in its own environment; returns the figure.

    Raises CannotStart: it cannot be had here, or fails.
    """
    from servers import building, cache_folder, run_tool

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
    with building():
        if not (folder / "installed").exists():
            run_tool([sys.executable, "-m", "venv", folder])
            run_tool([python, "-m", "pip", "install", f"deltalake=={_DELTALAKE}", "pyarrow"])
            (folder / "installed").touch()
    command = [python, _SCRIPT, "deltalake", url, json.dumps(given)]
    written_s = float(run_tool([*command, "write"], nice=False))
    return _figure(written_s, run_tool(command, nice=False).strip())


def _write_deltalake(url: str, options: dict[str, str]) -> str:
    import pyarrow as pa
    from deltalake import write_deltalake

    begun_s = time.perf_counter()
    for commit in range(COMMITS):
        values = [b"%d of %d" % (number, commit) for number in range(RECORDS)]
        table = pa.table({"value": pa.array(values, pa.binary())})
        write_deltalake(url, table, mode="append", storage_options=options)
    return str(time.perf_counter() - begun_s)


def _scan_deltalake(url: str, options: dict[str, str]) -> str:
    import pyarrow.dataset  # noqa: F401 - imported, not used
    from deltalake import DeltaTable

    return _time_scans(lambda: DeltaTable(url, storage_options=options).to_pyarrow_table().num_rows)


def _main(side: str, url: str, options: str, what: str = "scan") -> None:
    given = json.loads(options)
    if side == "txnlog":
        said = _scan_txnlog(url, given)
    else:
        said = _write_deltalake(url, given) if what == "write" else _scan_deltalake(url, given)
    sys.stdout.write(said + "\n")
    sys.stdout.flush()
    os._exit(0)  # deltalake's threads may crash an interpreter that ends


if __name__ == "__main__":
    _main(*sys.argv[1:])
