"""The order in which seeds are tried until one of them notices what is broken."""

from __future__ import annotations

from collections.abc import Iterator


def tried_first(first: int, most: int) -> Iterator[int]:
    """All below ``most``, and before them the one that has noticed it so far.

    As long as it does, that is one run; when the code has changed, another one is looked for.
    """
    yield first
    yield from (seed for seed in range(most) if seed != first)
