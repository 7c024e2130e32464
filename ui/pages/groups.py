"""Consumer groups: where they are, how far behind, and how they got there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from txnlog.errors import TxnlogError
from txnlog.inspect.history import GroupLogEntry
from txnlog.ui.console import Console
from txnlog.ui.paging import page_of

_PICTURE_WIDTH = 1000
_PICTURE_HEIGHT = 160
_MOST_LINES = 12
_SHOWN_ENTRIES = 500


@dataclass(frozen=True, slots=True)
class Curve:
    """A group's committed offset in one partition over its commits, as points of an SVG line.

    One point is there twice: a line to itself, which shows as a dot.
    """

    name: str
    points: str
    newest: int
    is_line: bool = True


def list_groups(console: Console, request: Request) -> Response:
    """Groups with their lag."""
    wanted = request.query_params.get("find", "").strip()
    found = console.store.describe_groups()
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
    """A group: its offsets and lag, and its commits as far back as its log reaches."""
    group_id = request.path_params["group_id"]
    group = console.store.describe_group(group_id)
    history = [
        entry
        for entry in console.store.group_history(group_id)
        if not isinstance(entry, TxnlogError)
    ][-_SHOWN_ENTRIES:]
    return console.page(
        request,
        "group.html",
        {
            "title": group_id,
            "group": group,
            "history": history[::-1],
            "curves": draw_curves(history),
            "width": _PICTURE_WIDTH,
            "height": _PICTURE_HEIGHT,
        },
    )


def draw_curves(history: Sequence[GroupLogEntry]) -> list[Curve]:
    """How committed offsets grew, commit by commit; aborted ones moved nothing."""
    counted = [entry for entry in history if entry.marker != "abort"]
    places: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for position, entry in enumerate(counted):
        for moved in entry.offsets:
            if moved.offset is not None:
                at = (moved.topic, moved.partition)
                places.setdefault(at, []).append((position, moved.offset))
    chosen = sorted(places.items())[:_MOST_LINES]
    most = max((offset for _, points in chosen for _, offset in points), default=0) or 1
    step = _PICTURE_WIDTH / max(len(counted) - 1, 1)
    return [
        Curve(
            f"{topic}:{partition}",
            " ".join(
                f"{position * step:.1f},{_PICTURE_HEIGHT - offset * _PICTURE_HEIGHT / most:.1f}"
                for position, offset in (points if len(points) > 1 else points * 2)
            ),
            points[-1][1],
            len(points) > 1,
        )
        for (topic, partition), points in chosen
    ]
