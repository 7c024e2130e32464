"""Interactive searches among keys and values, as the filter of a scan."""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from txnlog.errors import InvalidOption

if TYPE_CHECKING:
    import pyarrow.compute as pc


def find_records(key: bytes | None, pattern: str | None) -> pc.Expression | None:
    """A filter over ``key`` and ``value``: this key, and a match in either; None if all match.

    ``key``: None: any. ``pattern``: a regular expression in RE2's syntax; None: anything.

    Raises InvalidOption: it is not a regular expression.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = []
    if key is not None:
        wanted.append(pc.field("key") == key)
    if pattern is not None:
        try:
            pc.match_substring_regex(pa.array([b""]), pattern)
        except pa.ArrowInvalid as error:
            raise InvalidOption(f"{pattern!r} is not a regular expression: {error}") from error
        in_key, in_value = (
            pc.match_substring_regex(pc.field(name), pattern) for name in ("key", "value")
        )
        wanted.append(in_key | in_value)
    return reduce(and_, wanted) if wanted else None
