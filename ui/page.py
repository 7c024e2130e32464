"""Long lists, a page at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from starlette.requests import Request

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list. ``previous`` and ``next`` are the numbers of the pages beside it."""

    items: Sequence[T]
    number: int
    count: int

    @property
    def previous(self) -> int | None:
        """The page before; None if this is the first."""
        return self.number - 1 if self.number > 1 else None

    @property
    def next(self) -> int | None:
        """The next page's number; None on the last one."""
        return self.number + 1 if self.number < self.count else None


def page_of(request: Request, items: Sequence[T], *, size: int = 50) -> Page[T]:
    """The part of a list that the URL asks for with ``page``; the nearest one that there is."""
    count = max(-(-len(items) // size), 1)
    asked = request.query_params.get("page", "1")
    number = min(max(int(asked) if asked.isdecimal() and len(asked) < 10 else 1, 1), count)
    return Page(items[(number - 1) * size : number * size], number, count)
