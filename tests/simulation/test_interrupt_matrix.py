"""Ctrl-C, SystemExit and MemoryError at each line of the library; then the process goes on.

``interrupted_jobs`` has the jobs and what is checked.
"""

from __future__ import annotations

import gc
import linecache
import sys
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest

from tests.support.log.settling import settle_early
from tests.support.runtime.interrupted_jobs import (
    JOBS,
    KINDS,
    Commit,
    Job,
    Join,
    Settle,
    Submit,
    SubmitInTransaction,
    interrupt,
    interrupt_each,
    lines_of,
)
from tests.support.runtime.interrupts import Point, Tracer
from txnlog.log.state_log import StateLog
from txnlog.storage.adapters.local import LocalStorage

pytestmark = [
    pytest.mark.usefixtures("early"),
    # Ends of generators that were left, in which nothing may be raised any more.
    pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.rule("L18"),
]


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    settle_early(monkeypatch)


def test_a_state_that_was_left_in_the_middle_is_read_again() -> None:
    """At the lines of the folds of groups and topics: nothing is written down half done."""
    points = [at for at in lines_of(Settle) if "/txnlog/state/" in at.file and at.hit == 1]
    deciding = [at for at in points if at.file.endswith("group.py")]
    assert len(deciding) > 10
    interrupt_each(Settle, deciding)
    interrupt_each(Settle, [at for at in points if at.file.endswith("topic.py")][::9])


def test_it_is_noticed_if_such_a_state_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule broken on purpose: a decision is taken out, and the offsets are not moved yet."""
    monkeypatch.setattr(StateLog, "_change", lambda log, change: change(log._state))
    commits = [at for at in lines_of(Settle) if at.file.endswith("state/group.py")]
    (moving,) = [at for at in commits if at.hit == 1 and "_commit(entry, number)" in line(at)][-1:]
    with pytest.raises(AssertionError, match="group g now"):
        interrupt(Settle, moving, KeyboardInterrupt)


def line(at: Point) -> str:
    return linecache.getline(at.file, at.line)


@pytest.mark.few(9)
@pytest.mark.parametrize("job_type", JOBS)
def test_some_lines(job_type: type[Job]) -> None:
    points = lines_of(job_type)
    assert len(points) > 10
    interrupt_each(job_type, points[7::701])


@pytest.mark.few(1)
@pytest.mark.parametrize("job_type", [Submit, SubmitInTransaction])
def test_no_future_is_left_that_nobody_tells(job_type: type[Job]) -> None:
    """Where deliveries go from one hand to the next: those in none would never be done."""
    files = ("write/deliveries.py", "write/plain_writer.py", "write/topic_buffer.py")
    points = [at for at in lines_of(job_type) if at.file.endswith(files) and at.hit <= 2]
    assert len(points) > 20
    interrupt_each(job_type, points[::2])


@pytest.mark.more
def test_partitions_that_come_or_go_are_read_by_one() -> None:
    """An interrupt while a share changes: nothing is read by two members, nor by none."""
    points = [at for at in lines_of(Join) if at.hit == 1]
    files = ("groups/rebalance.py", "/consumer.py")
    interrupt_each(Join, [at for at in points if at.file.endswith(files)][::5])


@pytest.mark.more
@pytest.mark.parametrize("job_type", JOBS)
def test_more_lines(job_type: type[Job]) -> None:
    interrupt_each(job_type, lines_of(job_type)[::83])


class OnDisk(Commit):
    """The same on a disk, whose files and threads are to be left in order, too."""

    watched: ClassVar[tuple[str, ...]] = (
        *("storage/adapters/local.py", "storage/threads.py", "storage/base.py"),
        *("storage/buffered_uploads.py", "write/segment_uploads.py"),
    )


@pytest.mark.parametrize(
    "every", [pytest.param(151, marks=pytest.mark.more), pytest.param(1, marks=pytest.mark.slow)]
)
def test_no_file_is_left_open(tmp_path: Path, every: int) -> None:
    job = OnDisk(LocalStorage(str(tmp_path / "whole")))
    tracer = Tracer(job.watched)
    tracer.run(job.call)
    job.finish()
    points = tracer.points()
    assert len(points) > 200
    came = 0
    for number, at in enumerate(points[::every]):
        job = OnDisk(LocalStorage(str(tmp_path / str(number))))
        tracer = Tracer(job.watched, at, KINDS[number % len(KINDS)])
        try:
            tracer.run(job.call)
        except KINDS:
            came += 1
        job.check()
        job.finish()
        del job
        gc.collect()
        assert open_files(tmp_path) == [], f"after an interrupt at {at}"
    assert came > len(points) // every // 3  # threads share the calls, as it happens


def open_files(below: Path) -> list[Path]:
    """What this process holds open there; folders are held on purpose."""
    found = []
    for descriptor in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):
            path = descriptor.readlink()
            if path.is_relative_to(below) and not descriptor.is_dir():
                found.append(path)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("job_type", JOBS)
def test_all_lines(job_type: type[Job], kind: type[BaseException]) -> None:
    points = lines_of(job_type)
    for at in points:
        interrupt(job_type, at, kind)
    where = {(at.file, at.line) for at in points}
    sys.stdout.write(f"{job_type.__name__}: {len(where)} lines, {len(points)} interrupts\n")
