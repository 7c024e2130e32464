"""Small numbers of entries, so that a few appends are settled, joined and cleaned up already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from txnlog.admin import joinable_segments
from txnlog.log import chapters, manifests, state_log, topic_log


def settle_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints after 4 entries, chapters and manifests of 3, which are joined; one list is kept.

    Two checkpoints are kept, too. Two segments are worth a merge.
    """
    for module in (state_log, topic_log):
        monkeypatch.setattr(module, "CHECKPOINT_INTERVAL", 4)
    monkeypatch.setattr(chapters, "CHAPTER", 3)
    monkeypatch.setattr(chapters, "FANOUT", 3)
    monkeypatch.setattr(chapters, "MOST_CLOSED", 2)
    monkeypatch.setattr(chapters, "STAY_OPEN", 1)
    monkeypatch.setattr(state_log, "KEPT_CHECKPOINTS", 2)
    for module in (manifests, topic_log):
        monkeypatch.setattr(module, "KEPT_ENTRIES", 1)
        monkeypatch.setattr(module, "SETTLED_AT_ONCE", 3)
    monkeypatch.setattr(topic_log, "ADOPT_AFTER", 6)
    monkeypatch.setattr(manifests, "FANOUT", 2)
    monkeypatch.setattr(manifests, "KEPT_LISTS", 1)
    monkeypatch.setattr(manifests, "MAX_SEGMENTS", 32)
    monkeypatch.setattr(joinable_segments, "LEAST_SEGMENTS", 2)


@contextmanager
def settling_early() -> Iterator[None]:
    """The same within a block."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        settle_early(monkeypatch)
        yield
