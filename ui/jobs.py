"""What takes longer than a page may: done in a thread, while pages show how far it is."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from txnlog.clock import Clock
from txnlog.errors import TxnlogError
from txnlog.storage.counting import CountingStorage

MOST_MS: Final = 600_000
"""No job goes on for longer: nobody may be looking any more."""
MOST_SHOWN: Final = 200
PATIENCE_S: Final = 0.1
"""A page waits so long for a job to end: over a small store it is complete at once."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Progress:
    """What a job has found so far.

    ``shown`` are the first findings, each with a word for its kind; ``counts`` counts all findings.
    ``place`` is where the job is, or was when it ended. ``failure`` is why it ended too early, else
    None. ``requests`` are the ones that it has made.
    """

    number: int
    running: bool
    begun_ms: int
    took_ms: int
    counts: Mapping[str, int]
    shown: Sequence[tuple[str, object]]
    place: str
    failure: str | None
    requests: Mapping[str, int]

    @property
    def is_complete(self) -> bool:
        """Whether all was looked at."""
        return not self.running and self.failure is None


class _Ended(Exception):
    """The job has taken too long."""


class Job:
    """One run of something that calls ``reach`` and ``keep`` while it goes on."""

    def __init__(self, number: int, clock: Clock, storage: CountingStorage) -> None:
        self.number = number
        self._clock = clock
        self._storage = storage
        self._begun_ms, self._begun_s = clock.now_ms(), clock.monotonic_s()
        self._ended_s: float | None = None
        self._counts: Counter[str] = Counter()
        self._shown: list[tuple[str, object]] = []
        self._place = ""
        self._failure: str | None = None
        self._lock = threading.Lock()
        self._done = threading.Event()

    def reach(self, place: str) -> None:
        """Say where it is. Ends the job if it has gone on for too long."""
        with self._lock:
            self._place = place
        if self._took_ms() > MOST_MS:
            raise _Ended

    def keep(self, kind: str, found: object, *, shows: bool = True) -> None:
        """One more was found. It is counted, and shown if ``shows`` and there is room."""
        with self._lock:
            self._counts[kind] += 1
            if shows and len(self._shown) < MOST_SHOWN:
                self._shown.append((kind, found))

    def run(self, work: Callable[[Job], None]) -> None:
        """Do the work; whatever fails is told by ``progress``."""
        failure = None
        try:
            work(self)
        except _Ended:
            failure = f"it was ended after {MOST_MS // 60_000} minutes"
        except TxnlogError as error:
            failure = str(error)
        except Exception as error:  # a job that fails ends no server
            _logger.exception("a job has failed at %s", self._place)
            failure = f"{type(error).__name__}: {error}"
        with self._lock:
            self._failure, self._ended_s = failure, self._clock.monotonic_s()
        self._done.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended; False if it goes on after ``timeout_s``."""
        return self._done.wait(timeout_s)

    def progress(self) -> Progress:
        """How far it is."""
        with self._lock:
            return Progress(
                self.number,
                self._ended_s is None,
                self._begun_ms,
                self._took_ms(),
                dict(self._counts),
                (*self._shown,),
                self._place,
                self._failure,
                self._storage.seen(),
            )

    def _took_ms(self) -> int:
        ended_s = self._clock.monotonic_s() if self._ended_s is None else self._ended_s
        return int((ended_s - self._begun_s) * 1000)


Work: TypeAlias = Callable[[Job], None]


class Jobs:
    """The newest run of each kind of job; one of a kind goes on at a time."""

    def __init__(self) -> None:
        self._newest: dict[str, Job] = {}
        self._lock = threading.Lock()

    def newest(self, kind: str) -> Job | None:
        """The newest run; None if there was none."""
        return self._newest.get(kind)

    def ask(
        self, kind: str, number: str, clock: Clock, storage: CountingStorage, work: Work
    ) -> Job:
        """The newest run of a kind; begins a new one if there is none, or ``number`` is the next.

        The number comes from the URL, so loading a page again begins nothing.
        """
        with self._lock:
            known = self._newest.get(kind)
            following = 1 if known is None else known.number + 1
            if known is not None and (not known.wait(0) or number != str(following)):
                return known
            job = self._newest[kind] = Job(following, clock, storage)
        threading.Thread(
            target=job.run, args=(work,), name=f"txnlog-ui-{kind}", daemon=True
        ).start()
        return job
