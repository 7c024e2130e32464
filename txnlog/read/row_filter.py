"""Filters of scans: pyarrow expressions over the columns of a scan, and their evaluation.

Facts about segments and row groups are given to Arrow as guarantees; it then says which of them a
filter cannot match. The rest is filtered row by row, so the rows are always those for which the
expression is true, neither false nor null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import product
from operator import and_

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset, types
from pyarrow.fs import LocalFileSystem

from txnlog.columns.expressions import evaluate
from txnlog.errors import InvalidOption
from txnlog.segments.parquet.statistics import ValueRange

_MOST_FLOATS = 3
"""How many float columns a filter may use for statistics to count: each may be NaN, or not."""

Known = Mapping[str, ValueRange]
"""Facts known about some rows, by column; nothing is known about missing ones."""


class RowFilter:
    """A filter of a scan, and which of the scan's columns it needs. It can be pickled."""

    def __init__(self, expression: pc.Expression, columns: pa.Schema) -> None:
        self.expression = expression
        self._columns = columns

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self._columns.names)

    def rows(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Whether each row is kept; never null. ``batch`` has at least these columns.

        Raises InvalidOption: the expression cannot be evaluated for these values.
        """
        if len(self._columns):
            batch = batch.select([*self._columns.names])
        try:
            return evaluate(self.expression, batch).fill_null(False)
        except pa.ArrowException as error:
            raise InvalidOption(f"the filter {self.expression} fails: {error}") from error

    def can_match(self, known: Sequence[Known]) -> list[bool]:
        """For each set of rows, whether the known facts allow that the filter keeps one of them."""
        floats = [f.name for f in self._columns if types.is_floating(f.type)]
        guarantees: list[pc.Expression] = []
        owners: list[int] = []
        for number, bounds in enumerate(known):
            for guarantee in self._guarantees(bounds, floats):
                owners.append(number)
                guarantees.append(guarantee)
        try:
            satisfiable = _satisfiable(self.expression, self._columns, guarantees)
        except pa.ArrowException:  # the values will fail too, or no existing row does
            return [True] * len(known)
        matching = {owners[at] for at in satisfiable}
        return [number in matching for number in range(len(known))]

    def _guarantees(self, known: Known, floats: Sequence[str]) -> Iterable[pc.Expression]:
        """The facts as expressions of which at least one is true for each row."""
        useful = {name: bounds for name, bounds in known.items() if name in self._columns.names}
        # Statistics ignore NaN, which is neither less nor greater than anything.
        unsure = [name for name in floats if name in useful]
        if len(unsure) > _MOST_FLOATS:
            useful = {name: bounds for name, bounds in useful.items() if name not in unsure}
            unsure = []
        for nans in product((False, True), repeat=len(unsure)):
            is_nan = {name for name, nan in zip(unsure, nans, strict=True) if nan}
            terms = [
                term
                for name, bounds in useful.items()
                for term in (
                    [pc.field(name) == pa.scalar(math.nan, self._columns.field(name).type)]
                    if name in is_nan
                    else _terms(name, bounds)
                )
            ]
            yield reduce(and_, terms) if terms else pc.scalar(True)


def _terms(name: str, bounds: ValueRange) -> list[pc.Expression]:
    field = pc.field(name)
    if bounds.null_count is not None and bounds.null_count == bounds.count:
        return [field.is_null()]
    if bounds.least is None or bounds.most is None:
        return []
    terms = [field >= bounds.least, field <= bounds.most]
    if bounds.null_count == 0:
        return terms
    return [term | field.is_null() for term in terms]


def parse_filter(
    expression: object, columns: Sequence[str], field: Callable[[str], pa.Field]
) -> RowFilter:
    """Check a user's filter over the columns of a scan, and find out which of them it needs.

    Raises InvalidOption: it is no such expression, or needs another column, or fits no type.
    """
    if not isinstance(expression, pc.Expression):
        raise InvalidOption(
            "filter must be an expression of pyarrow, such as "
            f"pyarrow.compute.field('month') == 1, not {type(expression).__name__}"
        )
    try:
        expression.__reduce__()
    except pa.ArrowNotImplementedError:
        raise InvalidOption(
            f"the filter {expression} names a column by its number: name it by its name"
        ) from None
    everything = [field(name) for name in columns]
    error = _problem(expression, everything)
    if error is not None:
        raise InvalidOption(
            f"the filter {expression} does not fit the columns {', '.join(columns)}: {error}"
        )
    # Usually those whose names occur in it: then the others need not be tried.
    written = str(expression)
    named = [field for field in everything if field.name in written]
    some = named if _problem(expression, named) is None else everything
    # One that needs none gets one all the same: a table without columns has no rows.
    needed = pa.schema(_needed(expression, some, []) or everything[:1])
    null = pa.RecordBatch.from_arrays([pa.nulls(1, f.type) for f in needed], names=needed.names)
    try:
        kind = evaluate(expression, null).type
    except pa.ArrowException as error:
        raise InvalidOption(f"the filter {expression} fails: {error}") from error
    if not types.is_boolean(kind):
        raise InvalidOption(f"the filter {expression} is {kind}, neither true nor false")
    return RowFilter(expression, needed)


def _needed(
    expression: pc.Expression, fields: Sequence[pa.Field], others: Sequence[pa.Field]
) -> list[pa.Field]:
    """The fields that the expression needs, found by trial, since it does not list them.

    It is tried without half of them, and so on.
    """
    if not fields or _problem(expression, others) is None:
        return []
    if len(fields) == 1:
        return [*fields]
    half = len(fields) // 2
    first, second = fields[:half], fields[half:]
    found = _needed(expression, first, [*second, *others])
    return [*found, *_needed(expression, second, [*found, *others])]


def _problem(expression: pc.Expression, fields: Sequence[pa.Field]) -> str | None:
    """Why the expression cannot be bound to these columns; None if it can."""
    try:
        _satisfiable(expression, pa.schema(fields), [pc.scalar(True)])
    except (pa.ArrowException, NotImplementedError, TypeError) as error:
        return str(error).splitlines()[0]
    return None


def _satisfiable(
    expression: pc.Expression, columns: pa.Schema, guarantees: Sequence[pc.Expression]
) -> list[int]:
    """The numbers of the guarantees that the expression does not contradict.

    Arrow decides this for files of a dataset; these are never opened, and their names are numbers.
    """
    nowhere, file_format = LocalFileSystem(), dataset.ParquetFileFormat()
    fragments = [
        file_format.make_fragment(str(number), nowhere, partition_expression=guarantee)
        for number, guarantee in enumerate(guarantees)
    ]
    files = dataset.FileSystemDataset(fragments, columns, file_format, nowhere)
    return [int(found.path) for found in files.get_fragments(filter=expression)]
