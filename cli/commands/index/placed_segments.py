"""The segments of a store whose indexes a verb is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnlog.cli.input.segment_choice import SegmentChoice
from txnlog.cli.output.streams import warn

if TYPE_CHECKING:
    from txnlog.inspect.descriptions import SegmentDescription
    from txnlog.store import Store


def find_placed_segments(choice: SegmentChoice, store: Store) -> list[SegmentDescription]:
    """The segments that are meant; of those that are Parquet files people are told why none shows.

    Raises BadParameter, ObjectNotFound if none has the name.
    """
    found = choice.find(store)
    if any(segment.paths.is_parquet for segment in found):
        warn(
            f"{choice.target}: segments that are Parquet files have their index in themselves, and "
            "no index files: there is nothing to do. `txnlog segments verify` checks it"
        )
    return found
