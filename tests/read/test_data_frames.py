"""A scan as a data frame of other libraries, and what is said where one is not there."""

from __future__ import annotations

import importlib.util
from datetime import UTC, datetime

import pytest

import txnlog
from txnlog import Scan
from txnlog.errors import InvalidOption


@pytest.fixture
def scan(request: pytest.FixtureRequest) -> Scan:
    """Three records."""
    store = txnlog.open(f"memory://frames-{request.node.name}", create=True)
    store.create_topic("t")
    with store.producer() as producer:
        for number in range(3):
            producer.send("t", b"%d" % number)
    return store.scan("t", columns=["value", "offset"])


def test_polars_and_duckdb_have_the_records(scan: Scan) -> None:
    """A relation can be read more than once, and belongs to the connection that was given."""
    assert scan.to_polars().rows() == [(b"0", 0), (b"1", 1), (b"2", 2)]
    import duckdb

    with duckdb.connect() as connection:
        relation = scan.to_duckdb(connection)
        for _ in range(2):
            assert relation.filter('"offset" > 0').fetchall() == [(b"1", 1), (b"2", 2)]
        assert connection.sql('SELECT sum("offset") FROM relation').fetchall() == [(3,)]
    assert len(scan.to_duckdb().fetchall()) == 3


@pytest.mark.parametrize(
    ("package", "with_it"), [("pandas", ""), ("polars", ""), ("duckdb", " 'pytz'")]
)
def test_what_is_not_installed_is_named(
    scan: Scan, monkeypatch: pytest.MonkeyPatch, package: str, with_it: str
) -> None:
    """And how it gets there."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    needs = rf"to_{package}\(\) needs {package}: pip install '{package}>=\S+'{with_it}$"
    with pytest.raises(InvalidOption, match=needs):
        getattr(scan, f"to_{package}")()


def test_times_come_out_of_duckdb() -> None:
    """With a zone, for which DuckDB imports a package that the extra brings."""
    store = txnlog.open("memory://frames-times", create=True)
    store.create_topic("t")
    with store.producer() as producer:
        producer.send("t", b"v", timestamp_ms=1_700_000_000_000)
    (row,) = store.scan("t").to_duckdb().fetchall()
    (sent,) = (value for value in row if isinstance(value, datetime))
    assert sent == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
