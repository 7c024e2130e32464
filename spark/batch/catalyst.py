"""What Catalyst knows of a frame: its plan, as py4j hands it out of the JVM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Java: TypeAlias = Any
"""An object of the JVM's."""


def analyzed_plan(frame: DataFrame) -> Java | None:
    """The frame's plan; None through Spark Connect, whose client has none of Catalyst's."""
    classic = getattr(frame, "_jdf", None)
    return None if classic is None else classic.queryExecution().analyzed()


def kind(node: Java) -> str:
    """The name of a node's class."""
    return str(node.getClass().getSimpleName())


def sequence(found: Java) -> Iterator[Java]:
    """The elements of a sequence of Scala's."""
    for number in range(found.size()):
        yield found.apply(number)
