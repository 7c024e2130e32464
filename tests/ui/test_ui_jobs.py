"""What takes long: pages begin it when they are asked to, and show how far it is."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator

import pytest
from starlette.testclient import TestClient

from tests.ui.ui_browser import LONG_S, ended, text_of
from txnlog.doctor.findings import Finding
from txnlog.errors import StorageError
from txnlog.names import topic_log
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store
from txnlog.testing import HeapStorage, VirtualClock
from txnlog.ui import jobs
from txnlog.ui.console import Console
from txnlog.ui.jobs import Job, Jobs


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What holds a job up; opened at the end in any case."""
    event = threading.Event()
    yield event
    event.set()


def begin(console_jobs: Jobs, kind: str, work: Callable[[Job], None], number: str = "") -> Job:
    """A job of one's own in place of a page's."""
    storage = CountingStorage(HeapStorage())
    return console_jobs.ask(kind, number, VirtualClock(), storage, work)


def test_the_store_is_examined_when_asked(console: Console, browser: TestClient) -> None:
    """Not before; then it says how long that took, what it cost, and that it ran to the end."""
    before = text_of(browser, "/store")
    assert "transaction.max.timeout.ms 15 minutes default" in before
    assert "Examine the store as" in before
    told = ended(console, browser, "/store?examine")
    assert re.search(r"Examined 0 s ago, in [\d.]+ s; it ran to the end", told)
    assert re.search(r"Requests made: .*list.\d+", told)
    assert "damage" not in told
    assert re.search(r"ok \d+", told)
    assert "Examined" in text_of(browser, "/store")


def test_what_is_damaged_is_found(console: Console, browser: TestClient, store: Store) -> None:
    """With its place, and what is sound only counted."""
    assert isinstance(store.storage, HeapStorage)
    path = f"{topic_log('orders')}/{store.storage.list_names(topic_log('orders'))[0]}"
    store.storage.delete([path])
    store.storage.put(path, b"{")
    told = ended(console, browser, "/store?examine")
    assert re.search(r"damage \d", told)
    assert path in told


def test_maintenance_is_planned_when_asked(
    console: Console, browser: TestClient, store: Store
) -> None:
    """What each step would do, without what is not known before it is done."""
    assert "Make a plan" in text_of(browser, "/store/maintenance")
    assert "would do now: nothing" in ended(console, browser, "/store/maintenance?plan")
    store.topics.create("small")
    for _ in range(12):
        with store.producer() as producer:
            producer.send("small", "a")
    told = ended(console, browser, "/store/maintenance?plan=2")
    assert "would do now: 1 step" in told
    assert re.search(r"Merge topic small, partition 0, segment count 12, size [\d.]+ (Ki)?B", told)
    assert "small" not in ended(console, browser, "/store/maintenance?plan=2").partition("Merge")[0]


def test_a_page_shows_what_was_found_so_far(
    console: Console, browser: TestClient, gate: threading.Event
) -> None:
    """That more may come, and where it is; the page is loaded again until it has ended."""

    def work(job: Job) -> None:
        job.keep("damage", Finding("topic", "orders", "damage", "an entry is cut short"))
        job.reach("data of orders")
        gate.wait(LONG_S)

    job = begin(console.jobs, "examine", work)
    shown = text_of(browser, "/store?examine")
    assert "at data of orders. Below is what was found so far" in shown
    assert "an entry is cut short" in shown
    assert "it ran to the end" not in shown
    assert 'data-running="yes"' in browser.get("/store?examine=2").text
    assert console.jobs.newest("examine") is job
    gate.set()
    assert job.wait(LONG_S)
    assert "it ran to the end" in text_of(browser, "/store?examine")
    assert 'data-running=""' in browser.get("/store?examine").text


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StorageError("the disk is gone"), "ended early, at data: the disk is gone."),
        (ValueError("odd"), "ended early, at data: ValueError: odd."),
    ],
)
def test_a_job_that_fails_says_so(
    console: Console, browser: TestClient, error: Exception, said: str
) -> None:
    """What it had found is shown all the same, and not taken for everything."""

    def work(job: Job) -> None:
        job.keep("Merge", Finding("topic", "orders", "note", "found before"))
        job.reach("data")
        raise error

    assert begin(console.jobs, "plan", work).wait(LONG_S)
    shown = text_of(browser, "/store/maintenance")
    assert said in shown
    assert "would do at least: 1 step" in shown


def test_a_job_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In time, and in what it keeps; all is counted."""
    monkeypatch.setattr(jobs, "MOST_SHOWN", 3)
    clock = VirtualClock()
    job = Job(1, clock, CountingStorage(HeapStorage()))

    def work(job: Job) -> None:
        for number in range(10):
            job.keep("note", number)
            job.keep("ok", number, shows=False)
            clock.sleep(jobs.MOST_MS / 5000)
            job.reach(f"{number}")

    job.run(work)
    progress = job.progress()
    assert progress.counts == {"note": 6, "ok": 6}
    assert progress.shown == (("note", 0), ("note", 1), ("note", 2))
    assert (progress.place, progress.running, progress.is_complete) == ("5", False, False)
    assert progress.failure == "it was ended after 10 minutes"
    assert progress.took_ms == jobs.MOST_MS * 6 // 5


def test_what_is_loaded_again_begins_nothing_anew(gate: threading.Event) -> None:
    """Only the number of the next run does, and that not before the one before it has ended."""
    several = Jobs()
    ran = []

    def work(job: Job) -> None:
        ran.append(job.number)
        gate.wait(LONG_S)

    first = begin(several, "plan", work)
    assert begin(several, "plan", work, "2") is first
    gate.set()
    assert first.wait(LONG_S)
    assert [begin(several, "plan", work, number) for number in ("", "1", "3")] == [first] * 3
    second = begin(several, "plan", work, "2")
    assert second.wait(LONG_S)
    assert begin(several, "plan", work, "2") is second
    assert ran == [1, 2]
