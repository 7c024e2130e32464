"""The judge of the drivers' tests can see: each thing that may go wrong is done on purpose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.loop_judge import check_done, check_not_blocked, check_whole, orphans, prepare
from txnlog import Store, TopicPartition
from txnlog.errors import TxnlogError

RECORDS = 40


def batch(store: Store, out: range, total: int, offsets: bool = True) -> None:
    """What one run of the loop writes, without Spark."""
    with store.producer(transactional_id="etl") as producer:
        producer.init_transactions()
        with producer.transaction():
            for number in out:
                producer.send("out", b"%d" % (3 * number))
            producer.send("sums", b"%d" % total)
            ends = store.topics.describe("in").partitions
            moved = {TopicPartition("in", part.partition): part.end_offset for part in ends}
            if offsets:
                producer.send_offsets_to_transaction(moved, "g")


def all_once(store: Store) -> None:
    batch(store, range(RECORDS), sum(range(RECORDS)))


def one_twice(store: Store) -> None:
    all_once(store)
    batch(store, range(7, 8), 7)


def one_missing(store: Store) -> None:
    batch(store, range(RECORDS - 1), sum(range(RECORDS - 1)))


def one_output_missing(store: Store) -> None:
    batch(store, range(RECORDS), 0)


def offsets_left_behind(store: Store) -> None:
    batch(store, range(RECORDS), sum(range(RECORDS)), offsets=False)


def left_open(store: Store) -> None:
    all_once(store)
    producer = store.producer(transactional_id="other")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("out", b"0")
    producer.flush()


def file_missing(store: Store) -> None:
    all_once(store)
    next(Path(store.url).glob("topics/out/data/*/*.log")).unlink()


def file_elsewhere(store: Store) -> None:
    all_once(store)
    Path(store.url, "groups", "left.tmp").touch()


@pytest.fixture
def prepared(tmp_path: Path) -> Store:
    return prepare(str(tmp_path / "store"), RECORDS)


def test_the_judge_is_silent_on_what_is_right(prepared: Store) -> None:
    """No false alarm; orphans where they may be are listed."""
    all_once(prepared)
    assert check_whole(prepared) == RECORDS
    assert check_done(prepared, RECORDS) == []
    orphan = Path(prepared.url, "topics/out/data/0/orphan-0.log")
    orphan.parent.mkdir(exist_ok=True)
    orphan.touch()
    assert orphans(prepared) == ["topics/out/data/0/orphan-0.log"]


@pytest.mark.parametrize(
    "wrong",
    [
        one_twice,
        one_missing,
        one_output_missing,
        offsets_left_behind,
        left_open,
        file_missing,
        file_elsewhere,
    ],
)
def test_the_judge_sees(wrong: Callable[[Store], None], prepared: Store) -> None:
    """What is lost, doubled, torn, open or lying about fails."""
    wrong(prepared)
    with pytest.raises((AssertionError, TxnlogError)):
        check_done(prepared, RECORDS)


def test_the_judge_sees_a_doubled_or_torn_batch_at_once(prepared: Store) -> None:
    """The check between two kills needs no complete run."""
    batch(prepared, range(5), 0)
    with pytest.raises(AssertionError, match="in part"):
        check_whole(prepared)
    batch(prepared, range(5), 20)
    with pytest.raises(AssertionError, match="5 numbers came more than once"):
        check_whole(prepared)


def test_the_judge_lets_nothing_open_past_its_timeout(prepared: Store) -> None:
    """A reader that comes late ends what is open, and reads on."""
    left_open(prepared)
    check_not_blocked(prepared)
    assert check_done(prepared, RECORDS) == []
