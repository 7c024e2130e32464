"""The names of columns in a topic's files, each written under the schema of its time.

For engines that find columns by name; our own readers go by ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
from pyarrow import types

from txnlog.schema import TopicSchema
from txnlog.segments.schema_columns import children, id_of, with_children


@dataclass(frozen=True, slots=True, eq=False)  # a field of Arrow's cannot be compared with None
class FileLayout:
    """The columns of a schema as files of an earlier one have them.

    ``columns`` are those of the schema, in its order and of its types, under their names in the
    files, nested fields too; None for a column that the files lack. A nested field that they lack
    has an unused name. ``is_plain``: reading the files by the schema's own names finds the same.
    """

    columns: tuple[pa.Field | None, ...]
    is_plain: bool


@lru_cache(maxsize=256)
def file_layout(schema: TopicSchema, version: int) -> FileLayout | None:
    """The columns' layout in files of the schema with this number; None: it is newer.

    Number 0 may have been any of several schemas, under which no name was used twice.
    """
    if version > schema.version:
        return None
    names = _Names(schema, version)
    columns = tuple(names.find(field, 0) for field in schema.columns)
    return FileLayout(columns, names.are_plain)


def has_become(before: TopicSchema, now: TopicSchema) -> bool:
    """Whether a topic's schema was changed; a recreated topic's was not."""
    newest_ids = (*now.earlier, now.newest_id)
    if before == now:
        return True
    if before.version >= now.version or newest_ids[: before.version + 1] != (
        *before.earlier,
        before.newest_id,
    ):
        return False

    names: dict[int | None, str] = {}
    for former in now.former:
        if former.until >= before.version:
            names.setdefault(former.id, former.name)
    for field in now.columns:
        names.setdefault(id_of(field), field.name)
    return all(names.get(id_of(field)) == field.name for field in before.columns)


class _Names:
    """The names of one earlier schema, and whether all that was looked up is plain."""

    def __init__(self, schema: TopicSchema, version: int) -> None:
        self.are_plain = True
        self._newest_id = [*schema.earlier, schema.newest_id][version]
        self._names: dict[int, str] = {}
        self._gone: dict[int, set[str]] = {}
        for former in schema.former:
            if former.until >= version:
                self._names.setdefault(former.id, former.name)
                self._gone.setdefault(former.parent, set()).add(former.name.casefold())

    def find(self, field: pa.Field, parent: int) -> pa.Field | None:
        number = id_of(field)
        assert number is not None
        if number > self._newest_id:
            self.are_plain &= field.name.casefold() not in self._gone.get(parent, ())
            return None
        name = self._names.get(number, field.name)
        self.are_plain &= name == field.name
        inner = [self.find(child, number) for child in children(field.type)]
        if types.is_struct(field.type):
            taken = {child.name.casefold() for child in inner if child is not None}
            taken.update(self._gone.get(number, ()))
            inner = [
                of_schema.with_name(_absent(of_schema.name, taken)) if child is None else child
                for of_schema, child in zip(children(field.type), inner, strict=True)
            ]
        return field.with_name(name).with_type(with_children(field.type, inner))


def _absent(name: str, taken: set[str]) -> str:
    """An unused name, which is then taken."""
    while name.casefold() in taken:
        name += "_"
    taken.add(name.casefold())
    return name
