"""Filters of records: ``--key``, ``--grep`` and ``--where``, all of which must match."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.errors import InvalidOption

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from txnlog.read.conditions import Condition
    from txnlog.schema import TopicSchema

FindKeyOption = Annotated[
    str | None,
    typer.Option("-k", "--key", metavar="KEY", help="Only with this key."),
]
GrepOption = Annotated[
    str | None,
    typer.Option(
        "-g", "--grep", metavar="REGEX", help="Only where this is found in the key or the value."
    ),
]
WhereOption = Annotated[
    list[str] | None,
    typer.Option(
        "-w",
        "--where",
        metavar="CONDITION",
        help="Only where this holds of JSON, as value.id=7; may be repeated.",
    ),
]


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """The filter of records.

    ``of_scan`` is for the scan that reads them; ``conditions`` are checked on its results.
    """

    of_scan: pc.Expression | None
    conditions: Sequence[Condition]

    @classmethod
    def of(cls, key: str | None, grep: str | None, where: Sequence[str] | None) -> RecordFilter:
        """The filter of the options. Raises BadParameter."""
        from txnlog.read.conditions import key_and_text_filter, parse_condition

        encoded = None if key is None else key.encode(errors="surrogateescape")
        option = "--grep"
        try:
            of_scan = key_and_text_filter(encoded, grep)
            option = "--where"
            return cls(of_scan, [parse_condition(text) for text in where or ()])
        except InvalidOption as error:
            raise typer.BadParameter(f"{option} {error}") from error

    def __bool__(self) -> bool:
        return self.of_scan is not None or bool(self.conditions)

    def keep(
        self, batches: Iterable[pa.RecordBatch], schema: TopicSchema | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of each batch of the scan that meet all conditions.

        With a ``schema`` these are the columns of a typed topic, all of them, which ``of_scan`` was
        not used for: keys and values are made of them to look into.
        """
        if schema is not None and self:
            return (self._keep_typed(batch, schema) for batch in batches)
        if not self.conditions:
            return iter(batches)
        from txnlog.read.conditions import keep_matching

        return (keep_matching(batch, self.conditions) for batch in batches)

    def _keep_typed(self, batch: pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:
        import numpy as np
        import pyarrow as pa

        from txnlog.read.conditions import keep_matching
        from txnlog.read.json_records import json_keys, json_values

        shown = pa.record_batch(
            {
                "key": json_keys(batch, schema, batch.num_rows),
                "value": json_values(batch, schema),
                "row": pa.array(np.arange(batch.num_rows)),
            }
        )
        if self.of_scan is not None:
            shown = shown.filter(self.of_scan)
        return batch.take(keep_matching(shown, self.conditions).column("row"))
