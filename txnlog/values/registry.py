"""A schema registry's HTTP API: Confluent's, which Apicurio, Karapace and Redpanda speak too."""

from __future__ import annotations

from typing import Annotated, Final, Protocol
from urllib.parse import quote

import msgspec

from txnlog.errors import InvalidOption, InvalidSchema
from txnlog.limits import AnyNumber, Counter, LongName
from txnlog.values.apicurio import ApicurioApi
from txnlog.values.registry_http import MOST_ANSWER_BYTES, RegistryHttp
from txnlog.values.schemas import (
    RegisteredSchema,
    SchemaReference,
    check_schema_type,
    check_text,
)


class _Reference(msgspec.Struct, frozen=True):
    name: LongName
    subject: LongName
    version: Counter


class _Answer(msgspec.Struct, frozen=True):
    schema: Annotated[str, msgspec.Meta(max_length=MOST_ANSWER_BYTES)]
    schemaType: LongName | None = None  # noqa: N815 - Confluent's name
    references: Annotated[tuple[_Reference, ...], AnyNumber] | None = None
    id: Counter = 0
    version: Counter | None = None


_ANSWERS: Final = msgspec.json.Decoder(_Answer)


class SchemaRegistry:
    """Schemas of a registry, each asked for once.

        schemas = SchemaRegistry("https://registry.example", user_info="key:secret")
        reader = ValueReader(schemas, "avro", subject="orders-value")

    Args:
        url: where its API is: of Apicurio with ``/apis/ccompat/v7``, which is Confluent's, or with
            ``/apis/registry/v2``, its own, where ids are global ids as its serializers write them.
            It may have a name and a password, which are sent as ``user_info``.
        user_info: ``name:password``, for basic authentication.
        token: for bearer authentication, instead.
        timeout_s: how long an answer may take.

    Raises:
        InvalidOption: an argument is not valid.
    """

    def __init__(
        self,
        url: str,
        *,
        user_info: str | None = None,
        token: str | None = None,
        timeout_s: float = 10,
    ) -> None:
        http = RegistryHttp(url, user_info=user_info, token=token, timeout_s=timeout_s)
        self._url = http.url
        self._api: _Api = ApicurioApi.of(http) or _ConfluentApi(http)
        self._ids: dict[int, RegisteredSchema] = {}
        self._versions: dict[tuple[str, int], RegisteredSchema] = {}

    def __repr__(self) -> str:
        return f"SchemaRegistry({self._url!r})"

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """The schema with an id.

        Raises:
            UnknownSchema: the registry has none.
            StorageError: the registry cannot be reached, refuses to answer, or another does.
            InvalidSchema: what it has is none.
        """
        if schema_id not in self._ids:
            self._ids[schema_id] = self._api.by_id(schema_id)
        return self._ids[schema_id]

    def version(self, subject: str, version: int | None = None) -> RegisteredSchema:
        """A version of a subject; None: the newest, which is asked for each time.

        Raises what :meth:`by_id` does.
        """
        if version is not None and (subject, version) in self._versions:
            return self._versions[subject, version]
        found = self._api.version(subject, version)
        if found.version is not None:
            self._versions[subject, found.version] = found
        self._ids.setdefault(found.id, found)
        return found


class _Api(Protocol):
    """What a registry is asked."""

    def by_id(self, schema_id: int) -> RegisteredSchema: ...

    def version(self, subject: str, version: int | None) -> RegisteredSchema: ...


class _ConfluentApi:
    def __init__(self, http: RegistryHttp) -> None:
        self._http = http

    def by_id(self, schema_id: int) -> RegisteredSchema:
        answer = self._ask(f"schemas/ids/{schema_id}", f"no schema with id {schema_id}")
        return self._schema(answer, schema_id, None, None)

    def version(self, subject: str, version: int | None) -> RegisteredSchema:
        shown = "latest" if version is None else version
        answer = self._ask(
            f"subjects/{quote(subject, safe='')}/versions/{shown}",
            f"no version {shown} of subject {subject!r:.200}",
        )
        return self._schema(answer, answer.id, subject, answer.version)

    def _schema(
        self, answer: _Answer, schema_id: int, subject: str | None, version: int | None
    ) -> RegisteredSchema:
        try:
            kind = check_schema_type(answer.schemaType or "AVRO")
        except InvalidOption as error:
            raise InvalidSchema(f"schema {schema_id} of {self._http.url}: {error}") from error
        references = tuple(
            SchemaReference(one.name, one.subject, one.version) for one in answer.references or ()
        )
        text = check_text(answer.schema)
        return RegisteredSchema(schema_id, kind, text, references, subject, version)

    def _ask(self, path: str, missing: str) -> _Answer:
        # A descriptor instead of a .proto, from those that can: it need not be compiled. Other
        # kinds of schemas come as they are.
        address = f"{self._http.url}/{path}?format=serialized"
        return self._http.ask(address, missing, _ANSWERS)
