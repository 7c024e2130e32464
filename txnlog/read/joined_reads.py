"""Which ranges are read by one request: small segments near each other in a file that they share.

A plan has one partition after the other, while such a file holds a segment of each: what lies side
by side in the file is far apart in the plan. What a request has brought for later ranges waits for
their turn, in bounded memory. Knows places, and nothing of what is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

MOST_JOINED_BYTES = 1 << 20
"""About so much of a file is read by one request."""
MOST_GAP_BYTES = 64 << 10
"""So much is read in vain between two ranges: what comes while another request would wait."""
MOST_WAITING_BYTES = 16 << 20
"""So much may wait for its turn; further ranges of the same files are read by other requests."""

Place: TypeAlias = tuple[tuple[str, str], int, int]
"""A file by its topic and name, and the first byte and the one after the last."""


def join_reads(places: Sequence[Place | None]) -> list[list[int]]:
    """The ranges that each request reads, by their numbers, in the order of their places.

    The requests are in the order in which their first ranges are needed. A range whose place is
    None is read by itself.
    """
    joined: list[list[int]] = []
    by_file: dict[tuple[str, str], list[int]] = {}
    waiting_bytes = 0
    for number, place in enumerate(places):
        if place is None:
            joined.append([number])
            continue
        file, start, stop = place
        waiting_bytes += stop - start
        if waiting_bytes > MOST_WAITING_BYTES:
            by_file, waiting_bytes = {}, stop - start
        if file not in by_file:
            by_file[file] = []
            joined.append(by_file[file])
        by_file[file].append(number)
    return sorted((cut for numbers in joined for cut in _cut(numbers, places)), key=min)


def _cut(numbers: list[int], places: Sequence[Place | None]) -> Iterator[list[int]]:
    """Ranges of one file, cut where too much lies between them or they are too large together."""
    if len(numbers) == 1:
        yield numbers
        return
    near: list[int] = []
    begin = end = 0
    for start, stop, number in sorted((*_span(places[n]), n) for n in numbers):
        far = start - end > MOST_GAP_BYTES or max(stop, end) - begin > MOST_JOINED_BYTES
        if near and far:
            yield near
            near = []
        if not near:
            begin = end = start
        near.append(number)
        end = max(end, stop)
    yield near


def _span(place: Place | None) -> tuple[int, int]:
    assert place is not None
    return place[1], place[2]
