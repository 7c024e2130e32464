"""A bank of real processes on a real disk: whatever is killed or stopped, no money comes or goes.

The bank and its judge are in ``tests/support/simulation/bank.py``, its processes in
``bank_worker.py`` beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import txnlog
from tests.support.simulation.bank import (
    LEAST_AGE,
    PLAIN,
    TIMEOUT_MS,
    Bank,
    open_banks,
    open_for_business,
)
from tests.support.simulation.bank_worker import PARTITIONS, Auditor, Job, Leg, Torn
from txnlog.names import TopicPartition
from txnlog.store import open_store

pytestmark = pytest.mark.rule("hazard 3", "hazard 5")


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Callable[..., Bank]]:
    """Opens a bank, and ends all its processes with the test."""
    with open_banks(tmp_path) as opened:
        yield opened


# -- what the auditor sees -----------------------------------------------------------------------

PAIR = [("a", Leg("w0.0/0", 0, 2, 5)), ("b", Leg("w0.0/0", 1, 2, -5))]


@pytest.mark.parametrize(
    ("legs", "words", "seen"),
    [
        (PAIR, "begin ask ack", None),
        (PAIR[:1], "begin ask", "torn"),
        (PAIR[:1], "begin ask ack", "torn"),
        ([PAIR[0], ("b", Leg("w0.0/0", 1, 2, -4))], "begin ask ack", "the sum"),
        ([*PAIR, PAIR[1]], "begin ask ack", "doubled"),
        (PAIR, "begin abort", "aborted"),
        ([], "begin ask ack", "acknowledged before"),
    ],
)
def test_the_auditor_sees_what_is_wrong(
    legs: list[tuple[str, Leg]], words: str, seen: str | None, tmp_path: Path
) -> None:
    """Each kind of violation is noticed, and nothing else is called one."""
    url = str(tmp_path / "store")
    store = txnlog.open(url, create=True)
    for topic, count in PARTITIONS.items():
        store.topics.create(topic, partitions=count)
    with store.producer(transactional_id="w0") as producer:
        producer.init_transactions()
        with producer.transaction():
            for topic, leg in legs:
                producer.send(topic, leg.encode(), partition=0)
    notes = "".join(f"{word} w0.0/0\n" for word in words.split())
    (tmp_path / "w0.0.writer").write_text(notes)
    auditor = Auditor(Job(url, str(tmp_path), "r0", 0))
    if seen is None:
        assert auditor.look("read_committed")
        assert auditor.look("snapshot")
        auditor.look("read_uncommitted")
        return
    with pytest.raises(Torn, match=seen):
        auditor.look("snapshot")


def test_the_auditor_sees_what_is_gone(tmp_path: Path) -> None:
    """Records shown by a snapshot must be in every later one of each level."""
    url = str(tmp_path / "store")
    store = txnlog.open(url, create=True)
    for topic, count in PARTITIONS.items():
        store.topics.create(topic, partitions=count)
    for transfer in ("w0.0/0", "w0.0/1"):
        with store.producer() as producer:
            producer.send("a", Leg(transfer, 0, 1, 0).encode())
    for level in ("snapshot", "read_uncommitted", "read_committed"):
        auditor = Auditor(Job(url, str(tmp_path), "r0", 0))
        auditor.look("read_committed")
        auditor.look(level)
        store.topics.delete_records({TopicPartition("a", 0): 1})
        with pytest.raises(Torn, match=r"gone|a gap|no prefix"):
            auditor.look(level)
        store.topics.delete("a")
        store.topics.create("a")
        for transfer in ("w0.0/0", "w0.0/1"):
            with store.producer() as producer:
                producer.send("a", Leg(transfer, 0, 1, 0).encode())


# -- the runs ------------------------------------------------------------------------------------


@pytest.mark.condition(31, 51, 52)
@pytest.mark.more
def test_a_bank_of_processes(tmp_path: Path, bank: Callable[..., Bank]) -> None:
    """In small, three writers and four readers (invariant S1)."""
    opened = bank(1, str(tmp_path / "store"), {}, LEAST_AGE)
    open_for_business(opened, 3, 15)
    assert opened.done["transfers"] > 10
    assert opened.done["killed"] + opened.done["stopped"] > 3


@pytest.mark.condition(51, 52)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_bank_of_eight_processes(seed: int, tmp_path: Path, bank: Callable[..., Bank]) -> None:
    """Invariant S1: eight writers, kills, stops, zombies, and 2000 snapshots of each level."""
    opened = bank(seed, str(tmp_path / "store"), {}, LEAST_AGE)
    open_for_business(opened, 8, 500)
    assert opened.done["transfers"] > 300
    assert opened.done["killed"] > 20
    assert opened.done["stopped"] > 20
    assert opened.done["zombies"] > 3
    assert opened.done["saw read_committed atomic"] > 100


@pytest.mark.slow
@pytest.mark.s3
def test_a_bank_over_s3(
    tmp_path: Path, bank: Callable[..., Bank], s3_options: dict[str, Any]
) -> None:
    """The same over a real S3 server, with fewer of everything."""
    opened = bank(7, f"s3://test/{tmp_path.name}", s3_options, LEAST_AGE)
    open_for_business(opened, 3, 25)
    assert opened.done["transfers"] > 10


@pytest.mark.slow
def test_a_bank_whose_listings_are_interrupted(tmp_path: Path, bank: Callable[..., Bank]) -> None:
    """Processes stop in the middle of listings of 1,500 entries and more, and go on later."""
    config = {"transaction.max.timeout.ms": TIMEOUT_MS}
    opened = bank(11, str(tmp_path / "store"), {}, config)
    with open_store(opened.url).producer(acks=1) as producer:
        for transfer in sorted(PLAIN):
            producer.send("a", Leg(transfer, 0, 2, 0).encode(), partition=0)
            producer.send("b", Leg(transfer, 1, 2, 0).encode(), partition=0)
            producer.flush()
    open_for_business(opened, 8, 60, halts=0.02)
    assert opened.done["halt"] > 100
