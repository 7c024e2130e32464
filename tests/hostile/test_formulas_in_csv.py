"""A spreadsheet runs nothing of what others have written, if that is asked for."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow as pa
import pytest

import txnlog
from txnlog.errors import InvalidOption

FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1", "\uff0b1"]
PLAIN = ["a=1", "", "'", "1", " =1"]
pytestmark = pytest.mark.store(on="disk", topics={})


def rows_of(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return [*csv.reader(file)]


def test_texts_that_begin_like_formulas_get_an_apostrophe(
    store: txnlog.Store, tmp_path: Path
) -> None:
    """Keys, values and headers; nothing else changes, and nothing unless it is asked for."""
    store.topics.create("t")
    with store.producer() as producer:
        for text in (*FORMULAS, *PLAIN):
            producer.send("t", text, key=text)
        producer.send("t", None, key="=k")
    scan = store.scan("t")
    assert scan.to_file(tmp_path / "escaped.csv", escape_formulas=True) == len(FORMULAS + PLAIN) + 1
    scan.to_file(tmp_path / "plain.csv")
    (head, *escaped), (same, *plain) = (
        rows_of(tmp_path / "escaped.csv"),
        rows_of(tmp_path / "plain.csv"),
    )
    assert head == same
    keys, values = head.index("key"), head.index("value")
    expected = [*(f"'{text}" for text in FORMULAS), *PLAIN]
    assert [row[values] for row in escaped] == [*expected, ""]
    assert [row[keys] for row in escaped] == [*expected, "'=k"]
    assert [row[values] for row in plain] == [*FORMULAS, *PLAIN, ""]
    rest = [at for at, name in enumerate(head) if name not in ("key", "value")]
    assert [[row[at] for at in rest] for row in escaped] == [
        [row[at] for at in rest] for row in plain
    ]


def test_columns_of_typed_topics_and_their_names(store: txnlog.Store, tmp_path: Path) -> None:
    """A column may be called like a formula; numbers below zero are no text."""
    schema = pa.schema([("=name", pa.string()), ("number", pa.int64()), ("big", pa.large_string())])
    store.topics.create("t", schema=schema)
    with store.producer() as producer:
        rows = {"=name": ["=1", None], "number": [-1, 2], "big": ["@x", "x"]}
        producer.send_batch("t", pa.table(rows, schema=schema))
    store.scan("t").to_file(tmp_path / "t.csv", escape_formulas=True)
    head, *rows_read = rows_of(tmp_path / "t.csv")
    at = [head.index(name) for name in ("'=name", "number", "big")]
    assert [[row[n] for n in at] for row in rows_read] == [["'=1", "-1", "'@x"], ["", "2", "x"]]


def test_only_text_has_formulas(store: txnlog.Store, tmp_path: Path) -> None:
    """Elsewhere the option has no meaning, and is refused."""
    store.topics.create("t")
    with pytest.raises(InvalidOption, match="escape_formulas is for csv"):
        store.scan("t").to_file(tmp_path / "t.parquet", escape_formulas=True)
    assert not (tmp_path / "t.parquet").exists()
