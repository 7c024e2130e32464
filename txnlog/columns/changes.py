"""How a topic's schema may change, so that all records stay readable under the new one.

Columns are distinguished by ids. A compatibility mode refuses some of the other changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from txnlog.columns.checks import Ids, check_columns, with_defaults
from txnlog.errors import InvalidSchema
from txnlog.schema import FormerName, TopicSchema, encode_columns, without_ids
from txnlog.segments.schema_columns import DEFAULT, children, default_as_text, default_of, id_of

_ANY_CHANGE: Final = "NONE"
_FOR_OLDER_READERS: Final = ("FORWARD", "FULL")


def evolve(
    known: TopicSchema,
    columns: object = None,
    rename: Mapping[str, str] | None = None,
    defaults: Mapping[str, object] | None = None,
    *,
    compatibility: str = "BACKWARD",
) -> TopicSchema:
    """The schema that a topic has from now on; older records are read under it.

    ``columns``: a ``pyarrow.Schema``, all columns from now on; None: the existing ones. Or a
    function that makes it of these, which have their new names. ``rename``: new names of columns by
    their names so far; ``columns`` has the new ones. ``defaults``: values of new columns, see
    :func:`make_schema`; older records have them too. ``compatibility``: see docs/TYPED.md. Returns
    ``known`` itself if nothing changes.

    Raises InvalidSchema: older records could not be read, or the mode refuses it.
    """
    before = known.columns
    renamed = _check_rename(before, rename)
    if columns is None or callable(columns):
        named = [f.with_name(renamed.get(f.name, f.name)) for f in before]
        columns = columns(pa.schema(map(without_ids, named))) if columns else pa.schema(named)
    wanted = check_columns(columns, Ids(known.newest_id))
    names = frozenset(wanted.names)
    for name in renamed.values():
        if name not in names:
            raise InvalidSchema(
                f"rename gives a column the name {name!r}, but the new schema has no such column"
            )
    key = tuple(renamed.get(name, name) for name in known.key)
    wanted = with_defaults(wanted, defaults, key)
    change = _Change(known, compatibility, key)
    fields = change.fields(list(before), list(wanted), 0, "", renamed)
    after = pa.schema(fields)
    if after.equals(before, check_metadata=True):
        return known
    return TopicSchema(
        encode_columns(after),
        key,
        max(known.newest_id, *map(_largest_id, fields)),
        (*known.earlier, known.newest_id),
        (*known.former, *change.former),
    )


def _check_rename(before: pa.Schema, rename: object) -> dict[str, str]:
    """Without unchanged names. Raises InvalidSchema."""
    if rename is None:
        return {}
    if not isinstance(rename, Mapping):
        raise InvalidSchema(f"rename must be a mapping of names to new names, not {rename!r}")
    names = frozenset(before.names)
    for name, new in rename.items():
        if name not in names:
            inside = str(name).partition(".")[0] in names
            raise InvalidSchema(
                f"there is no column {name!r} to rename; there are {', '.join(before.names)}"
                + ("; fields of structs keep their names" if inside else "")
            )
        if not isinstance(new, str):
            raise InvalidSchema(f"{new!r} cannot be the name of a column")
    if len({*rename.values()}) < len(rename):
        raise InvalidSchema("two columns cannot be given the same name")
    return {name: new for name, new in rename.items() if name != new}


@dataclass(frozen=True, slots=True)
class _Old:
    """An existing field; ``name`` is its name from now on."""

    field: pa.Field
    id: int
    name: str


class _Change:
    """One change of a schema. ``former`` collects names that are no longer in use."""

    def __init__(self, known: TopicSchema, compatibility: str, key: Sequence[str]) -> None:
        self.former: list[FormerName] = []
        self._known = known
        self._mode = compatibility
        self._key = frozenset(key)

    def fields(
        self,
        before: Sequence[pa.Field],
        after: Sequence[pa.Field],
        parent: int,
        path: str,
        renamed: Mapping[str, str],
    ) -> list[pa.Field]:
        """The new columns, or fields of one struct."""
        old = [_Old(f, _id_of(f), renamed.get(f.name, f.name)) for f in before]
        stays = {one.name: one for one in old}
        taken = self._taken_names(old, parent)
        kept: set[int] = set()
        made = []
        for field in after:
            where = f"{path}{field.name}"
            one = stays.get(field.name)
            changed = None if one is None else self._changed(one, field, where, is_top=not parent)
            if one is None or changed is None:
                self._check_new(field, taken, where, is_top=not parent)
                made.append(field)
                continue
            if one.field.name != field.name:
                self._check_renamed(one, taken)
                self._note(one, parent)
            kept.add(one.id)
            made.append(changed)
        for one in old:
            if one.id not in kept:
                self._check_dropped(one, f"{path}{one.field.name}", is_top=not parent)
                self._note(one, parent)
        return made

    def _taken_names(self, old: Sequence[_Old], parent: int) -> dict[str, set[int]]:
        """Names that fields of a struct have or had, with the field's id."""
        taken: dict[str, set[int]] = {}
        for one in old:
            taken.setdefault(one.field.name.casefold(), set()).add(one.id)
        for former in self._known.former:
            if former.parent == parent:
                taken.setdefault(former.name.casefold(), set()).add(former.id)
        return taken

    def _note(self, one: _Old, parent: int) -> None:
        self.former.append(FormerName(one.id, parent, one.field.name, self._known.version))

    def _check_new(
        self, field: pa.Field, taken: Mapping[str, object], where: str, *, is_top: bool
    ) -> None:
        if field.name.casefold() in taken and self._mode != _ANY_CHANGE:
            raise _name_refusal(where)
        if not field.nullable and not (is_top and _has_default(field)):
            remedy = "be nullable, or have a default" if is_top else "be nullable"
            raise InvalidSchema(
                f"column {where!r} is new, so older records have none: it must {remedy}"
            )

    def _check_renamed(self, one: _Old, taken: Mapping[str, set[int]]) -> None:
        self._refuse_for_older_readers(f"column {one.field.name!r} cannot become {one.name!r}")
        if taken.get(one.name.casefold(), set()) - {one.id} and self._mode != _ANY_CHANGE:
            raise _name_refusal(one.name)

    def _check_dropped(self, one: _Old, where: str, *, is_top: bool) -> None:
        if is_top and one.name in self._key:
            raise InvalidSchema(f"column {where!r} is part of the key and cannot be dropped")
        if not one.field.nullable and not _has_default(one.field):
            self._refuse_for_older_readers(f"column {where!r} cannot be dropped")

    def _refuse_for_older_readers(self, what: str) -> None:
        if self._mode in _FOR_OLDER_READERS:
            raise InvalidSchema(
                f"{what} under schema.compatibility={self._mode}: programs that know the present "
                "schema could not read what is written from now on"
            )

    def _changed(self, one: _Old, after: pa.Field, where: str, *, is_top: bool) -> pa.Field | None:
        """The new form of a field that stays, with its id; None: another takes its name."""
        is_key = is_top and one.name in self._key
        nullable = after.nullable and not is_key
        if one.field.nullable and not nullable:
            raise InvalidSchema(f"column {where!r} may be null in older records: it stays nullable")
        if nullable and not one.field.nullable:
            self._refuse_for_older_readers(f"column {where!r} cannot become nullable")

        kind = self._changed_type(one.field, after, where)
        if kind is None:
            if self._mode == _ANY_CHANGE and not is_key:
                return None
            raise InvalidSchema(
                f"column {where!r} is {without_ids(one.field).type}, and cannot become "
                f"{without_ids(after).type}: only wider integers, floats, and decimals of the same "
                "scale; add another column"
            )
        if _default_text(after) not in (None, _default_text(one.field)):
            raise InvalidSchema(
                f"column {where!r} exists already, and older records are read with the default "
                "that it has, which cannot change"
            )
        return pa.field(after.name, kind, nullable, _metadata(one.field, kind))

    def _changed_type(self, before: pa.Field, after: pa.Field, where: str) -> Any:  # noqa: ANN401
        """The type of a field that stays; None: its values do not fit the new type."""
        old, new = before.type, after.type
        if types.is_struct(old) and types.is_struct(new):
            inner = self.fields(children(old), children(new), _id_of(before), f"{where}.", {})
            return pa.struct(inner)
        if types.is_list(old) and types.is_list(new):
            element = self._changed_item(old.value_field, new.value_field, where)
            return None if element is None else pa.list_(element)
        if types.is_map(old) and types.is_map(new):
            if without_ids(old.key_field) != without_ids(new.key_field):
                return None
            item = self._changed_item(old.item_field, new.item_field, where)
            return None if item is None else pa.map_(old.key_field, item)
        if old == new:
            return old
        if not _is_wider(old, new):
            return None
        self._refuse_for_older_readers(f"column {where!r} cannot become {new}")
        return new

    def _changed_item(self, before: pa.Field, after: pa.Field, where: str) -> pa.Field | None:
        """The element of a list, or the value of a map."""
        where = f"{where}.{before.name}"
        if before.nullable and not after.nullable:
            raise InvalidSchema(f"column {where!r} may be null in older records: it stays nullable")
        if after.nullable and not before.nullable:
            self._refuse_for_older_readers(f"column {where!r} cannot become nullable")
        kind = self._changed_type(before, after, where)
        return None if kind is None else before.with_type(kind).with_nullable(after.nullable)


def _name_refusal(name: str) -> InvalidSchema:
    return InvalidSchema(
        f"there was a column {name!r}, whose values would show in it to those who find "
        "columns by their names: choose another name, or set schema.compatibility=NONE"
    )


def _is_wider(before: Any, after: Any) -> bool:  # noqa: ANN401

    if types.is_decimal(before) and types.is_decimal(after):
        return bool(before.scale == after.scale and before.precision <= after.precision)
    integers = types.is_integer(before) and types.is_integer(after)
    floats = types.is_floating(before) and types.is_floating(after)
    return bool((integers or floats) and before.bit_width <= after.bit_width)


def changed_names(before: TopicSchema, after: TopicSchema) -> frozenset[str]:
    """The names of columns so far that mean another one now, or whose columns have other ones."""
    ids = {field.name: _id_of(field) for field in after.columns}
    names = {number: name for name, number in ids.items()}
    known = ((field.name, _id_of(field)) for field in before.columns)
    return frozenset(
        name
        for name, number in known
        if names.get(number, name) != name or ids.get(name, number) != number
    )


def _id_of(field: pa.Field) -> int:
    number = id_of(field)
    assert number is not None
    return number


def _largest_id(field: pa.Field) -> int:
    return max(_id_of(field), *map(_largest_id, children(field.type)), 0)


def _default_text(field: pa.Field) -> bytes | None:
    text: bytes | None = field.metadata.get(DEFAULT)
    return text


def _metadata(field: pa.Field, kind: pa.DataType) -> dict[bytes, bytes]:
    """Of a field that gets a wider type: its default stays the same number.

    The text of a float is the shortest that means it, and means another as a double.
    """
    metadata: dict[bytes, bytes] = field.metadata
    default = default_of(field)
    if default is None or field.type == kind:
        return metadata
    return {**metadata, DEFAULT: default_as_text(default.cast(kind))}


def _has_default(field: pa.Field) -> bool:
    return _default_text(field) is not None
