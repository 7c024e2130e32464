"""Which partition a record goes to, for whole columns at once.

Kafka's default: murmur2 of the key, so that a key lands where a Kafka producer with the same
number of partitions would put it; by CRC-32 it lands where librdkafka's clients put it. Records
without a key go round robin, or stay together for a batch. An explicit partition wins; null is
none, and a negative one is an error, as for Kafka's producer and Spark's Kafka sink. Or a user's
function chooses, for whole batches of records.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txnlog.columns.keys import Hashes, key_layout, positive_murmur2
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


ChosenT = TypeVar("ChosenT", bound=str | PartitionFunction)
Int32Array = npt.NDArray[np.int32]


def crc32(keys: pa.Array) -> Hashes:
    """The CRC-32 (IEEE) of each value of a binary array; a null hashes like an empty key."""
    found = (zlib.crc32(key or b"") for key in keys.to_pylist())
    return np.fromiter(found, np.uint32, len(keys))


class Keyless(Protocol):
    """Chooses partitions for records without a key."""

    def take(self, count: int) -> Int32Array:
        """The partitions of the next ``count`` records."""


class _RoundRobin:
    """One partition after the other."""

    def __init__(self, partitions: int, first: int) -> None:
        self._partitions = partitions
        self._next = first % partitions

    def take(self, count: int) -> Int32Array:
        turns = (self._next + np.arange(count)) % self._partitions
        self._next = (self._next + count) % self._partitions
        return turns.astype(np.int32)


class _Random:
    """A random partition for each record."""

    def __init__(self, partitions: int, seed: int) -> None:
        self._partitions = partitions
        self._chance = np.random.default_rng(seed)

    def take(self, count: int) -> Int32Array:
        return self._chance.integers(0, self._partitions, count, dtype=np.int32)


class _Sticky:
    """A random partition for a whole batch, another one for the next: fewer, larger segments."""

    def __init__(self, partitions: int, seed: int) -> None:
        self._partitions = partitions
        self._chance = np.random.default_rng(seed)
        self._last = int(self._chance.integers(partitions))

    def take(self, count: int) -> Int32Array:
        if count and self._partitions > 1:
            steps = int(self._chance.integers(1, self._partitions))
            self._last = (self._last + steps) % self._partitions
        return np.full(count, self._last, dtype=np.int32)


class Partitioner(Protocol):
    """Chooses partitions for the records of one topic."""

    def __call__(self, keys: pa.Array, records: pa.RecordBatch | None = None, /) -> Int32Array:
        """The partition of each record: int32, one for each key of a binary array."""


class _KeyPartitioner:
    """By a hash of the key; records without a key by ``keyless``."""

    def __init__(
        self,
        hashed: Callable[[pa.Array], Hashes],
        partitions: int,
        keyless: Keyless,
        *,
        empty_key_is_none: bool = False,
    ) -> None:
        self._hash = hashed
        self._partitions = partitions
        self._keyless = keyless
        self._empty_key_is_none = empty_key_is_none

    def __call__(self, keys: pa.Array, _: pa.RecordBatch | None = None, /) -> Int32Array:
        if keys.null_count == len(keys):
            return self._keyless.take(len(keys))
        chosen = (self._hash(keys) % np.uint32(self._partitions)).astype(np.int32)
        if self._empty_key_is_none:
            keyless = np.flatnonzero(key_layout(keys)[2] == 0)
            chosen[keyless] = self._keyless.take(keyless.size)
        elif keys.null_count:
            keyless = np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False))
            chosen[keyless] = self._keyless.take(keyless.size)
        return chosen


class _KeylessPartitioner:
    """Ignores keys."""

    def __init__(self, _: int, keyless: Keyless) -> None:
        self._keyless = keyless

    def __call__(self, keys: pa.Array, _: pa.RecordBatch | None = None, /) -> Int32Array:
        return self._keyless.take(len(keys))


class _Unchosen:
    """-1 for each record."""

    def take(self, count: int) -> Int32Array:
        return np.full(count, -1, dtype=np.int32)


_by_murmur2 = partial(_KeyPartitioner, positive_murmur2)

_PARTITIONERS: Mapping[
    str, tuple[Callable[[int, Keyless], Partitioner], Callable[[int, int], Keyless]]
] = {
    "murmur2": (_by_murmur2, _RoundRobin),
    "crc32": (partial(_KeyPartitioner, crc32, empty_key_is_none=True), _RoundRobin),
    "sticky": (_by_murmur2, _Sticky),
    "round_robin": (_KeylessPartitioner, _RoundRobin),
    "random": (_KeylessPartitioner, _Random),
}
"""Kafka's own, librdkafka's default ``consistent_random``, Kafka's with its sticky partitions for
records without a key; and those for which keys do not count. Each is what is done with keys, and
with records that have none."""

DEFAULT_PARTITIONER = "murmur2"


def check_partitioner(chosen: ChosenT) -> ChosenT:
    """Return it if it is a known partitioner or function. Raises InvalidOption."""
    if isinstance(chosen, str):
        if ":" in chosen:
            load_function(chosen)
        elif chosen not in _PARTITIONERS:
            raise InvalidOption(
                f"partitioner {chosen!r:.100} is not one of {', '.join(_PARTITIONERS)}; a function "
                "of your own is named as package.module:function"
            )
    elif not callable(chosen):
        raise InvalidOption(
            f"partitioner must be a name or a function of a batch and the number of partitions, "
            f"not {chosen!r:.100}"
        )
    return chosen


def make_partitioner(
    chosen: str | PartitionFunction,
    partitions: int,
    first: int = 0,
    *,
    token: Callable[[], str] | None = None,
) -> Partitioner:
    """A partitioner for one topic, of what :func:`check_partitioner` returned.

    ``first``: the partition of the first record without a key, if those go round robin. ``token``:
    chance, as hex digits; if left out, chance is the same for the same ``first``.
    """
    if not isinstance(chosen, str) or ":" in chosen:
        return FunctionPartitioner(chosen, partitions)
    by_chance = chosen in ("sticky", "random")
    seed = int(token(), 16) if token is not None and by_chance else first
    by_key, keyless = _PARTITIONERS[chosen]
    if partitions == 1:  # whatever the keys are: nothing is hashed
        by_key = _KeylessPartitioner
    return by_key(partitions, keyless(partitions, seed))


def make_keyed_partitioner(chosen: str, partitions: int) -> Partitioner:
    """The part of a built-in partitioner that goes by keys; -1 for records it takes as keyless."""
    by_key, _ = _PARTITIONERS[chosen]
    return by_key(partitions, _Unchosen())


def check_explicit(
    column: pa.Array, topic: str, partitions: int, name: str = "partition"
) -> pa.Array:
    """A column of explicit partitions as int32, null where there is none.

    Raises InvalidRecord: it holds no integers, or one that is not a partition of the topic.
    """
    if not pa.types.is_integer(column.type):
        raise InvalidRecord(f"column {name!r} is {column.type}; an integer type is needed")
    if column.null_count < len(column):
        low, high = (bound.as_py() for bound in pc.min_max(column).values())
        if low < 0 or high >= partitions:
            raise InvalidRecord(
                f"column {name!r} has {low if low < 0 else high}, but topic {topic!r} has "
                f"{partitions} partitions, numbered from 0; null, or no such column, chooses by key"
            )
    return column.cast(pa.int32())


def choose_partitions(
    keys: pa.Array,
    explicit: pa.Array | None,
    partitioner: Partitioner,
    records: pa.RecordBatch | None = None,
) -> Int32Array:
    """The partition of each record: the explicit one, else the partitioner's.

    ``explicit``: int32, null where there is none; None if no record has one. ``partitioner`` sees
    the others alone. ``records``: all of their columns, for a user's own partitioner.
    """
    if explicit is None or explicit.null_count == len(explicit):
        return partitioner(keys, records)
    if not explicit.null_count:
        return np.asarray(explicit)
    chosen = np.array(explicit.fill_null(0), dtype=np.int32)
    free = explicit.is_null()
    if isinstance(partitioner, FunctionPartitioner) and records is not None:
        records = records.filter(free)
    chosen[np.asarray(free)] = partitioner(keys.filter(free), records)
    return chosen
