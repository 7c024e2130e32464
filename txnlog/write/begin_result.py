"""What a producer's ``begin_transaction`` returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BeginResult:
    """What became of ``begin_transaction``.

    ``already_committed``: this version, or a greater one, was committed before. Then no
    transaction was begun, and there is nothing to do.
    """

    already_committed: bool = False
