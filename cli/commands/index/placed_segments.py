"""The segments of a store whose indexes a verb is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnlog.cli.input.segment_choice import SegmentChoice
from txnlog.cli.output.streams import warn

if TYPE_CHECKING:
    from txnlog.inspect.descriptions import SegmentDescription
    from txnlog.store import Store


def find_placed_segments(
    choice: SegmentChoice, store: Store, *, shows_pages: bool = False
) -> list[SegmentDescription]:
    """The segments that are meant; people are told why none of some shows.

    Raises BadParameter, ObjectNotFound if none has the name.
    """
    from txnlog.inspect.placed_indexes import index_paths

    found = choice.find(store)
    if any(segment.paths.is_parquet for segment in found):
        if not shows_pages:
            warn(
                f"{choice.target}: segments that are Parquet files have their index in themselves, "
                "and no index files: there is nothing to do. `txnlog segments verify` checks it"
            )
    elif found and not any(map(index_paths, found)):
        warn(
            f"{choice.target}: there are no index files: segments of one batch, or of less than "
            "1 MiB, have none"
        )
    return found
