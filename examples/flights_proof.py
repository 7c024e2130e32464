"""The proof of the demo: compares what readers of the store see with pandas on the same flights."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pandas as pd
import pyarrow as pa
from flights_data import RECORD, checksum, to_records
from flights_job import JOB, LATE_MINUTES

from txnlog import Store

DAY = ["carrier", "date"]
ENDED = {"Empty", "CompleteCommit", "CompleteAbort"}
SUMS = ["flights", "delayed", "delay_minutes"]


class Proof:
    """Prints checks as they are made and remembers whether any has failed."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def check(self, holds: bool, claim: str, otherwise: str = "") -> None:
        """Print a claim and whether it holds; ``otherwise`` says what is there instead."""
        if holds:
            print(f"   ok      {claim}")
            return
        print(f"   FAILED  {claim}{otherwise and f': {otherwise}'}")
        self.failed.append(claim)

    def all_of(self, store: Store, flights: pd.DataFrame) -> None:
        """Everything that must hold when the job has read all flights."""
        departed = flights["dep_time"].notna()
        late = flights["dep_delay"].fillna(0) > LATE_MINUTES
        self.same_records(store, "flights", flights)
        self.same_records(store, "delayed", flights[late])
        self.same_records(store, "dead-letters", flights[~departed])
        self.same_totals(store, flights[departed])
        self.each_flight_once(store, len(flights))
        self.caught_up(store, len(flights))
        self.nothing_open(store)

    def same_records(self, store: Store, topic: str, flights: pd.DataFrame) -> None:
        """A topic holds exactly these flights: by count, and by a checksum of all bytes."""
        found, expected = read(store, topic), to_records(flights)
        self.check(
            (len(found), checksum(found)) == (len(expected), checksum(expected)),
            f"{topic}: {len(expected):,} records, checksum {checksum(expected):016x}, as in pandas",
            f"there are {len(found):,}, checksum {checksum(found):016x}",
        )

    def same_totals(self, store: Store, departed: pd.DataFrame) -> None:
        """The totals of all batches add up to those of pandas, for each carrier and day."""
        found, expected = parse_totals(read(store, "totals", ["value"])), expected_totals(departed)
        self.check(
            as_set(found) == as_set(expected),
            f"totals: {len(expected):,} carrier-days, {told(expected)}, each as in pandas",
            f"there are {len(found):,}, {told(found)}",
        )

    def each_flight_once(self, store: Store, count: int) -> None:
        """Every flight is either in the totals or a dead letter."""
        found = accounted_flights(store)
        self.check(
            found == count,
            f"totals and dead-letters together: {count:,} flights",
            f"there are {found:,}",
        )

    def caught_up(self, store: Store, count: int) -> None:
        """The group has read everything."""
        group = store.groups.describe(JOB)
        found = consumed_flights(store)
        self.check(
            (group.lag, found) == (0, count),
            f"group {JOB}: {count:,} flights read, lag 0",
            f"{found:,} were read, the lag is {group.lag:,}",
        )

    def nothing_open(self, store: Store) -> None:
        """No transaction waits for its end, and none holds readers back."""
        states = {state.transactional_id: state.status for state in store.transactions.list()}
        topics = [store.topics.describe(topic) for topic in store.topics.list()]
        undecided = [str(holder) for topic in topics for holder in topic.open_transactions]
        self.check(
            not undecided and set(states.values()) <= ENDED,
            "transactions: none open, nothing undecided",
            ", ".join([f"{name!r} is {status}" for name, status in states.items()] + undecided),
        )


def read(store: Store, topic: str, columns: Sequence[str] = tuple(RECORD.names)) -> pa.Table:
    """What a reader sees of a topic."""
    return store.scan(topic, columns=columns).to_arrow()


def accounted_flights(store: Store) -> int:
    """How many flights the outputs account for, as a reader sees them at this moment."""
    snapshot = store.snapshot(["totals", "dead-letters"])
    totals = parse_totals(snapshot.scan("totals", columns=["value"]).to_arrow())
    return int(totals["flights"].sum()) + snapshot.scan("dead-letters").record_count


def consumed_flights(store: Store) -> int:
    """How many flights the group has read; its partitions start at offset 0."""
    return sum(at.offset or 0 for at in store.groups.describe(JOB).offsets)


def parse_totals(records: pa.Table) -> pd.DataFrame:
    """What the batches have written, summed for each carrier and day."""
    parts = [json.loads(value) for value in records.column("value").to_pylist()]
    return pd.DataFrame(parts, columns=[*DAY, *SUMS]).groupby(DAY, as_index=False)[SUMS].sum()


def expected_totals(departed: pd.DataFrame) -> pd.DataFrame:
    """The same from pandas alone."""
    dates = pd.to_datetime(departed[["year", "month", "day"]]).dt.strftime("%Y-%m-%d")
    late = departed["dep_delay"] > LATE_MINUTES
    rows = departed.assign(
        date=dates, flights=1, delayed=late.astype(int), delay_minutes=departed["dep_delay"]
    )
    return rows.groupby(DAY, as_index=False)[SUMS].sum()


def as_set(frame: pd.DataFrame) -> set[tuple[object, ...]]:
    """Rows to compare, whatever types pandas has chosen."""
    return set(frame.itertuples(index=False, name=None))


def told(totals: pd.DataFrame) -> str:
    """The sums over all of it."""
    return f"{totals['flights'].sum():,} flights, {totals['delay_minutes'].sum():,} minutes late"
