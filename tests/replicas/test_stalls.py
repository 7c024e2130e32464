"""Whatever a producer does while roots stall: one is put out, all have the delivery timeout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import txnlog
from tests.replicas.stalled_roots import Gate, end_at_a_pause
from tests.support.replication.replica_folders import FIRST, SECOND, reopened, values
from tests.support.tiers import more
from txnlog.errors import CommitStateUnknown, NotEnoughReplicas

Step = Callable[[txnlog.Producer], object]
REQUESTS = ("put_if_absent", "upload", "get", "list_names", "confirm")
T0 = txnlog.TopicPartition("t", 0)
TIMEOUT_MS = 60_000


def send(producer: txnlog.Producer) -> None:
    producer.send("t", value=b"1")


def begin(producer: txnlog.Producer) -> None:
    producer.init_transactions()
    producer.begin_transaction()


def fill(producer: txnlog.Producer) -> None:
    begin(producer)
    send(producer)


def flush(producer: txnlog.Producer) -> None:
    producer.flush()


def commit(producer: txnlog.Producer) -> None:
    producer.commit_transaction()


def place(producer: txnlog.Producer) -> None:
    fill(producer)
    flush(producer)


def place_offsets(producer: txnlog.Producer) -> None:
    place(producer)
    producer.send_offsets_to_transaction({T0: 1}, "g")


STEPS: dict[str, tuple[str | None, Step, Step]] = {
    "append": (None, send, flush),
    "look at a topic": (None, lambda _: None, send),
    "ask for partitions": (None, lambda _: None, lambda one: one.partitions_for("t")),
    "initialise": ("x", lambda _: None, lambda one: one.init_transactions()),
    "place": ("x", fill, flush),
    "look at a group": (
        "x",
        place,
        lambda one: one.send_offsets_to_transaction({T0: 1}, "g"),
    ),
    "decide": ("x", place, commit),
    "decide with offsets": ("x", place_offsets, commit),
    "all": ("x", fill, commit),
}
"""By what the roots stall in: a transactional id, what is done before, and then."""
OFTEN = ("append", "look at a group", "decide")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("stalled", [(FIRST,), (SECOND,), (FIRST, SECOND)], ids=["a", "b", "all"])
def test_it_goes_on_without_a_root_or_once_one_does(
    lagging: txnlog.Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gate: Gate,
    step: str,
    stalled: tuple[str, ...],
) -> None:
    lagging.topics.create("t", partitions=1)
    transactional_id, before, then = STEPS[step]
    settings = {"transactional_id": transactional_id, "delivery_timeout_ms": 10**9}
    producer = lagging.producer(**settings)  # type: ignore[arg-type]
    before(producer)
    for folder in stalled:
        gate.close(tmp_path / folder, *REQUESTS)
    if len(stalled) == 2:
        end_at_a_pause(lagging, monkeypatch, gate)
    then(producer)
    assert gate.asked
    gate.let_go()
    if then in {flush, commit} and step != "place":
        assert values(reopened(tmp_path)) == ["1"]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "step",
    [*OFTEN, *more(step for step in STEPS if step not in OFTEN)],
)
def test_it_ends_where_all_roots_stall_for_ever(
    lagging: txnlog.Store, tmp_path: Path, gate: Gate, step: str
) -> None:
    """After the delivery timeout; a decision after half of what the transaction has left."""
    lagging.topics.create("t", partitions=1)
    transactional_id, before, then = STEPS[step]
    settings = {
        "transactional_id": transactional_id,
        "delivery_timeout_ms": TIMEOUT_MS,
        "transaction_timeout_ms": 3 * TIMEOUT_MS,
    }
    producer = lagging.producer(**settings)  # type: ignore[arg-type]
    before(producer)
    for folder in (FIRST, SECOND):
        gate.close(tmp_path / folder, *REQUESTS)
    clock = lagging.storage.agreement.clock  # type: ignore[attr-defined]
    began_s = clock.monotonic_s()
    with pytest.raises((NotEnoughReplicas, CommitStateUnknown)):
        then(producer)
    assert 60 <= clock.monotonic_s() - began_s < 65
    gate.let_go()
