"""What all pages share: the store, the templates, what a look has cost."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse

from txnlog.errors import TxnlogError
from txnlog.standby.standby_storage import find_shown
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store
from txnlog.ui.access import Access
from txnlog.ui.rendering import make_environment

COSTLY = frozenset({"examine", "lag"})
"""What in a URL asks for much of the storage: a live page asks for it seldom."""


class Rates:
    """How fast things grow, told by what they were when they were looked at before."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def measure(self, name: str, now_s: float, value: int) -> float | None:
        """Growth a second since the last look; None at the first one."""
        with self._lock:
            before = self._seen.get(name)
            if before is None or now_s - before[0] >= 1:
                self._seen[name] = (now_s, value)
        if before is None or now_s <= before[0]:
            return None
        return max(value - before[1], 0) / (now_s - before[0])


def named_in(request: Request, parameter: str) -> str:
    """The id that an address names, as ``rendering.address_of`` writes it."""
    named: str = request.query_params.get("id") or request.path_params[parameter]
    return named


@dataclass(frozen=True, slots=True)
class Console:
    """The store that is shown, and how."""

    store: Store
    requests: CountingStorage
    access: Access
    allows_changes: bool
    templates: Environment = field(default_factory=make_environment)
    rates: Rates = field(default_factory=Rates)

    @property
    def is_standby(self) -> bool:
        """Whether all pages show what the store's source had at the newest round."""
        return find_shown(self.store.storage) is not None

    def page(
        self, request: Request, template: str, content: Mapping[str, object], *, status: int = 200
    ) -> HTMLResponse:
        """A page; every one says what it has cost."""
        shown = self.templates.get_template(template).render(
            **content,
            console=self,
            costly=not COSTLY.isdisjoint(request.query_params),
            path=request.url.path,
            url=quote,
            costs=self.requests.take(),
        )
        return HTMLResponse(shown.encode(errors="backslashreplace"), status)  # half surrogates

    def failure(self, request: Request, error: Exception) -> HTMLResponse:
        """A page that says what has failed."""
        return self.page(
            request,
            "failure.html",
            {"title": "Not shown", "kind": type(error).__name__, "message": str(error)},
            status=400 if isinstance(error, TxnlogError) else 500,
        )
