"""Moves log start offsets up: one entry, and a note of the segments that it releases."""

from __future__ import annotations

import logging
from collections.abc import Callable

from txnlog.admin.live_segments import files_let_go
from txnlog.errors import StorageError
from txnlog.log.open_logs import Logs
from txnlog.log.state_log import DELIVERY_TIMEOUT_MS
from txnlog.log.topic_log import TopicLog
from txnlog.log.uploads import put_notes
from txnlog.names import FileKey
from txnlog.state.topic import TopicState
from txnlog.state.topic_entries import Trimmed

_logger = logging.getLogger(__name__)


def trim(
    logs: Logs,
    log: TopicLog,
    choose: Callable[[TopicState], dict[int, int]],
    *,
    timeout_ms: int = DELIVERY_TIMEOUT_MS,
) -> None:
    """Move the log start offsets of a topic's partitions up, all in one entry.

    ``choose`` gives the new ones of partitions for a state; if it gives none, nothing changes. It
    is called again if the topic was altered since, or other records were deleted or rewritten, not
    for what was appended: finding many segments takes longer than a busy topic waits between two
    entries. While other writers are faster it goes on for ``timeout_ms``.

    Raises UnknownTopicOrPartition; StorageError: the outcome is unknown, and repeating it does no
    harm.
    """
    nonce = logs.clock.token()
    released: list[FileKey] = []
    topic_id = ""
    chosen: tuple[object, dict[int, int]] = None, {}

    def build(state: TopicState) -> Trimmed | None:
        nonlocal topic_id, chosen
        state.check_exists(log.name)
        assert state.topic_id is not None
        topic_id = state.topic_id
        held = (
            topic_id,
            state.settled,
            (*state.config.items(),),
            [
                (part.log_start_offset, [rewrite.entry for rewrite in part.rewrites])
                for part in state.partitions
            ],
        )
        if chosen[0] != held:
            chosen = held, find(state)
        starts = chosen[1]
        return Trimmed(nonce, logs.clock.now_ms(), starts) if starts else None

    def find(state: TopicState) -> dict[int, int]:
        starts = choose(state)
        spans = {
            partition: (state.partitions[partition].log_start_offset, start)
            for partition, start in starts.items()
            if 0 <= partition < len(state.partitions)
        }
        let_go = [
            (partition, segment)
            for partition, segments in log.placed(state, spans).items()
            for segment in segments
            if segment.end_offset <= starts[partition]
        ]
        ends = [
            max(part.log_start_offset, starts.get(number, 0))
            for number, part in enumerate(state.partitions)
        ]
        released[:] = files_let_go(log, state, let_go, ends)
        return starts

    if log.append(build, timeout_ms=timeout_ms) is None:
        return
    try:
        # After the entry: the storage's time of the note must not be older than the entry.
        put_notes(logs.storage, logs.clock, log.name, topic_id, released, "released")
    except StorageError as error:
        # Vacuum finds them by their age.
        _logger.warning("topic %r: the deletion was not recorded: %s", log.name, error)
    logs.tidy([log])
