"""A schema registry's HTTP API: Confluent's, which Apicurio, Karapace and Redpanda speak too.

What it answers is somebody else's: sizes have limits, redirections are not followed, and nothing
but ids, subjects and versions is ever sent. Credentials are sent to the given address alone, and
are in no message.
"""

from __future__ import annotations

import base64
from http.client import HTTPException, IncompleteRead
from typing import Annotated, Any, Final
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import msgspec

from txnlog.errors import InvalidOption, InvalidSchema, StorageError, UnknownSchema
from txnlog.limits import AnyNumber, Counter, LongName
from txnlog.values.schemas import (
    MOST_SCHEMA_BYTES,
    RegisteredSchema,
    SchemaReference,
    check_schema_type,
    check_text,
)

_MOST_BYTES: Final = 4 * MOST_SCHEMA_BYTES
"""Of one answer: each character of a schema may be escaped."""
_MOST_TIMEOUT_S: Final = 600


class _Reference(msgspec.Struct, frozen=True):
    name: LongName
    subject: LongName
    version: Counter


class _Answer(msgspec.Struct, frozen=True):
    schema: Annotated[str, msgspec.Meta(max_length=_MOST_BYTES)]
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
        url: where its API is: of Apicurio with ``/apis/ccompat/v7``. It may have a name and a
            password, which are sent as ``user_info``.
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
        self._url, found = _split(url)
        user_info = user_info or found
        if user_info is not None and token is not None:
            raise InvalidOption(f"{self._url}: give a user_info or a token, not both")
        if not 0 < timeout_s <= _MOST_TIMEOUT_S:
            raise InvalidOption(f"timeout_s is {timeout_s!r:.60}; it is above 0, and up to 600")
        self._timeout_s = timeout_s
        self._authorization = None
        if user_info is not None:
            self._authorization = f"Basic {base64.b64encode(user_info.encode()).decode()}"
        elif token is not None:
            self._authorization = f"Bearer {token}"
        if self._authorization is not None and not self._authorization.isprintable():
            raise InvalidOption(f"{self._url}: credentials have a line's end, or the like")
        self._ids: dict[int, RegisteredSchema] = {}
        self._versions: dict[tuple[str, int], RegisteredSchema] = {}

    def __repr__(self) -> str:
        return f"SchemaRegistry({self._url!r})"

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """The schema with an id.

        Raises:
            UnknownSchema: the registry has none.
            StorageError: the registry cannot be reached, or refuses to answer.
            InvalidSchema: its answer is none.
        """
        if schema_id not in self._ids:
            answer = self._get(f"schemas/ids/{schema_id}", f"no schema with id {schema_id}")
            self._ids[schema_id] = self._schema(answer, schema_id, None, None)
        return self._ids[schema_id]

    def version(self, subject: str, version: int | None = None) -> RegisteredSchema:
        """A version of a subject; None: the newest, which is asked for each time.

        Raises what :meth:`by_id` does.
        """
        if version is not None and (subject, version) in self._versions:
            return self._versions[subject, version]
        shown = "latest" if version is None else version
        answer = self._get(
            f"subjects/{quote(subject, safe='')}/versions/{shown}",
            f"no version {shown} of subject {subject!r:.200}",
        )
        found = self._schema(answer, answer.id, subject, answer.version)
        if found.version is not None:
            self._versions[subject, found.version] = found
        self._ids.setdefault(found.id, found)
        return found

    def _schema(
        self, answer: _Answer, schema_id: int, subject: str | None, version: int | None
    ) -> RegisteredSchema:
        try:
            kind = check_schema_type(answer.schemaType or "AVRO")
        except InvalidOption as error:
            raise InvalidSchema(f"schema {schema_id} of {self._url}: {error}") from error
        references = tuple(
            SchemaReference(one.name, one.subject, one.version) for one in answer.references or ()
        )
        text = check_text(answer.schema)
        return RegisteredSchema(schema_id, kind, text, references, subject, version)

    def _get(self, path: str, missing: str) -> _Answer:
        # A descriptor instead of a .proto, from those that can: it need not be compiled. Other
        # kinds of schemas come as they are.
        request = Request(f"{self._url}/{path}?format=serialized")  # noqa: S310 - http or https
        request.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
        if self._authorization is not None:
            # Not one that a redirection would take along.
            request.add_unredirected_header("Authorization", self._authorization)
        try:
            with build_opener(_NoRedirection()).open(request, timeout=self._timeout_s) as found:
                data: bytes = found.read(_MOST_BYTES + 1)
                if found.length and len(data) <= _MOST_BYTES:
                    raise IncompleteRead(data, found.length)
        except HTTPError as error:
            with error:
                code = error.code
            if code == 404:
                raise UnknownSchema(f"the registry {self._url} has {missing}") from None
            hint = ": give its credentials" if code in (401, 403) else ""
            raise StorageError(f"the registry {self._url} answered {code}{hint}") from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise StorageError(
                f"the registry {self._url} cannot be reached: {reason!s:.200}"
            ) from error
        if len(data) > _MOST_BYTES:
            raise InvalidSchema(f"{self._url} answered more than {_MOST_BYTES} bytes for {path}")
        try:
            return _ANSWERS.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise InvalidSchema(f"{self._url} answered no schema for {path}: {error}") from error


class _NoRedirection(HTTPRedirectHandler):
    """Whoever redirects says where a request goes: that is for the user alone to say."""

    def redirect_request(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - urllib's own
        return None


def _split(url: object) -> tuple[str, str | None]:
    """An address without credentials, and these. Raises InvalidOption, which does not show it."""
    if not isinstance(url, str):
        raise InvalidOption(f"a registry's URL is a text, not {type(url).__name__}")
    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        raise InvalidOption("a registry's URL is not valid") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise InvalidOption("a registry's URL is http:// or https://, a host, and a path at most")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    plain = urlunsplit((parts.scheme, host + port, parts.path.rstrip("/"), "", ""))
    if parts.username is None:
        return plain, None
    return plain, f"{unquote(parts.username)}:{unquote(parts.password or '')}"
