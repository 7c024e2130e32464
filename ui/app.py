"""The pages under their addresses.

Of a hook ``pages`` the module has ``PAGES``, a function for each address; templates lie beside it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.convertors import IntegerConvertor, StringConvertor, register_url_convertor
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from txnlog.errors import TxnlogError
from txnlog.hooks import registered
from txnlog.ui.access import Guard, TooManyTries, same_secret
from txnlog.ui.console import Console
from txnlog.ui.pages import changes, groups, records, store, topics, transactions

_logger = logging.getLogger(__name__)
_MOST_FORM_BYTES = 256 << 10
_MOST_FIELDS = 100


class _PartitionConvertor(IntegerConvertor):
    """A number that a partition may have; more digits are no page's, and no number of Python's."""

    regex = "[0-9]{1,10}"


class _IdConvertor(StringConvertor):
    """An id of a group or a transaction: whatever stands behind the folder, also several lines."""

    regex = r"(?s:.+)"


register_url_convertor("partition", _PartitionConvertor())
register_url_convertor("anything", _IdConvertor())

Page: TypeAlias = Callable[[Console, Request], Response]
Change: TypeAlias = Callable[[Console, Request, dict[str, str]], Response]


def make_app(console: Console) -> Starlette:
    """The console as an ASGI application; it answers only whom ``console.access`` knows."""

    def page(path: str, show: Page) -> Route:
        def answer(request: Request) -> Response:
            return _answer(console, request, lambda: show(console, request))

        return Route(path, answer, methods=["GET"])

    def change(path: str, do: Change) -> Route:
        async def answer(request: Request) -> Response:
            from starlette.concurrency import run_in_threadpool

            form = await _read_form(request)
            if form is None:
                return PlainTextResponse("The form is too large.\n", 413)
            if not same_secret(form.get("form_token", ""), console.access.form_token):
                return PlainTextResponse("The form is not one of ours: load the page again.\n", 403)
            return await run_in_threadpool(
                _answer, console, request, lambda: do(console, request, form)
            )

        return Route(path, answer, methods=["POST"])

    async def log_in(request: Request) -> Response:
        if console.access.password is None:
            return RedirectResponse("/", status_code=303)
        said, status = "", 200
        if request.method == "POST":
            form = await _read_form(request) or {}
            now_s = console.store.logs.clock.monotonic_s()
            try:
                client = request.client.host if request.client else ""
                if console.access.opens_by_password(form.get("password", ""), client, now_s):
                    return console.access.admit(request, "/")
                said, status = "That is not the password.", 403
            except TooManyTries:
                said, status = (
                    "Too many wrong passwords from your address: try again in a minute.",
                    429,
                )
        return console.page(request, "login.html", {"title": "Log in", "said": said}, status=status)

    routes = [
        page("/", topics.list_topics),
        page("/topics/{topic}", topics.show_topic),
        page("/topics/{topic}/groups", topics.show_readers),
        page("/topics/{topic}/writers", topics.show_writers),
        page("/topics/{topic}/settings", topics.show_settings),
        page("/topics/{topic}/{partition:partition}", topics.show_partition),
        page("/topics/{topic}/records", records.show_records),
        page("/topics/{topic}/records/download", records.take_records),
        page("/transactions", transactions.list_transactions),
        page("/transactions/{transactional_id:anything}", transactions.show_transaction),
        page("/groups", groups.list_groups),
        page("/groups/{group_id:anything}", groups.show_group),
        page("/store", store.show_store),
        page("/store/maintenance", store.plan_maintenance),
        *(page(*one) for hook in registered("pages") for one in hook.PAGES.items()),
        Route("/login", log_in, methods=["GET", "POST"]),
        Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
    ]
    if console.allows_changes:
        routes.insert(0, change("/store/maintenance", store.maintain))
        for kind in changes.KINDS:
            routes.insert(0, page(changes.path_of(kind), changes.show_form(kind)))
            routes.insert(0, change(changes.path_of(kind), changes.answer_form(kind)))
    open_paths = (
        ("/login", "/static/style.css", "/static/icon.svg") if console.access.password else ()
    )
    guard = Middleware(Guard, access=console.access, open_paths=open_paths)
    return Starlette(routes=routes, middleware=[guard])


def _answer(console: Console, request: Request, make: Callable[[], Response]) -> Response:
    try:
        return make()
    except TxnlogError as error:
        return console.failure(request, error)
    except Exception as error:  # a page that cannot be made ends no server
        _logger.exception("%s could not be shown", request.url.path)
        return console.failure(request, error)


async def _read_form(request: Request) -> dict[str, str] | None:
    """The fields of a form that was sent; None if it is too large, or has too many."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _MOST_FORM_BYTES:
            return None
    try:
        text = body.decode(errors="replace")
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:
        return None
