"""Where requests wait, names are asked for side by side, or listed if that takes less time.

By what requests and listings took so far: virtual time, so the machine has no influence.
"""

from __future__ import annotations

import random

import pytest

from tests.support.storage.busy_storage import BusyStorage
from txnlog.log.sequence_log import SequenceLog
from txnlog.names import LogFile
from txnlog.state.transaction import Outcome
from txnlog.testing import HeapStorage, VirtualClock

FOLDER = "topics/t/log"


class Far:
    """A log on a disk that is 5 ms away, and how long its requests take."""

    def __init__(self, *, listing_ms: int = 500) -> None:
        self.clock = VirtualClock()
        self.heap = HeapStorage(like_disk=True)
        self.here = SequenceLog(self.heap, FOLDER, self.clock)
        self.storage = BusyStorage(self.heap, clock=self.clock)
        self.storage.listing_ms = listing_ms
        self.log = SequenceLog(self.storage, FOLDER, self.clock)

    def put(self, *numbers: int) -> None:
        for number in numbers:
            assert self.here.create(number, b"{}")

    def warm_up(self) -> None:
        """It has listed once, as at its beginning, and then looked a few times."""
        self.log.listing()
        for _ in range(3):
            assert self.log.look_on(1, 0, {}) is not None
        self.storage.rounds = self.storage.listings = 0


def test_much_that_is_new_is_found_in_few_rounds() -> None:
    """Twice as many names each time; then the markers, 16 at a time."""
    far = Far()
    far.put(0)
    far.warm_up()
    far.put(*range(1, 41))
    found = far.log.look_on(1, 0, {})
    assert found is not None
    assert found.entries == tuple(range(1, 41))
    assert far.storage.listings == 0
    assert far.storage.rounds <= 14


def test_a_look_that_finds_nothing_is_one_round() -> None:
    """Twenty undecided entries have 40 markers: three rounds more."""
    far = Far()
    far.put(*range(21))
    far.warm_up()
    found = far.log.look_on(21, 20, {})
    assert found is not None
    assert (found.entries, found.end) == ((), 21)
    assert far.storage.rounds == 1
    far.storage.rounds = 0
    found = far.log.look_on(21, 20, {number: number for number in range(1, 21)})
    assert found is not None
    assert far.storage.rounds == 4


def test_a_listing_is_taken_where_it_takes_less_time() -> None:
    """By what was measured: as long as one request, but not as long as a hundred."""
    undecided = {number: number for number in range(1, 21)}
    for listing_ms, is_cheaper in ((5, True), (19, True), (21, False), (500, False)):
        far = Far(listing_ms=listing_ms)
        far.put(*range(21))
        far.warm_up()
        assert (far.log.look_on(21, 20, undecided) is None) == is_cheaper
        assert far.log.look_on(21, 20, {}) is not None, "a single round"
        far.storage.listings = far.storage.rounds = 0
        assert far.log.checkpoints_in(1, 61) == []
        assert far.storage.listings == int(is_cheaper)
        assert far.storage.rounds <= 4


def test_a_near_disk_is_asked_for_one_name_after_the_other() -> None:
    """A thread costs more than such a look; the fewest names are asked for."""
    far = Far()
    far.storage.request_ms = far.storage.listing_ms = 0
    far.put(0)
    far.warm_up()
    assert far.log.look_on(1, 0, {}) is not None
    assert far.storage.rounds == 3


@pytest.mark.parametrize("seed", range(40))
def test_it_finds_what_a_listing_shows(seed: int) -> None:
    """Whatever is new, bundles of two and of more, markers of old and of new entries."""
    chance = random.Random(seed)
    far = Far(listing_ms=chance.choice([5, 500]))
    known = chance.randint(1, 12)
    far.put(*range(known))
    far.warm_up()
    new = [known + at for at in range(chance.choice([0, 1, 2, 3, 7, 15, 16, 17, 40]))]
    far.put(*new)
    for number in range(known + len(new)):
        if chance.random() < 0.3:
            kind = LogFile(chance.choice([*Outcome]).value)
            far.heap.put(far.here.path(number, kind), b"{}")
    undecided = {n: n for n in range(known) if chance.random() < 0.5}
    found = far.log.look_on(known, known - 1, undecided)
    if found is None:
        assert far.storage.listing_ms == 5, "it lists instead"
        return
    shown = far.here.listing()
    assert found.entries == (*undecided, *new)
    assert found.outcomes == {n: o for n, o in shown.outcomes.items() if n in found.entries}
    assert found.end == known + len(new)
