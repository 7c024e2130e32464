"""Numbers between Arrow and numpy; and that a process's first scan does not import pandas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import txnlog
from txnlog.segments.arrays import arrow_of, constant_array, numbers_of, text_array

_SCAN = """
import sys
import txnlog
store = txnlog.open(sys.argv[1])
table = store.scan("t").to_arrow()
table.validate(full=True)
assert table.num_rows == 20, table
assert "pandas" not in sys.modules
"""


@pytest.mark.parametrize("kind", ["int16", "int32", "int64", "uint8", "float64"])
def test_numbers_go_there_and_back(kind: str) -> None:
    numbers = np.arange(7).astype(kind)
    array = arrow_of(numbers)
    array.validate(full=True)
    assert array.equals(pa.array(numbers))
    for start, count in ((0, 7), (3, 2), (7, 0)):
        found = numbers_of(array.slice(start, count))
        assert found.dtype == numbers.dtype
        assert found.tolist() == numbers[start : start + count].tolist()
    assert numbers_of(arrow_of(numbers[:0])).tolist() == []
    assert numbers_of(pa.nulls(0, array.type)).dtype == numbers.dtype


def test_the_memory_is_shared_and_kept() -> None:
    numbers = np.arange(5)
    array = arrow_of(numbers)
    numbers[2] = 50
    assert array.to_pylist() == [0, 1, 50, 3, 4]
    found = numbers_of(array)
    del array, numbers
    assert found.tolist() == [0, 1, 50, 3, 4]


def test_nulls_are_refused() -> None:
    """As `to_numpy` does: damage in a file is found by it."""
    array = pa.array([1, None, 3])
    with pytest.raises(pa.ArrowInvalid, match="1 of 3 numbers are null"):
        numbers_of(array)
    assert numbers_of(array.slice(2)).tolist() == [3]


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize(
    ("value", "kind"), [("täglich", pa.string()), ("", pa.string()), (3, pa.int32())]
)
def test_a_constant(value: int | str, kind: pa.DataType, count: int) -> None:
    array = constant_array(value, kind, count)
    array.validate(full=True)
    assert array.equals(pa.array([value] * count, kind))


@pytest.mark.parametrize("texts", [[], [""], ["täglich", "", "a" * 300]])
def test_texts(texts: list[str]) -> None:
    array = text_array(texts)
    array.validate(full=True)
    assert array.equals(pa.array(texts, pa.string()))


def test_too_many_bytes_for_a_constant() -> None:
    with pytest.raises(pa.ArrowCapacityError, match="times 4096 bytes are too many"):
        constant_array("x" * 4096, pa.string(), 1 << 20)


@pytest.mark.parametrize("record_format", ["columns", "parquet"])
def test_a_first_scan_does_not_import_pandas(record_format: str, tmp_path: Path) -> None:
    """``pa.array`` and ``to_numpy`` would: that took longer than the scan itself."""
    store = txnlog.open(str(tmp_path / "s"), create=True)
    store.topics.create("t", config={"record.format": record_format})
    with store.producer() as producer:
        for number in range(20):
            headers = [("a", b"b")] if number % 2 else []
            producer.send("t", b"%d" % number, key=b"k", headers=headers)
    command = [sys.executable, "-c", _SCAN, str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
