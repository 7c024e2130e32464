"""Many small commits and scans of them: txnlog, and deltalake on the same server beside it.

The sides take turns, commit by commit and scan by scan: whatever else the machine does meets both.
Each runs in processes of its own, which this module is when started as a script; its modules are
imported before the clock runs, and scans are made by a process that has not written.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.stores.servers.s3_buckets import variables_for

COMMITS, RECORDS, SCANS = 100, 100, 9
SIDES = ("txnlog", "deltalake")
WHAT = f"{COMMITS} commits of {RECORDS} records, then scans: {{}}"
REQUESTS = f"requests of a first scan of {COMMITS} commits"
_SCRIPT = Path(__file__)
_Ask = Callable[[str], float]
Options = Mapping[str, object]


class SideFailed(Exception):
    """One of both could not do what it was asked to; the text says which and why."""


def compare(url: str, options: Options) -> dict[str, str]:
    """Write and scan with each side that knows the server; returns the figures by what they are of.

    Raises SideFailed.
    """
    sides = [side for side in SIDES if side == "txnlog" or _deltalake_knows(url)]
    with ExitStack() as stack:
        writers = {side: stack.enter_context(_side(side, url, options)) for side in sides}
        for ask in writers.values():
            ask("begin")
        commits_ms = _take_turns(writers, [f"commit {number}" for number in range(COMMITS)])
    with ExitStack() as stack:
        scanners = {side: stack.enter_context(_side(side, url, options)) for side in sides}
        scans_ms = _take_turns(scanners, ["scan"] * (1 + SCANS))
    figures = {}
    for side in sides:
        first_ms, *later_ms = scans_ms[side]
        figures[WHAT.format(side)] = (
            f"{statistics.mean(commits_ms[side]):.0f} ms a commit; scanned in {first_ms:.0f} ms, "
            f"then in {statistics.median(later_ms):.0f} ms (median of {SCANS})"
        )
    counted = {side: _count_requests(side, url, options) for side in sides}
    if None not in counted.values():
        figures[REQUESTS] = ", ".join(f"{side} {count}" for side, count in counted.items())
    return figures


def _deltalake_knows(url: str) -> bool:
    """Whether its side can be run there."""
    return url.startswith(("s3://", "/"))


def _take_turns(asked: Mapping[str, _Ask], commands: list[str]) -> dict[str, list[float]]:
    """What each command took each side, in milliseconds; who is first changes each time."""
    took_ms: dict[str, list[float]] = {side: [] for side in asked}
    sides = list(asked)
    for command in commands:
        for side in sides:
            took_ms[side].append(asked[side](command))
        sides.reverse()
    return took_ms


def _count_requests(side: str, url: str, options: Options) -> int | None:
    """How many requests a process makes that scans and has not been there before.

    None: nothing names a server through whose proxy they could be counted.
    """
    from txnlog.testing.conformance.fault_proxy import ProxyFaults
    from txnlog.testing.conformance.lost_responses import through_proxy
    from txnlog.testing.conformance.ways import Way

    with through_proxy(Way(url, dict(options)), ProxyFaults()) as found:
        if found is None:
            return None
        way, proxy = found
        with _side(side, way.url, way.options) as ask:
            ask("scan")
            return proxy.counts["requests"]


@contextmanager
def _side(side: str, url: str, options: Options) -> Iterator[_Ask]:
    """A process of one side; what is called sends it a command, and returns the milliseconds."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, _SCRIPT, side, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        sent, received = process.stdin, process.stdout

        def ask(command: str) -> float:
            try:
                sent.write(f"{command}\n")
                sent.flush()
                return float(received.readline())
            except (OSError, ValueError) as error:
                process.wait()
                errors.seek(0)
                last = " / ".join(errors.read().strip().splitlines()[-3:])
                raise SideFailed(f"{side}'s side failed at `{command[:12]}`: {last}") from error

        try:
            # Through a pipe: command lines show to everybody, and options may hold keys.
            ask(json.dumps(dict(options)))
            yield ask
        finally:
            process.kill()
            process.wait()
            sent.close()
            received.close()


# -- in the process of a side --------------------------------------------------------------------


def _values(commit: int) -> list[bytes]:
    return [b"%d of %d" % (number, commit) for number in range(RECORDS)]


@dataclass(frozen=True)
class _Work:
    """What a side can do: make a store, commit, scan and count."""

    begin: Callable[[], None]
    commit: Callable[[int], None]
    scan: Callable[[], int]


def _txnlog(url: str, options: dict[str, object]) -> _Work:
    import pyarrow as pa

    import txnlog.segments.formats.columns
    import txnlog.store
    from txnlog.storage import open_storage

    open_storage(url, options).address()  # imports the adapter
    if url.startswith("s3:"):
        import txnlog.storage.adapters.s3_client
    producers: list[txnlog.Producer] = []

    def begin() -> None:
        store = txnlog.open(url, create=True, storage_options=options)
        store.topics.create("t")
        producers.append(store.producer())

    def commit(number: int) -> None:
        values = pa.array(_values(number), pa.binary())
        producers[0].send_batch("t", pa.table({"value": values}))
        producers[0].flush()

    def scan() -> int:
        store = txnlog.store.open_store(url, storage_options=options)
        rows: int = store.scan("t").to_arrow().num_rows
        return rows

    return _Work(begin, commit, scan)


def _deltalake(url: str, options: dict[str, object]) -> _Work:
    import pyarrow as pa
    import pyarrow.dataset
    from deltalake import DeltaTable, write_deltalake

    table_url, given = f"{url}-delta", {}
    if "endpoint_url" in options:
        given = {
            **variables_for(options),
            "AWS_ALLOW_HTTP": "true",
            "conditional_put": "etag",
        }

    def commit(number: int) -> None:
        table = pa.table({"value": pa.array(_values(number), pa.binary())})
        write_deltalake(table_url, table, mode="append", storage_options=given)

    def scan() -> int:
        rows: int = DeltaTable(table_url, storage_options=given).to_pyarrow_table().num_rows
        return rows

    return _Work(lambda: None, commit, scan)


def _main(side: str, url: str) -> None:
    """Do what is asked, line by line, and tell what it took."""
    options = json.loads(sys.stdin.readline())
    work = (_txnlog if side == "txnlog" else _deltalake)(url, options)
    _tell(0.0)
    for line in sys.stdin:
        what, _, number = line.strip().partition(" ")
        begun_s = time.perf_counter()
        if what == "begin":
            work.begin()
        elif what == "commit":
            work.commit(int(number))
        else:
            rows = work.scan()
            assert rows == COMMITS * RECORDS, f"{rows} rows were read"
        _tell((time.perf_counter() - begun_s) * 1000)
    os._exit(0)  # deltalake's threads may crash an interpreter that ends


def _tell(took_ms: float) -> None:
    sys.stdout.write(f"{took_ms}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main(*sys.argv[1:])
