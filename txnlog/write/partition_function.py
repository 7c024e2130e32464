"""Partitions chosen by a user's function, for whole batches of records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txnlog.errors import InvalidOption, InvalidRecord
from txnlog.segments.records import CONVERSION_ERRORS

Chosen: TypeAlias = pa.Array | npt.NDArray[Any] | Sequence[int]
PartitionFunction: TypeAlias = Callable[[pa.RecordBatch, int], Chosen]
"""Takes records (columns key, value, timestamp, headers; of a typed topic its own) and how many
partitions there are; returns a partition for each record: whole numbers from 0."""


class FunctionPartitioner:
    """Calls the user's function, and checks its result."""

    def __init__(self, function: str | PartitionFunction, partitions: int) -> None:
        self._function = load_function(function) if isinstance(function, str) else function
        self._name = function if isinstance(function, str) else _name_of(function)
        self._partitions = partitions

    def __call__(
        self, keys: pa.Array, records: pa.RecordBatch | None = None, /
    ) -> npt.NDArray[np.int32]:
        """The partition of each record. Raises InvalidRecord, and any error of the function."""
        if records is None:
            records = pa.record_batch({"key": keys})
        if not records.num_rows:
            return np.empty(0, dtype=np.int32)
        found = self._function(records, self._partitions)
        try:
            chosen = found if isinstance(found, pa.Array) else pa.array(found)
        except CONVERSION_ERRORS as error:
            raise InvalidRecord(f"partitioner {self._name}: {error}{self._remedy}") from error
        if not pa.types.is_integer(chosen.type):
            raise InvalidRecord(f"partitioner {self._name} returned {chosen.type}{self._remedy}")
        if len(chosen) != records.num_rows or chosen.null_count:
            raise InvalidRecord(
                f"partitioner {self._name} returned {len(chosen) - chosen.null_count} partitions "
                f"for {records.num_rows} records{self._remedy}"
            )
        low, high = (bound.as_py() for bound in pc.min_max(chosen).values())
        if low < 0 or high >= self._partitions:
            raise InvalidRecord(
                f"partitioner {self._name} returned {low if low < 0 else high}, but there are "
                f"{self._partitions} partitions{self._remedy}"
            )
        return np.asarray(chosen.cast(pa.int32()))

    @property
    def _remedy(self) -> str:
        return f"; it must return a whole number from 0 to {self._partitions - 1} for each record"


def load_function(name: str) -> PartitionFunction:
    """The function that ``package.module:function`` names. Raises InvalidOption."""
    module, _, path = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise InvalidOption(
            f"partitioner {name!r:.100} cannot be loaded: {error}; it names a function as "
            "package.module:function, of a module that can be imported here"
        ) from error
    if not callable(found):
        raise InvalidOption(f"partitioner {name!r:.100} is not a function but {found!r:.60}")
    function: PartitionFunction = found
    return function


def _name_of(function: PartitionFunction) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)
