"""The race: several processes create the same new name at the same moment, many times.

A server that checks first and writes later lets two writers win only if requests overlap, and not
each time. So there are hundreds of rounds, and every fourth one has a larger object, which takes a
server several steps to write. Some of the refused racers read and list at once.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from multiprocessing import get_context
from threading import Barrier, BrokenBarrierError

from txnlog.errors import ObjectNotFound, StorageError
from txnlog.storage.base import PARALLEL_REQUESTS, Storage
from txnlog.testing.conformance.expectations import expect

ROUNDS = 200
PROCESSES = 4
_THREADS = PARALLEL_REQUESTS // PROCESSES
_LARGE_EVERY = 4
_LARGE_BYTES = 64 << 10
_LOOK_EVERY = 4
_PATIENCE_S = 120.0
_FOLDER = "race"


@dataclass(frozen=True, slots=True)
class _Raced:
    """One racer's result in one round; what it read and listed if it was refused."""

    won: bool
    took_s: float
    found: str | None = None
    listed: bool | None = None


@dataclass(frozen=True, slots=True)
class RaceFigures:
    """The result of a race.

    ``exclusive`` rounds had one winner, whose whole object exists; ``most_winners`` is that of the
    worst round. ``torn_reads`` and ``missed_listings`` are those of refused racers that looked,
    ``looks`` in all. Times are of single creates, winners' and others'.
    """

    rounds: int
    racers: int
    exclusive: int
    most_winners: int
    looks: int
    torn_reads: int
    missed_listings: int
    p50_ms: float
    p99_ms: float

    def __str__(self) -> str:
        winners = f", up to {self.most_winners} winners" if self.most_winners > 1 else ""
        return (
            f"{self.exclusive} of {self.rounds} rounds of {self.racers} had one winner{winners}; "
            f"of {self.looks} that looked when they were refused {self.torn_reads} read something "
            f"else and {self.missed_listings} missed it in the listing; a create took "
            f"{self.p50_ms:.0f} ms, at p99 {self.p99_ms:.0f} ms"
        )

    def judge(self) -> None:
        """Raise NotConforming unless every round had one winner and was seen whole."""
        bad = self.rounds - self.exclusive + self.torn_reads + self.missed_listings
        expect(bad == 0, str(self))


def race(storage: Storage, rounds: int = ROUNDS) -> RaceFigures:
    """Race in four processes of four threads for ``rounds`` new names, and count.

    Raises StorageError, and BrokenProcessPool if a process has ended.
    """
    context = get_context("spawn")
    barrier = context.Barrier(PARALLEL_REQUESTS)
    with ProcessPoolExecutor(
        PROCESSES, mp_context=context, initializer=_take_barrier, initargs=(barrier,)
    ) as pool:
        futures = [pool.submit(_race_in_threads, storage, n, rounds) for n in range(PROCESSES)]
        errors = [error for error in (future.exception() for future in futures) if error]
        for error in sorted(errors, key=lambda error: isinstance(error, BrokenBarrierError)):
            raise error
        racers = list(chain.from_iterable(future.result() for future in futures))
    kept = storage.gather([partial(_read, storage, number) for number in range(rounds)])
    storage.delete([_name(number) for number in range(rounds)])
    return _count([list(raced) for raced in zip(*racers, strict=True)], kept)


_barrier: Barrier | None = None
"""In a process of racers: the storage that they share."""


def _take_barrier(barrier: Barrier) -> None:
    global _barrier  # noqa: PLW0603 - locks reach a pool's processes when they are made, only
    _barrier = barrier


def _race_in_threads(storage: Storage, process: int, rounds: int) -> list[list[_Raced]]:
    """Each thread's results, by round."""
    assert _barrier is not None
    storage.trust()
    storage.list_names(_FOLDER)  # connects
    numbers = range(process * _THREADS, (process + 1) * _THREADS)
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(partial(_run, storage, _barrier, rounds), numbers))


def _run(storage: Storage, barrier: Barrier, rounds: int, racer: int) -> list[_Raced]:
    results = []
    try:
        for number in range(rounds):
            barrier.wait(_PATIENCE_S)
            results.append(_create(storage, number, racer))
    except BaseException:
        barrier.abort()
        raise
    return results


def _create(storage: Storage, number: int, racer: int) -> _Raced:
    name = _name(number)
    begun_s = time.perf_counter()
    won = storage.put_if_absent(name, _offer(number, racer))
    took_s = time.perf_counter() - begun_s
    if won or (racer + number) % _LOOK_EVERY:
        return _Raced(won, took_s)
    found = _read(storage, number)
    listed = name.rpartition("/")[2] in storage.list_names(_FOLDER, f"{number - 1:04d}")
    return _Raced(won, took_s, found, listed)


def _name(number: int) -> str:
    return f"{_FOLDER}/{number:04d}"


def _offer(number: int, racer: int) -> bytes:
    """A racer's object: its own bytes throughout, so that a mixture is noticed."""
    line = b"round %04d, racer %02d\n" % (number, racer)
    large = number % _LARGE_EVERY == _LARGE_EVERY - 1
    return line * (_LARGE_BYTES // len(line)) if large else line


def _read(storage: Storage, number: int) -> str:
    """The owner of the object: a racer's number, or an error."""
    try:
        data = storage.get(_name(number))
    except ObjectNotFound:
        return "nothing"
    except StorageError as error:  # the object of several winners may be too torn to be read
        return f"an error: {error}"
    for racer in range(PARALLEL_REQUESTS):
        if data == _offer(number, racer):
            return str(racer)
    return f"{len(data)} bytes that nobody wrote"


def _count(races: Sequence[Sequence[_Raced]], kept: Sequence[str]) -> RaceFigures:
    done: Counter[str] = Counter()
    most_winners = 0
    for raced, owner in zip(races, kept, strict=True):
        winners = [str(racer) for racer, result in enumerate(raced) if result.won]
        most_winners = max(most_winners, len(winners))
        # If nobody won, a response was lost: then the object is anybody's, but whole.
        whole = owner in winners or (not winners and owner.isdecimal())
        done["exclusive"] += len(winners) <= 1 and whole
        for result in raced:
            if result.found is not None:
                done["looks"] += 1
                done["torn"] += result.found != owner
                done["missed"] += not result.listed
    times_ms = sorted(result.took_s * 1000 for raced in races for result in raced)
    return RaceFigures(
        rounds=len(races),
        racers=PARALLEL_REQUESTS,
        exclusive=done["exclusive"],
        most_winners=most_winners,
        looks=done["looks"],
        torn_reads=done["torn"],
        missed_listings=done["missed"],
        p50_ms=statistics.median(times_ms),
        p99_ms=times_ms[int(len(times_ms) * 0.99)],
    )
