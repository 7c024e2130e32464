"""What a producer's ``begin_transaction`` returns."""

from __future__ import annotations

import warnings
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BeginResult:
    """What became of ``begin_transaction``.

    ``already_committed``: this version, or a greater one, was committed before. Then no
    transaction was begun, and there is nothing to do.
    """

    already_committed: bool = False

    def __bool__(self) -> bool:
        warnings.warn(
            "taking what begin_transaction() returns for a boolean is deprecated, and will fail in "
            "the next release: look at its already_committed",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.already_committed
