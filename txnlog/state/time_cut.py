"""The consistent cut at a time: where topics stood when the last appends until then were made.

Pure. The time of a transaction is that of its last append. What is later is hidden, and what that
hides joins it: so of each transaction all or nothing lies before the cut, whatever clocks say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from txnlog.names import TopicPartition
from txnlog.state.cut import Part, consistent_cut


def cut_at_time(
    ends: Mapping[TopicPartition, int], parts: Iterable[Part], at_ms: int
) -> dict[TopicPartition, int]:
    """Shrink ``ends`` until nothing before them is later than a time, and units are whole.

    Args:
        ends: the end of each partition now.
        parts: all appends that may be later, and of their units those that may be earlier; aborted
            ones are left out.
        at_ms: the time, of the clock that the parts' own are of.
    """
    known = [*parts]
    cut = dict(ends)
    for part in known:
        if part.at_ms > at_ms:
            for where, offset in part.first_offsets.items():
                if where in cut:
                    cut[where] = min(cut[where], offset)
    return consistent_cut(cut, known)
