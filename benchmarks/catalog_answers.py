"""What answers of a catalog take, in a process that has loaded no more than its server does.

Prints, as JSON, CPU time in s and the process's largest memory in MB: of the first answer for the
topic ``t`` of a store, of one after a commit, of one more, and before the first. The argument is
the store; `benchmarks/beside_iceberg.py` makes it, and files that do not exist.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pyarrow as pa

import txnlog
import txnlog.ui.catalog.protocol
import txnlog.ui.connections
from txnlog.log.uploads import TopicSpec, UploadedSegment
from txnlog.state.segment import StoredSegment
from txnlog.tables import fresh_pieces
from txnlog.tables.fresh_table import FreshTables


def main(root: str) -> None:
    pa.set_memory_pool(pa.system_memory_pool())  # as the server does
    fresh_pieces.MOST_FOOTERS = 0  # there are no files
    store = txnlog.open(root)
    tables = FreshTables(store.logs)

    def answer() -> tuple[float, float]:
        before = time.process_time()
        tables.load("t")
        return time.process_time() - before, _most_mb()

    begun = (0.0, _most_mb())
    first = answer()
    spec = store.logs.topic_spec("t")
    store.logs.topic("t").place([placed(spec, 0, f"{os.getpid()}-0-0.parquet")])
    print(json.dumps([first, answer(), answer(), begun]))


def placed(spec: TopicSpec, partition: int, name: str) -> UploadedSegment:
    """A segment whose file is not there."""
    return UploadedSegment("t", spec.topic_id, partition, StoredSegment(name, 1000, 9999, 0, 0))


def _most_mb() -> float:
    """The most memory that this process has had; of Linux alone, as getrusage has its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


if __name__ == "__main__":
    main(sys.argv[1])
