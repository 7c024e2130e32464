"""The part of a rewrite that can run anywhere: it reads and uploads, and puts nothing into a log.

The planner puts the tasks' results into the log, in their order. Tasks are plain data, so Spark can
run them on many machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from txnlog.clock import Clock
from txnlog.storage.base import Storage

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class RewriteTask(Protocol[T_co]):
    """One task, for one partition."""

    @property
    def made_type(self) -> type[T_co]:
        """The type of its results: plain data, which can be encoded and decoded again."""
        ...

    def run(self, storage: Storage, clock: Clock) -> Iterator[T_co]:
        """Run it; yields its results one by one, to be put into the log in this order."""
        ...


class TaskRunner(Protocol):
    """Runs tasks somewhere, and yields the results of each, in the order of the tasks."""

    def __call__(self, tasks: Sequence[RewriteTask[T]]) -> Iterator[Iterator[T]]: ...


def run_here(storage: Storage, clock: Clock) -> TaskRunner:
    """Runs each task in this process, when its turn comes."""

    def run(tasks: Sequence[RewriteTask[T]]) -> Iterator[Iterator[T]]:
        return (task.run(storage, clock) for task in tasks)

    return run
