"""Arrow's metadata of a schema, before Arrow sees it: what no segment has is refused."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from txnlog.segments.formats.arrow_metadata import check_schema


def message_of(*fields: tuple[str, pa.DataType]) -> bytes:
    return bytes(pa.schema(list(fields)).serialize())


def nested(depth: int) -> pa.DataType:
    kind: pa.DataType = pa.int8()
    for _ in range(depth):
        kind = pa.list_(kind)
    return kind


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (message_of(("a", pa.dictionary(pa.int32(), pa.string()))), "dictionary"),
        (message_of(("a", pa.month_day_nano_interval())), "Arrow's type"),
        (message_of(("a", nested(40))), "more than 32 levels deep"),
        (pa.record_batch({"a": [1]}).serialize().to_pybytes(), "not an Arrow schema"),
    ],
    ids=["dictionary", "interval", "deep", "records"],
)
def test_schemas_that_no_segment_has_are_refused(message: bytes, reason: str) -> None:
    check_schema(memoryview(message_of(("a", nested(20)), ("b", pa.string()))))
    with pytest.raises(ValueError, match=reason):
        check_schema(memoryview(message))


def test_a_text_is_used_once() -> None:
    """One that many fields refer to would become as many, each as long."""
    text = "a" * 10_000
    others = [(f"n{number}", pa.int64()) for number in range(5)]
    message = message_of((text, pa.int64()), *others)
    check_schema(memoryview(message))
    target = message.index(text.encode()) - 4  # its length comes first
    reasons: Counter[str] = Counter()
    for at in range(0, target, 4):
        changed = message[:at] + (target - at).to_bytes(4, "little") + message[at + 4 :]
        try:
            check_schema(memoryview(changed))
        except ValueError as error:
            reasons[str(error)] += 1
    assert reasons["parts of it are used more than once"] >= len(others)
