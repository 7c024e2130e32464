"""Consumer groups: where they are, how far behind, and how they got there."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from txnlog.errors import TxnlogError
from txnlog.ui.console import Console, named_in
from txnlog.ui.lag_curves import PICTURE_HEIGHT, PICTURE_WIDTH, draw_lags
from txnlog.ui.page import page_of

_SHOWN_ENTRIES = 500


def list_groups(console: Console, request: Request) -> Response:
    """Groups with their lag."""
    wanted = request.query_params.get("find", "").strip()
    found = [*console.store.groups.describe_all().with_errors()]
    known = [item for item in found if not isinstance(item, TxnlogError)]
    shown = [item for item in known if wanted.lower() in item.group_id.lower()]
    return console.page(
        request,
        "groups.html",
        {
            "title": "Groups",
            "paged": page_of(request, shown),
            "errors": [item for item in found if isinstance(item, TxnlogError)],
            "find": wanted,
        },
    )


def show_group(console: Console, request: Request) -> Response:
    """A group: its offsets, lag and members, and its commits as far back as its log reaches."""
    group_id = named_in(request, "group_id")
    store = console.store
    group = store.groups.describe(group_id)
    found = [*store.groups.history(group_id, newest=_SHOWN_ENTRIES).with_errors()]
    history = [entry for entry in found if not isinstance(entry, TxnlogError)]
    now_ms = store.logs.clock.now_ms()
    return console.page(
        request,
        "group.html",
        {
            "title": group_id,
            "group": group,
            "history": history[::-1],
            "errors": [entry for entry in found if isinstance(entry, TxnlogError)],
            "lags": draw_lags(store.logs, group.offsets, history, now_ms),
            "now_ms": now_ms,
            "width": PICTURE_WIDTH,
            "height": PICTURE_HEIGHT,
        },
    )
