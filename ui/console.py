"""What all pages share: the store, the templates, what a look has cost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse

from txnlog.errors import TxnlogError
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.ui.access import Access
from txnlog.ui.changes import ChangeLog, Confirmed
from txnlog.ui.jobs import PATIENCE_S, Job, Jobs, Progress
from txnlog.ui.render import make_environment


class GrowthRates:
    """How fast numbers grow, compared with their values at earlier looks."""

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
    rates: GrowthRates = field(default_factory=GrowthRates)
    jobs: Jobs = field(default_factory=Jobs)
    changes: ChangeLog = field(default_factory=ChangeLog)
    confirmed: Confirmed = field(default_factory=Confirmed)

    def log_change(self, request: Request, what: str) -> None:
        """Remember a change, and who has made it."""
        client = request.client.host if request.client else "-"
        self.changes.add(self.store.logs.clock.now_ms(), client, what)

    @property
    def is_standby(self) -> bool:
        """Whether all pages show what the store's source had at the newest round."""
        return self.store.storage.kind() == "standby"

    def ask_job(
        self, request: Request, kind: str, work: Callable[[Store, Job], None]
    ) -> Progress | None:
        """The progress of the job of this kind; begins it if the URL asks for a new one.

        None if there was none. A job has a store of its own, so that its requests do not count as
        those of pages.
        """
        number = request.query_params.get(kind)
        if number is not None:
            self.begin_job(kind, number, work)
        job = self.jobs.newest(kind)
        return None if job is None else job.progress()

    def begin_job(self, kind: str, number: str, work: Callable[[Store, Job], None]) -> bool:
        """Begin a job if ``number`` is the next of its kind; returns whether it was begun.

        Waits a moment for the newest job to end.
        """
        storage = CountingStorage(self.requests.inner)
        clock = self.store.logs.clock
        before = self.jobs.newest(kind)

        def run(job: Job) -> None:
            work(attach(storage, clock=clock), job)

        job = self.jobs.ask(kind, number, clock, storage, run)
        job.wait(PATIENCE_S)
        return job is not before

    def page(
        self, request: Request, template: str, content: Mapping[str, object], *, status: int = 200
    ) -> HTMLResponse:
        """A page from a template; it shows how many requests it took."""
        shown = self.templates.get_template(template).render(
            **content,
            console=self,
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
