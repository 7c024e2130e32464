"""Schemas of a registry: what one is, where they come from, and the limits of all of them.

A schema is somebody else's text. Nothing of it is executed, and no name in it is looked up but in
the source that it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias, runtime_checkable

from txnlog.errors import InvalidOption, InvalidSchema, UnknownSchema

SchemaType: TypeAlias = Literal["AVRO", "PROTOBUF", "JSON"]
SCHEMA_TYPES: Final[tuple[SchemaType, ...]] = ("AVRO", "PROTOBUF", "JSON")
MOST_SCHEMA_BYTES: Final = 1 << 20
"""Of the text of one schema."""
MOST_REFERENCES: Final = 64
"""Of one schema, those of its references included."""
MOST_REFERENCED_BYTES: Final = 4 << 20
"""Of the texts of these references together."""
MOST_TOGETHER_BYTES: Final = 64 << 20
"""Of the schemas that one reader keeps, and what each refers to; with more it begins again."""
MOST_NODES: Final = 4096
"""Columns, nested ones and types that are named again included: as a typed topic may have."""
MOST_DEPTH: Final = 16
"""Of types in each other: as a typed topic may have."""


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """A schema that another one uses: by the name it has there, and where it is registered."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema with its id.

    ``text`` is JSON of Avro or JSON Schema; of Protobuf a .proto, or base64 of a descriptor.

    ``subject`` and ``version`` are None where only the id was asked for.
    """

    id: int
    schema_type: SchemaType
    text: str = field(repr=False)
    references: tuple[SchemaReference, ...] = ()
    subject: str | None = None
    version: int | None = None


@runtime_checkable
class Schemas(Protocol):
    """Where schemas come from: a registry, a folder of files, a store's own topic."""

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """The schema with an id. Raises UnknownSchema."""
        ...

    def version(self, subject: str, version: int | None = None) -> RegisteredSchema:
        """A version of a subject; None: the newest. Raises UnknownSchema."""
        ...


@runtime_checkable
class PinnableSchemas(Schemas, Protocol):
    """Schemas that can be taken as they are at one time, in a form that can be pickled."""

    def pinned(self) -> Schemas:
        """Those of now: each later answer is the one that would be given now, or an error."""
        ...


def check_schema_type(text: object) -> SchemaType:
    """A type as it is written, in any case. Raises InvalidOption."""
    for known in SCHEMA_TYPES:
        if isinstance(text, str) and text.upper() == known:
            return known
    raise InvalidOption(f"the format of values is {text!r:.60}; it is avro, protobuf or json")


def check_text(text: str) -> str:
    """The text of a schema, if it is not too long. Raises InvalidSchema."""
    if len(text) > MOST_SCHEMA_BYTES:
        raise InvalidSchema(f"a schema has {len(text)} characters; at most {MOST_SCHEMA_BYTES}")
    return text


def with_references(schemas: Schemas, schema: RegisteredSchema) -> Sequence[tuple[str, str]]:
    """The names and texts of what a schema refers to, each behind what it needs itself.

    Each name is there once: it is what the schema itself means by it, else what is met first.

    Raises UnknownSchema: one is not there. InvalidSchema: there are too many, or a circle.
    """
    found: dict[tuple[str, int], tuple[str, str]] = {}
    named = {one.name: (one.subject, one.version) for one in reversed(schema.references)}
    asked = size = 0

    def walk(one: RegisteredSchema, above: tuple[tuple[str, int], ...]) -> Iterator[None]:
        nonlocal asked, size
        for reference in one.references:
            where = named.setdefault(reference.name, (reference.subject, reference.version))
            if where in found:
                continue
            asked += 1
            if where in above or asked > MOST_REFERENCES or len(above) > MOST_DEPTH:
                raise InvalidSchema(
                    f"schema {schema.id} refers to more than {MOST_REFERENCES} others, or in a "
                    f"circle: {reference.name!r:.200}"
                )
            try:
                used = schemas.version(*where)
            except UnknownSchema as error:
                raise UnknownSchema(f"schema {schema.id} refers to one: {error}") from error
            size += len(used.text)
            if size > MOST_REFERENCED_BYTES:
                raise InvalidSchema(
                    f"schema {schema.id} refers to more than {MOST_REFERENCED_BYTES} characters"
                )
            yield from walk(used, (*above, where))
            found[where] = (reference.name, used.text)

    for _ in walk(schema, ()):
        pass
    return [*found.values()]
