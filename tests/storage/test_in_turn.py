"""Readers one after another: the next one is opened while the last results of one are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from txnlog.errors import CorruptRecord
from txnlog.storage.threads import InTurn

Calls = list[Callable[[], int]]


class Opened(InTurn[int, int]):
    """Readers with these calls; remembers which were opened."""

    def __init__(self, calls: list[Calls], alone: tuple[int, ...] = ()) -> None:
        self.opened: list[int] = []

        def calls_of(number: int) -> Iterator[tuple[int, Callable[[], int]]]:
            self.opened.append(number)
            yield from ((1, call) for call in calls[number])

        super().__init__(range(len(calls)), calls_of, lambda number: number not in alone)


def numbers(*given: int) -> Calls:
    return [partial(int, number) for number in given]


def fails() -> int:
    raise CorruptRecord("this one")


def test_results_come_in_order_and_the_next_reader_is_opened_before() -> None:
    readers = Opened([numbers(1, 2), [], numbers(3), numbers(4, 5)])
    found = []
    for reader in readers:
        for result in readers.results():
            found.append((reader, result))
            if result == 2:
                assert len(readers.opened) > 1
    assert found == [(0, 1), (0, 2), (2, 3), (3, 4), (3, 5)]
    assert readers.opened == [0, 1, 2, 3]


def test_one_that_does_not_run_ahead_is_opened_in_its_turn() -> None:
    readers = Opened([numbers(1), numbers(2), numbers(3), numbers(4)], alone=(1, 2))
    opened = []
    for _ in readers:
        assert [*readers.results()]
        opened.append([*readers.opened])
    assert opened == [[0], [0, 1], [0, 1, 2, 3], [0, 1, 2, 3]]


def test_results_that_nobody_takes_are_passed_over() -> None:
    readers = Opened([numbers(1, 2, 3), numbers(4, 5), numbers(6, 7)])
    found = []
    for reader in readers:
        if reader == 0:
            found.append(next(readers.results()))
        elif reader == 2:
            found += readers.results()
    assert found == [1, 6, 7]
    readers.close()


def test_errors_come_in_their_turn_and_end_one_reader_alone() -> None:
    """The errors of a call, and of a reader that cannot be opened."""
    readers = Opened([numbers(1), [*numbers(2), fails, *numbers(3)], numbers(4)])
    found: list[object] = []
    for _ in readers:
        try:
            found += readers.results()
        except CorruptRecord as error:
            found.append(str(error))
    assert found == [1, 2, "this one", 4]

    def calls_of(number: int) -> Iterator[tuple[int, Callable[[], int]]]:
        if number == 1:
            raise CorruptRecord("not opened")
        yield 1, partial(int, number)

    failing = InTurn(range(3), calls_of, lambda _: True)
    found = []
    for number in failing:
        if number == 1:
            with pytest.raises(CorruptRecord, match="not opened"):
                next(failing.results())
        else:
            found += failing.results()
    assert found == [0, 2]


def test_nothing_is_begun_after_it_was_closed() -> None:
    """And what ran by then is over: a file may be closed."""
    begun: list[int] = []

    def call(number: int) -> int:
        begun.append(number)
        return number

    readers = Opened([[partial(call, number) for number in range(100)]])
    next(iter(readers))
    results = readers.results()
    assert next(results) == 0
    readers.close()
    known = [*begun]
    assert [*results] == []
    assert begun == known
    assert len(known) < 100
