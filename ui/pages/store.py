"""The store itself: its settings, what the doctor finds in it, what maintenance would do."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from txnlog.config import store_settings
from txnlog.store import Store
from txnlog.ui.console import Console
from txnlog.ui.jobs import Job
from txnlog.ui.render import show_size

_MAINTAIN: Final = "maintain"


def show_store(console: Console, request: Request) -> Response:
    """The store and its settings; with ``examine`` in the URL all logs are read and judged."""
    store = console.store
    return console.page(
        request,
        "store.html",
        {
            "title": "Store",
            "is_replicated": store.storage.kind() == "replicated",
            "reached": store.storage.as_of(),
            "now_ms": store.logs.clock.now_ms(),
            "settings": store_settings(store.config),
            "examination": console.ask_job(request, "examine", _examine),
            "changes": console.changes.newest(),
        },
    )


def _examine(store: Store, job: Job) -> None:
    for finding in store.examine(with_probe=False):
        job.keep(finding.state, finding, shows=finding.state != "ok")
        job.reach(f"{finding.check} {finding.subject}".strip())


def tell(step: object) -> str:
    """What a step of maintenance says of itself, as far as it is known before it is done."""
    assert is_dataclass(step)
    said = []
    for field in fields(step):
        value = getattr(step, field.name)
        if value is None or value == ():
            continue
        if field.name.endswith("_bytes"):
            said.append(f"{field.name.removesuffix('_bytes')} {show_size(value)}")
        else:
            said.append(f"{field.name.replace('_', ' ')} {value}")
    return ", ".join(said)


def plan_maintenance(console: Console, request: Request) -> Response:
    """What ``txnlog maintain`` would do now; planned when ``plan`` is in the URL."""
    last = console.jobs.newest(_MAINTAIN)
    jobs = {
        "planned": console.ask_job(request, "plan", partial(_go_through, dry_run=True)),
        "maintained": None if last is None else last.progress(),
    }
    content = {
        "title": "Maintenance",
        **jobs,
        "steps": {
            name: [] if job is None else [(kind, tell(step)) for kind, step in job.shown]
            for name, job in jobs.items()
        },
        "following": _following(console),
        "now_ms": console.store.logs.clock.now_ms(),
    }
    return console.page(request, "maintenance.html", content)


def maintain(console: Console, request: Request, form: dict[str, str]) -> Response:
    """Begin maintenance in a job, and show its page. A form that is sent twice begins one job."""
    number = form.get("number", "")
    if console.begin_job(_MAINTAIN, number, partial(_go_through, dry_run=False)):
        console.log_change(request, "began to maintain the store")
    return RedirectResponse("/store/maintenance", status_code=303)


def _following(console: Console) -> int:
    newest = console.jobs.newest(_MAINTAIN)
    return 1 if newest is None else newest.number + 1


def _go_through(store: Store, job: Job, *, dry_run: bool) -> None:
    from txnlog.admin.maintenance import Maintenance

    for part in Maintenance(store.logs, None, None, dry_run=dry_run).parts():
        of_topic = f" of topic {part.topic}, {part.done} of {part.of} topics are done"
        job.reach(f"{part.part}{of_topic if part.topic is not None else ''}")
        for step in part.steps:
            job.keep(type(step).__name__, step)
