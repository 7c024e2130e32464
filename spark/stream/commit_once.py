"""Idempotence versions of Spark jobs: what was committed under a version is not committed again.

A streaming query that dies is restarted by Spark with the batch whose end it had not noted, though
the sink may have committed it. The key is (query id, batch id): the query's id lives in its
checkpoint. It becomes known with the very put that commits the batch.
"""

from __future__ import annotations

from functools import partial

from txnlog.errors import InvalidTxnState
from txnlog.spark.batch import commit
from txnlog.state.transaction import TransactionState, Version
from txnlog.store import Store
from txnlog.write.coordinator import Coordinator

_QUERY = "spark-query:"


def query_batch(query_id: str, batch_id: int) -> Version:
    """The version of one micro-batch of a streaming query."""
    return Version(f"{_QUERY}{query_id}", batch_id)


def default_transactional_id(query_id: str) -> str:
    """The transactional id of a streaming query without one."""
    return f"spark-stream-{query_id}"


def take_over(coordinator: Coordinator, version: Version | None) -> bool:
    """Take the transactional id over; True if ``version`` was committed before.

    Raises InvalidTxnState: a streaming query must not go on with what the id holds; nothing was
    put, so the id's other user can go on.
    """
    if version is None:
        coordinator.initialize()
        return False
    coordinator.initialize(check=partial(_check_query, version=version))
    return version.is_committed(coordinator.state.versions)


def commit_version(
    store: Store,
    transactional_id: str,
    timeout_ms: int,
    segments: commit.SegmentsByTopic,
    version: Version,
) -> bool:
    """Place uploaded segments and commit them with their version, unless that was done before.

    Returns False if the version was committed before: then the segments were deleted. Raises
    InvalidTxnState as :func:`take_over`; ProducerFenced: another instance took the id over;
    CommitStateUnknown: nothing was deleted, and the batch's next run settles it.
    """
    coordinator = Coordinator(store.logs, transactional_id, timeout_ms)
    with commit.discard_on_error(store, segments), commit.speak_of_jobs(transactional_id):
        already_committed = take_over(coordinator, version)
    if already_committed:
        commit.discard(store, segments)
        return False
    commit.place_and_commit(store, coordinator, segments, {}, version=version)
    return True


def _check_query(state: TransactionState, version: Version) -> None:
    """Raise InvalidTxnState where a query's batch numbers cannot be those that are recorded."""
    application_id, number = version
    if not application_id.startswith(_QUERY):
        return
    name = state.transactional_id
    others = [other for other in state.versions if other.startswith(_QUERY)]
    if others and application_id not in others:
        old = others[0].removeprefix(_QUERY)
        raise InvalidTxnState(
            f"transactional id {name!r} belongs to streaming query {old}, which has committed "
            f"batch {state.versions[others[0]]}; this is query {application_id[len(_QUERY) :]}, "
            f"with a checkpoint of its own, at batch {number}. Its batches would be taken for new "
            "ones though they may hold the same records. To go on with the old query start it "
            "from its checkpoint; if this is to be a new query, give it another transactional id"
        )
    last = state.versions.get(application_id, -1)
    if number < last:
        raise InvalidTxnState(
            f"streaming query {application_id[len(_QUERY) :]} is at batch {number}, but has "
            f"committed batch {last} with transactional id {name!r}: its checkpoint was set back. "
            "Its batches need not be the same again, so none is skipped or repeated. Use the "
            "newest checkpoint, or a new one with another transactional id"
        )
