"""Delta and Iceberg tables of a topic, changed before they are published to again.

``python -m tests.hostile.mutated_tables KIND FIRST STOP`` makes the mutations with these seeds and
prints a report as JSON. In a process of its own: the libraries' threads do not survive a fork, so
that no process forks here after it has used them.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import txnlog
from tests.hostile.mutated_worlds import BEGAN_MS, Files, flights
from tests.hostile.mutation_runs import Outcome, run
from tests.hostile.mutations import Mutate, change_bytes, change_json, change_lines
from txnlog.testing import VirtualClock

KINDS: dict[str, tuple[str, Mutate]] = {
    "delta-log": ("delta/_delta_log/*.json", change_lines),
    "iceberg-metadata": ("iceberg/**/*.metadata.json", change_json),
    "iceberg-manifest": ("iceberg/**/*.avro", change_bytes),
}


def open_store(folder: Path) -> txnlog.Store:
    return txnlog.open(str(folder / "store"), create=True, clock=VirtualClock(BEGAN_MS))


def publish_delta(store: txnlog.Store, folder: Path) -> None:
    store.tables.publish_delta("typed", str(folder / "delta"))


def publish_iceberg(store: txnlog.Store, folder: Path) -> None:
    from pyiceberg.catalog import load_catalog

    (folder / "iceberg").mkdir(exist_ok=True)
    uri = f"sqlite:///{folder}/catalog.db"
    catalog = load_catalog("default", uri=uri, warehouse=f"file://{folder}/iceberg")
    store.tables.publish_iceberg("typed", catalog, "sales.typed")


def make(folder: Path, publish: Callable[[txnlog.Store, Path], None]) -> None:
    """A table with two versions, and rows of the topic that it lacks."""
    store = open_store(folder)
    store.topics.create("typed", schema=flights(0).schema, key=["carrier"])
    for turn in range(3):
        with store.producer() as plain:
            plain.send_batch("typed", flights(turn))
        if turn < 2:
            publish(store, folder)


def in_child(work: Callable[[], None]) -> None:
    process_id = os.fork()
    if process_id == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(process_id, 0)
    assert status == 0


def main(kind: str, seeds: range) -> None:
    # What takes seconds to load, and would be loaded by each child.
    for module in ("deltalake", "pyiceberg.catalog.sql", "pyiceberg.io.pyarrow", "sqlite3"):
        importlib.import_module(module)
    pattern, mutate = KINDS[kind]
    publish = publish_delta if kind.startswith("delta") else publish_iceberg
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        in_child(partial(make, folder, publish))
        files: Files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        targets = sorted(p.relative_to(folder).as_posix() for p in folder.glob(pattern))

        def attempt(seed: int) -> Outcome:
            random = Random(seed)
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            name = random.choice(targets)
            changed = {**files, name: mutate(random, files[name])} if seed >= 0 else files
            for there, data in changed.items():
                (folder / there).parent.mkdir(parents=True, exist_ok=True)
                (folder / there).write_bytes(data)
            outcome = Outcome(len(changed[name]), random)
            outcome.step(lambda: publish(open_store(folder), folder))
            return outcome

        unchanged = run(kind, [-1], attempt)
        assert not unchanged.failures, unchanged.failures
        assert not unchanged.refused, unchanged
        report = run(kind, seeds, attempt)
        told = {"said": str(report), "done": report.done, "failures": report.failures}
        sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], range(int(sys.argv[2]), int(sys.argv[3])))
