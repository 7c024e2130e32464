"""Apicurio's own HTTP API, version 2: its serializers' ids are global ids, one of each version.

By Confluent's API it finds schemas by the ids of their content instead, which several versions
share. An id of one kind is often one of the other, too: of another schema.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final
from urllib.parse import quote, unquote

import msgspec

from txnlog.errors import InvalidOption, InvalidSchema, StorageError, UnknownSchema
from txnlog.limits import AnyNumber, Counter, LongName
from txnlog.values.registry_http import RegistryHttp
from txnlog.values.schemas import (
    RegisteredSchema,
    SchemaReference,
    check_schema_type,
    check_text,
)

_DEFAULT: Final = "default"
_URL: Final = re.compile(r"(.*/apis/registry/v2)(?:/groups/([^/]+))?")


class _Found(msgspec.Struct, frozen=True):
    type: LongName


class _Search(msgspec.Struct, frozen=True):
    artifacts: Annotated[tuple[_Found, ...], AnyNumber]


class _Meta(msgspec.Struct, frozen=True):
    globalId: Counter  # noqa: N815 - Apicurio's name
    type: LongName
    version: LongName


class _Reference(msgspec.Struct, frozen=True):
    name: LongName
    artifactId: LongName  # noqa: N815 - Apicurio's name
    groupId: LongName | None = None  # noqa: N815 - Apicurio's name
    version: LongName | None = None


_SEARCHES: Final = msgspec.json.Decoder(_Search)
_METAS: Final = msgspec.json.Decoder(_Meta)
_REFERENCES: Final = msgspec.json.Decoder(Annotated[tuple[_Reference, ...], AnyNumber])


class ApicurioApi:
    """Schemas of one group; ids are those of all groups."""

    def __init__(self, http: RegistryHttp, base: str, group: str) -> None:
        self._http = http
        self._base = base
        self._group = group

    @classmethod
    def of(cls, http: RegistryHttp) -> ApicurioApi | None:
        """The API at a URL; None if it has another one."""
        match = _URL.fullmatch(http.url)
        return None if match is None else cls(http, match[1], unquote(match[2] or _DEFAULT))

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """See :meth:`SchemaRegistry.by_id`."""
        missing = f"no schema with the global id {schema_id}"
        found = self._ask(f"search/artifacts?globalId={schema_id}", missing, _SEARCHES)
        if not found.artifacts:
            raise UnknownSchema(f"the registry {self._http.url} has {missing}")
        return self._schema(schema_id, found.artifacts[0].type, None, None)

    def version(self, subject: str, version: int | None) -> RegisteredSchema:
        """See :meth:`SchemaRegistry.version`."""
        path = f"groups/{quote(self._group, safe='')}/artifacts/{quote(subject, safe='')}"
        path += "/meta" if version is None else f"/versions/{version}/meta"
        shown = "latest" if version is None else version
        missing = f"no version {shown} of artifact {subject!r:.200} in group {self._group!r:.200}"
        meta = self._ask(path, missing, _METAS)
        return self._schema(meta.globalId, meta.type, subject, _number(meta.version))

    def _schema(
        self, schema_id: int, kind: str, subject: str | None, version: int | None
    ) -> RegisteredSchema:
        missing = f"no schema with the global id {schema_id}"
        path = f"ids/globalIds/{schema_id}"
        try:
            checked = check_schema_type(kind)
            text = check_text(self._http.get(f"{self._base}/{path}", missing).decode())
        except (InvalidOption, UnicodeDecodeError) as error:
            raise InvalidSchema(f"schema {schema_id} of {self._http.url}: {error}") from error
        if text.lstrip()[:1] in ("", "<"):
            raise StorageError(f"{self._base}/{path} answered no schema, but a page or nothing")
        found = self._ask(f"{path}/references", missing, _REFERENCES)
        references = tuple(map(self._reference, found))
        return RegisteredSchema(schema_id, checked, text, references, subject, version)

    def _reference(self, one: _Reference) -> SchemaReference:
        version = _number(one.version)
        if version is None or (one.groupId or _DEFAULT) != self._group:
            raise InvalidSchema(
                f"{one.name!r:.200} is version {one.version!r:.60} of an artifact in group "
                f"{one.groupId!r:.200}: only versions that are numbers, in the group of the "
                "registry's URL, are followed"
            )
        return SchemaReference(one.name, one.artifactId, version)

    def _ask(self, path: str, missing: str, decoder: msgspec.json.Decoder[Any]) -> Any:  # noqa: ANN401
        return self._http.ask(f"{self._base}/{path}", missing, decoder)


def _number(version: str | None) -> int | None:
    """A version as a number, if it is one: it is a text of any kind there."""
    known = version is not None and re.fullmatch("[0-9]{1,9}", version) is not None
    return int(version) if known and version is not None else None
