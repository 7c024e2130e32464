"""The consistent cut at a time: the ends of topics after the last appends until then.

Pure. The time of a transaction is that of its last append. Later ones are hidden, with those that
this hides in turn: so each transaction lies before the cut in whole or not at all, whatever clocks
say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from txnlog.names import TopicPartition
from txnlog.state.cut import Part, consistent_cut


def cut_at_time(
    ends: Mapping[TopicPartition, int], parts: Iterable[Part], at_ms: int
) -> dict[TopicPartition, int]:
    """Shrink ``ends`` until nothing before them is later than a time, and units are whole.

    Any other partition was added later, and ends at 0. ``parts``: all appends that may be later,
    and those of their units that may be earlier; without aborted ones. ``at_ms``: by their clock.
    """
    known = [*parts]
    cut = dict(ends)
    for part in known:
        if part.at_ms > at_ms:
            for where, offset in part.first_offsets.items():
                if offset < cut.get(where, 0):
                    cut[where] = offset
    return consistent_cut(cut, known)
