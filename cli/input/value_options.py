"""Options for values that carry the id of a schema: which format, and where schemas come from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from txnlog.store import Store
    from txnlog.values import Schemas, ValueReader


USER_INFO_VARIABLE: Final = "TXNLOG_REGISTRY_USER_INFO"
"""``name:password`` for the registry that the command names."""


class ValueFormat(str, Enum):
    """The formats of values in a registry's framing."""

    AVRO = "avro"
    PROTOBUF = "protobuf"
    JSON = "json"


_Format = Annotated[
    ValueFormat | None,
    typer.Option(
        "--value-format",
        help="Values begin with the id of a schema of this kind: show their fields.",
    ),
]
_Subject = Annotated[
    str | None,
    typer.Option(
        "--value-subject",
        metavar="SUBJECT[:VERSION]",
        help="Whose fields are shown; TOPIC-value if left out.",
    ),
]
_Message = Annotated[
    str | None,
    typer.Option(
        "--value-message",
        metavar="NAME",
        help="Of a .proto the message whose fields are shown; the first if left out.",
    ),
]
_Registry = Annotated[
    str | None,
    typer.Option(
        "--registry",
        metavar="URL|FOLDER",
        help="Where schemas are; else in the store's topic _schemas.",
    ),
]
_IdBytes = Annotated[int, typer.Option("--id-bytes", metavar="4|8", help="How long ids are.")]

VALUE_OPTIONS: Final = [
    Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    for name, default, annotation in (
        ("value_format", None, _Format),
        ("value_subject", None, _Subject),
        ("value_message", None, _Message),
        ("registry", None, _Registry),
        ("id_bytes", 4, _IdBytes),
    )
]
"""What typer reads in place of a verb's parameter ``values``, which gets a ValueChoice."""


@dataclass(frozen=True, slots=True)
class ValueChoice:
    """What the options say about decoding values."""

    value_format: ValueFormat
    subject: str | None
    message: str | None
    registry: str | None
    id_bytes: int

    @classmethod
    def of(
        cls,
        value_format: ValueFormat | None,
        value_subject: str | None,
        value_message: str | None,
        registry: str | None,
        id_bytes: int,
    ) -> ValueChoice | None:
        """The choice that the options make; None without a format. Raises BadParameter."""
        if value_format is None:
            if (value_subject, value_message, registry, id_bytes) != (None, None, None, 4):
                raise typer.BadParameter(
                    "--value-subject, --value-message, --registry and --id-bytes need "
                    "--value-format"
                )
            return None
        return cls(value_format, value_subject, value_message, registry, id_bytes)

    def open(self, store: Store, topic: str) -> ValueReader:
        """Find the schema. Raises what :class:`txnlog.values.ValueReader` does."""
        from txnlog.values import ValueReader

        subject, version = parse_subject(self.subject or f"{topic}-value")
        return ValueReader(
            open_schemas(store, self.registry),
            self.value_format.value,
            subject=subject,
            version=version,
            message=self.message,
            id_bytes=self.id_bytes,
        )


def parse_subject(text: str) -> tuple[str, int | None]:
    """``SUBJECT`` or ``SUBJECT:VERSION``: its name, and the version or None for the newest."""
    name, _, version = text.rpartition(":")
    return (name, int(version)) if name and version.isdecimal() else (text, None)


def open_schemas(store: Store, registry: str | None) -> Schemas:
    """The schemas of a registry, of a folder, or of the store itself. Raises InvalidOption."""
    if registry is None:
        return store.schemas
    from txnlog.values import SchemaFolder, SchemaRegistry

    if "://" in registry:
        return SchemaRegistry(registry, user_info=os.environ.get(USER_INFO_VARIABLE))
    return SchemaFolder(registry)
