"""Which ranges one request reads, judged by what it must bring and how much it may."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from txnlog.read.plan import (
    MOST_GAP_BYTES,
    MOST_JOINED_BYTES,
    MOST_WAITING_BYTES,
    Place,
    join_reads,
)

_SIZES = st.sampled_from([1, 1_000, MOST_GAP_BYTES, MOST_JOINED_BYTES, MOST_WAITING_BYTES // 3])
_PLACES = st.lists(
    st.none()
    | st.builds(
        lambda file, start, size: (("t", file), start, start + size),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 40).map(lambda n: n * MOST_GAP_BYTES // 4),
        _SIZES,
    ),
    max_size=40,
)


@given(_PLACES)
def test_each_range_is_read_once_and_in_time(places: list[Place | None]) -> None:
    """By one request of its file, small enough; requests are in the order of need."""
    reads = join_reads(places)
    assert sorted(number for read in reads for number in read) == [*range(len(places))]
    assert [min(read) for read in reads] == sorted(min(read) for read in reads)
    for read in reads:
        found = [place for number in read if (place := places[number]) is not None]
        if len(read) == 1:
            continue
        assert len(found) == len(read)
        assert len({file for file, _, _ in found}) == 1
        assert found == sorted(found, key=lambda place: place[1:])
        ends = [*accumulate((stop for _, _, stop in found), max)]
        assert ends[-1] - found[0][1] <= MOST_JOINED_BYTES
        starts = (start for _, start, _ in found[1:])
        assert all(start - end <= MOST_GAP_BYTES for start, end in zip(starts, ends, strict=False))


@given(_PLACES)
def test_what_waits_for_its_turn_is_bounded(places: list[Place | None]) -> None:
    """At no time has a reader in order more of later ranges than it may."""
    reads = {min(read): read for read in join_reads(places)}
    waiting: dict[int, int] = {}
    for number in range(len(places)):
        if number in reads:
            for other in reads[number]:
                _, start, stop = places[other] or ("", 0, 0)
                waiting[other] = stop - start
        waiting.pop(number)
        assert sum(waiting.values()) <= MOST_WAITING_BYTES


def test_a_gap_that_is_too_large_is_not_read() -> None:
    """Up to the limit it is: a request costs more."""
    near = [(("t", "a"), 0, 10), (("t", "a"), 10 + MOST_GAP_BYTES, 90_000)]
    far = [(("t", "a"), 0, 10), (("t", "a"), 11 + MOST_GAP_BYTES, 90_000)]
    assert join_reads(near) == [[0, 1]]
    assert join_reads(far) == [[0], [1]]
    assert join_reads([near[1], None, near[0]]) == [[2, 0], [1]]


def test_what_would_wait_too_long_is_read_by_other_requests() -> None:
    """Many files share two partitions: the second one's ranges come after all of the first's."""
    size, files = MOST_JOINED_BYTES // 2, 3 * MOST_WAITING_BYTES // MOST_JOINED_BYTES
    few, many = (
        [(("t", str(n)), at, at + size) for at in (0, size) for n in range(count)]
        for count in (files // 3, files)
    )
    assert join_reads(few) == [[n, n + len(few) // 2] for n in range(len(few) // 2)]
    waiting = most = 0
    for read in join_reads(many):
        waiting += size * (len(read) - 1)
        most = max(most, waiting)
    assert most <= MOST_WAITING_BYTES
