"""Ctrl-C, SystemExit and MemoryError at each line of the library; then the process goes on.

docs/TESTING.md has the numbers of lines. ``interrupted_jobs`` has the jobs and what is checked.
"""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Sequence

import pytest
from interrupted_jobs import JOBS, Job, Join, Settle
from interrupts import Point, Tracer
from settling import settle_early

from txnlog.log.state_log import StateLog

KINDS: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit, MemoryError)

pytestmark = [
    pytest.mark.usefixtures("early"),
    # Ends of generators that were left, in which nothing may be raised any more.
    pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    settle_early(monkeypatch)


def lines_of(job_type: type[Job]) -> list[Point]:
    """The lines that a job's call passes; undisturbed it ends well."""
    job = job_type()
    tracer = Tracer(job.watched)
    tracer.run(job.call)
    job.finish()
    return tracer.points()


def interrupt(job_type: type[Job], at: Point, kind: type[BaseException]) -> None:
    """Interrupt the call of a new job there, and let it go on to its end."""
    job = job_type()
    tracer = Tracer(job.watched, at, kind)
    threads = {*threading.enumerate()}
    left: BaseException | None = None
    try:
        tracer.run(job.call)
    except BaseException as error:  # noqa: BLE001 - the test judges it, whatever it is
        left = error  # kept, as notebooks do: nothing may wait for its end
    assert tracer.raised, f"{at} was not passed"
    assert left is None or type(left) is kind, f"{left!r} after {kind.__name__} at {at}"
    try:
        job.check()
        job.finish()
    except Exception as error:
        error.add_note(f"after {kind.__name__} at {at}")
        raise
    assert {*threading.enumerate()} <= threads, f"threads were left at {at}"


def interrupt_each(job_type: type[Job], points: Sequence[Point]) -> None:
    """Interrupt at each of these lines, by one of the three in turn."""
    for number, at in enumerate(points):
        interrupt(job_type, at, KINDS[number % len(KINDS)])


def test_a_state_that_was_left_in_the_middle_is_read_again() -> None:
    """At the lines of the folds of groups and topics: nothing is written down half done."""
    points = [at for at in lines_of(Settle) if "/txnlog/state/" in at.file and at.hit == 1]
    deciding = [at for at in points if at.file.endswith("group.py")]
    assert len(deciding) > 10
    interrupt_each(Settle, deciding)
    interrupt_each(Settle, [at for at in points if at.file.endswith("topic.py")][::4])


def test_it_is_noticed_if_such_a_state_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule broken on purpose: a decision is taken out, and the offsets are not moved yet."""
    monkeypatch.setattr(StateLog, "_change", lambda log, change: change(log._state))
    commits = [at for at in lines_of(Settle) if at.file.endswith("state/group.py")]
    (moving,) = [at for at in commits if at.hit == 1 and "_commit(entry, number)" in line(at)][-1:]
    with pytest.raises(AssertionError, match="group g now"):
        interrupt(Settle, moving, KeyboardInterrupt)


def line(at: Point) -> str:
    return linecache.getline(at.file, at.line)


@pytest.mark.parametrize("job_type", JOBS)
def test_some_lines(job_type: type[Job]) -> None:
    points = lines_of(job_type)
    assert len(points) > 10
    interrupt_each(job_type, points[7::401])


@pytest.mark.more
def test_partitions_that_come_or_go_are_read_by_one() -> None:
    """An interrupt while a share changes: nothing is read by two members, nor by none."""
    points = [at for at in lines_of(Join) if at.hit == 1]
    files = ("groups/sharing.py", "/consumer.py")
    interrupt_each(Join, [at for at in points if at.file.endswith(files)])


@pytest.mark.more
@pytest.mark.parametrize("job_type", JOBS)
def test_more_lines(job_type: type[Job]) -> None:
    interrupt_each(job_type, lines_of(job_type)[::23])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("job_type", JOBS)
def test_all_lines(job_type: type[Job], kind: type[BaseException]) -> None:
    points = lines_of(job_type)
    for at in points:
        interrupt(job_type, at, kind)
    where = {(at.file, at.line) for at in points}
    sys.stdout.write(f"{job_type.__name__}: {len(where)} lines, {len(points)} interrupts\n")
