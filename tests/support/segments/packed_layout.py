"""An independent decoder and encoder of packed columns, by hand, that shares no code with txnlog.

What the tests say about bytes comes from here: the layout is that of docs/FORMAT.md.
"""

from __future__ import annotations

import struct

from tests.support.segments.segment_samples import Row

KEYS, VALUES, TIMESTAMPS, HEADERS = 1, 2, 4, 8


def rows_in(payload: bytes, count: int, base_timestamp: int) -> list[Row]:
    """The records of a payload that is not compressed."""
    flags, at = payload[0], 1
    assert flags < 16

    def numbers(wanted: int, kind: str) -> list[int]:
        nonlocal at
        found = struct.unpack_from(f"<{wanted}{kind}", payload, at)
        at += struct.calcsize(f"<{wanted}{kind}")
        return list(found)

    def content(lengths: list[int]) -> list[bytes | None]:
        nonlocal at
        found: list[bytes | None] = []
        for length in lengths:
            found.append(None if length == -1 else payload[at : at + length])
            at += max(length, 0)
        return found

    nulls = [-1] * count
    times = numbers(count, "q") if flags & TIMESTAMPS else [base_timestamp] * count
    key_lengths = numbers(count, "h") if flags & KEYS else nulls
    value_lengths = numbers(count, "h") if flags & VALUES else nulls
    counts = numbers(count, "h") if flags & HEADERS else [0] * count
    name_lengths = numbers(sum(counts), "h") if flags & HEADERS else []
    body_lengths = numbers(sum(counts), "h") if flags & HEADERS else []
    keys, values = content(key_lengths), content(value_lengths)
    names, bodies = content(name_lengths), content(body_lengths)
    assert at == len(payload)
    rows: list[Row] = []
    first = 0
    for key, value, time, headers in zip(keys, values, times, counts, strict=True):
        items = zip(names[first : first + headers], bodies[first : first + headers], strict=True)
        rows.append((key, value, time, [((name or b"").decode(), body) for name, body in items]))
        first += headers
    return rows


def payload_of(flags: int, *parts: tuple[str, list[int]], content: bytes = b"") -> bytes:
    """A payload of these numbers, each part with the letter of its kind, and bytes behind them."""
    fixed = (struct.pack(f"<{len(numbers)}{kind}", *numbers) for kind, numbers in parts)
    return bytes((flags,)) + b"".join(fixed) + content
