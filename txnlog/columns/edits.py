"""Single changes of columns, as they are typed, applied to whatever a topic has then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from txnlog.errors import InvalidSchema


@dataclass(frozen=True, slots=True)
class ColumnEdits:
    """Columns to add, to drop, to give other types, and such as may be null from now on."""

    add: pa.Schema = field(default_factory=lambda: pa.schema([]))
    drop: Sequence[str] = ()
    types: pa.Schema = field(default_factory=lambda: pa.schema([]))
    nullable: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(len(self.add) or self.drop or len(self.types) or self.nullable)

    def __call__(self, columns: pa.Schema) -> pa.Schema:
        """The columns afterwards. Raises InvalidSchema: one is unknown, or there already."""
        named = [*self.drop, *self.types.names, *self.nullable]
        for name in named:
            if name not in columns.names:
                raise InvalidSchema(
                    f"there is no column {name!r}; there are {', '.join(columns.names)}"
                )
        for name in self.add.names:
            if name in columns.names:
                raise InvalidSchema(f"there is a column {name!r} already")
        wider = {one.name: one.type for one in self.types}
        changed = [
            pa.field(
                one.name,
                wider.get(one.name, one.type),
                one.nullable or one.name in self.nullable,
            )
            for one in columns
            if one.name not in self.drop
        ]
        return pa.schema([*changed, *self.add])
