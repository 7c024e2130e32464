"""How many examples Hypothesis tries: all of them in `make soak`, a third of them otherwise."""

from __future__ import annotations

import os

from hypothesis import settings

ALL = "TXNLOG_ALL_EXAMPLES"
"""The variable of the environment that `make soak` sets."""


def tries_all() -> bool:
    return bool(os.environ.get(ALL))


def share_of(count: int) -> int:
    return count if tries_all() else -(-count // 3)


def some(most: int) -> settings:
    """The same examples in each run, up to so many of them."""
    return settings(derandomize=True, max_examples=share_of(most), deadline=None)
