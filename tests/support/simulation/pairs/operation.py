"""What a pair is made of: one thing that one process does to a store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from tests.support.simulation.pairs.world import NEAR, Actor


class Operation(ABC):
    """One thing that one process does, once.

    ``topics``: those that it reads or writes. ``moves_group``: it moves the offsets of group ``g``
    other than past what it has read.
    """

    name: ClassVar[str]
    topics: tuple[str, ...] = NEAR
    moves_group: ClassVar[bool] = False

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.store = actor.store
        self.history = actor.history
        self.world = actor.world

    def prepare(self) -> None:  # noqa: B027 - most need none
        """What its process did before: it may know an older state of what the other changes."""

    @abstractmethod
    def act(self) -> None:
        """Do it. Errors of the library that tell somebody that he lost are no faults."""

    def look_again(self) -> None:  # noqa: B027 - most look with all others
        """What its processes see when both are done, and nobody has looked yet."""

    def go_on(self) -> None:  # noqa: B027 - most are done
        """What its process does with what it has, when both are done."""

    def close(self) -> None:  # noqa: B027 - most leave nothing
        """Remove what it has left outside of the store."""


OPERATIONS: dict[str, Callable[[Actor], Operation]] = {}
"""By name."""


def operation(made: type[Operation]) -> type[Operation]:
    """Add it to the matrix."""
    OPERATIONS[made.name] = made
    return made
