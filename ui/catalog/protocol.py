"""Iceberg's REST catalog protocol, as far as one that only reads is asked: an ASGI application.

https://github.com/apache/iceberg/blob/main/open-api/rest-catalog-open-api.yaml has the protocol.
Of a request nothing but its path, its query and two headers is looked at; bodies are not read.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from txnlog.config import TopicConfig
from txnlog.errors import (
    ConcurrentTransactions,
    CorruptEntry,
    InvalidTopic,
    SnapshotExpired,
    StorageError,
    TxnlogError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from txnlog.inspect.describe import describe_or_error
from txnlog.names import check_topic
from txnlog.store import Store
from txnlog.tables.fresh_table import FreshTables, TableAnswer
from txnlog.ui.access import same_secret

NAMESPACE = "topics"
_ENDPOINTS = (
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "GET /v1/{prefix}/namespaces/{namespace}/views",
    "GET /v1/{prefix}/namespaces/{namespace}/views/{view}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/views/{view}",
)
_TABLE = "/v1/namespaces/{namespace}/tables/{table}"
_VIEW = "/v1/namespaces/{namespace}/views/{view}"
_LATEST = "_latest"
"""What the view of a topic's newest records has behind the topic's name."""
_LARGEST_PAGE = 10_000
_LONGEST_TOKEN = 256
_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}

_logger = logging.getLogger(__name__)
Answer: TypeAlias = Callable[[Request], Response]


class _Refusal(Exception):
    """What is wrong with a request, in the words of the protocol."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


def make_app(store: Store, token: str) -> _Guard:
    """The catalog of a store, for those who show the token."""
    catalog = _Catalog(store)
    namespace = "/v1/namespaces/{namespace}"

    def route(path: str, answer: Answer, *methods: str) -> Route:
        return Route(path, lambda request: _answer(answer, request), methods=[*methods])

    routes = [
        route("/v1/config", catalog.config, "GET"),
        route("/v1/namespaces", catalog.list_namespaces, "GET"),
        route(namespace, catalog.show_namespace, "GET", "HEAD"),
        route(f"{namespace}/tables", catalog.list_tables, "GET"),
        route(_TABLE, catalog.find_table, "HEAD"),
        route(_TABLE, catalog.load_table, "GET"),
        route(f"{namespace}/views", catalog.list_views, "GET"),
        route(_VIEW, catalog.find_view, "HEAD"),
        route(_VIEW, catalog.load_view, "GET"),
        # Reports of engines on their scans, which some make without being asked for.
        route(f"{_TABLE}/metrics", lambda _: Response(status_code=204), "POST"),
    ]
    app = Starlette(routes=routes, exception_handlers={404: _is_unknown, 405: _is_unsupported})
    app.router.redirect_slashes = False
    return _Guard(app, token)


class _Guard:
    """Lets through requests that have the token; answers nothing to others."""

    def __init__(self, app: Starlette, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        request = Request(scope, receive)
        given = request.headers.get("authorization", "")
        if same_secret(given, self._expected):
            await self._app(scope, receive, send_guarded)
            return
        refusal = _error(
            401, "NotAuthorizedException", "give the catalog's token, as a bearer token"
        )
        refusal.headers["www-authenticate"] = "Bearer"
        await refusal(scope, receive, send_guarded)


class _Catalog:
    """Answers by address."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tables = FreshTables(store.logs)

    def config(self, _: Request) -> Response:
        return _json({"defaults": {}, "overrides": {}, "endpoints": _ENDPOINTS})

    def list_namespaces(self, request: Request) -> Response:
        parent = request.query_params.get("parent", "")
        if parent:
            _check_namespace(parent)
            return _json({"namespaces": []})
        return _json({"namespaces": [[NAMESPACE]]})

    def show_namespace(self, request: Request) -> Response:
        _check_namespace(request.path_params["namespace"])
        if request.method == "HEAD":
            return Response(status_code=204)
        return _json({"namespace": [NAMESPACE], "properties": {}})

    def list_tables(self, request: Request) -> Response:
        """The tables of topics whose segments may be Parquet files."""
        return self._list(request, lambda name: name if self._is_table(name) else None)

    def list_views(self, request: Request) -> Response:
        """The views of topics that have a key."""
        return self._list(
            request,
            lambda name: (
                f"{name}{_LATEST}" if describe_or_error(self._may_have_view, name) is True else None
            ),
        )

    def _list(self, request: Request, named: Callable[[str], str | None]) -> Response:
        """Answer with the names that ``named`` gives to topics; None leaves a topic out."""
        _check_namespace(request.path_params["namespace"])
        page, following = _page(request.query_params, self._store.topics.list())
        shown = [name for topic in page if (name := named(topic)) is not None]
        found: dict[str, object] = {
            "identifiers": [{"namespace": [NAMESPACE], "name": name} for name in shown]
        }
        if following is not None:
            found["next-page-token"] = following
        return _json(found)

    def find_table(self, request: Request) -> Response:
        self._table_of(request)
        return Response(status_code=204)

    def load_table(self, request: Request) -> Response:
        answer = self._tables.load(self._table_of(request))
        tag = f'"{answer.tag}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        return Response(_loaded(answer), media_type="application/json", headers={"etag": tag})

    def find_view(self, request: Request) -> Response:
        self._load_view(request)
        return Response(status_code=204)

    def load_view(self, request: Request) -> Response:
        return Response(_loaded(self._load_view(request)), media_type="application/json")

    def _load_view(self, request: Request) -> TableAnswer:
        """The view that a path names. Raises _Refusal: there is none."""
        name = request.path_params["view"]
        topic = name.removesuffix(_LATEST)
        if request.path_params["namespace"] == NAMESPACE and topic != name:
            try:
                is_there = self._may_have_view(check_topic(topic))
            except InvalidTopic:
                is_there = False
            found = self._tables.load_view(topic, NAMESPACE) if is_there else None
            if found is not None:
                return found
        raise _Refusal(404, "NoSuchViewException", f"there is no view {name[:_LONGEST_TOKEN]!r}")

    def _may_have_view(self, topic: str) -> bool:
        """Whether a topic may have a view: no other topic has the view's name."""
        try:
            spec = self._store.logs.topic_spec(topic)
        except UnknownTopicOrPartition:
            return False
        has_key = spec.schema is not None and bool(spec.schema.key)
        return has_key and self._is_table(topic) and not self._is_table(f"{topic}{_LATEST}")

    def _table_of(self, request: Request) -> str:
        """The topic whose table a path names. Raises _Refusal: there is no such table."""
        topic = request.path_params["table"]
        if request.path_params["namespace"] != NAMESPACE:
            # Iceberg's Java library asks so for "topics.orders.files" before it looks for the table
            # of metadata that it means.
            raise _no_table(f"{request.path_params['namespace']}.{topic}"[:_LONGEST_TOKEN])
        try:
            is_table = self._is_table(check_topic(topic))
        except InvalidTopic as error:
            raise _Refusal(404, "NoSuchTableException", f"{error}") from error
        if not is_table:
            raise _no_table(topic)
        return check_topic(topic)

    def _is_table(self, topic: str) -> bool:
        try:
            config = self._store.logs.topic_spec(topic).config
        except (InvalidTopic, UnknownTopicOrPartition):  # with _latest a name may be too long
            return False
        except (CorruptEntry, UnsupportedVersion):  # of what is listed it alone cannot be loaded
            return True
        return TopicConfig.of(config).has_parquet


def _loaded(answer: TableAnswer) -> bytes:
    location = json.dumps(answer.location).encode()
    return b'{"metadata-location":%b,"metadata":%b,"config":{}}' % (location, answer.metadata)


def _answer(answer: Answer, request: Request) -> Response:
    try:
        return answer(request)
    except _Refusal as refusal:
        return _error(refusal.status, refusal.kind, f"{refusal}")
    except UnknownTopicOrPartition as error:
        return _error(404, "NoSuchTableException", f"{error}")
    except (SnapshotExpired, ConcurrentTransactions) as error:
        return _error(503, "ServiceUnavailableException", f"{error}")
    except StorageError as error:
        _logger.warning("%s could not be answered: %s", request.url.path, error)
        return _error(503, "ServiceUnavailableException", f"{error}")
    except TxnlogError as error:
        _logger.warning("%s could not be answered: %s", request.url.path, error)
        return _error(500, type(error).__name__, f"{error}")
    except Exception:  # one answer that cannot be made ends no server
        _logger.exception("%s could not be answered", request.url.path)
        return _error(500, "InternalServerError", "the catalog has failed; its log says more")


def _check_namespace(name: str) -> None:
    if name != NAMESPACE:
        message = f"there is no namespace {name[:_LONGEST_TOKEN]!r}; there is {NAMESPACE!r} alone"
        raise _Refusal(404, "NoSuchNamespaceException", message)


def _page(query: Mapping[str, str], names: Sequence[str]) -> tuple[Sequence[str], str | None]:
    """Those names that a request asks for, and the token of the following ones."""
    token, size = query.get("pageToken"), query.get("pageSize")
    if token is None and size is None:
        return names, None
    if size is not None and not (size.isascii() and size.isdecimal() and len(size) < 10):
        raise _Refusal(400, "BadRequestException", "pageSize is a number from 1 on")
    most = min(int(size or _LARGEST_PAGE), _LARGEST_PAGE)
    if most < 1:
        raise _Refusal(400, "BadRequestException", "pageSize is a number from 1 on")
    first = bisect_right(names, token or "")
    page = names[first : first + most]
    return page, page[-1] if first + most < len(names) else None


def _no_table(topic: str) -> _Refusal:
    return _Refusal(
        404,
        "NoSuchTableException",
        f"there is no topic {topic!r} that is stored in Parquet files (record.format=parquet or "
        "auto)",
    )


async def _is_unknown(request: Request, _: Exception) -> Response:
    if request.method not in ("GET", "HEAD"):
        return await _is_unsupported()
    return _error(404, "NotFoundException", "the catalog has nothing at this address")


async def _is_unsupported(*_: object) -> Response:
    return _error(
        406,
        "UnsupportedOperationException",
        "the catalog is read-only: tables are topics of txnlog, which change by its own writers",
    )


def _error(status: int, kind: str, message: str) -> Response:
    return _json({"error": {"message": message, "type": kind, "code": status}}, status)


def _json(content: object, status: int = 200) -> Response:
    data = json.dumps(content, separators=(",", ":")).encode()
    return Response(data, status, media_type="application/json")
