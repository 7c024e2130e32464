"""The store itself: where it is, how it is set, and what the doctor finds."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, is_dataclass

from starlette.requests import Request
from starlette.responses import Response

from txnlog.config import store_settings
from txnlog.doctor.finding import Finding
from txnlog.replicas.replicated_storage import find_replicated
from txnlog.ui.console import Console
from txnlog.ui.rendering import show_size

_SHOWN_FINDINGS = 200


def show_store(console: Console, request: Request) -> Response:
    """What it is, and its settings; with ``examine`` in the URL all logs are read and judged."""
    findings: list[Finding] = []
    counts: Counter[str] = Counter()
    examined = "examine" in request.query_params
    if examined:
        for finding in console.store.examine(with_probe=False):
            counts[finding.state] += 1
            if finding.state != "ok" and len(findings) < _SHOWN_FINDINGS:
                findings.append(finding)
    store = console.store
    return console.page(
        request,
        "store.html",
        {
            "title": "Store",
            "is_replicated": find_replicated(store.storage) is not None,
            "reached": store.reached() if console.is_standby else None,
            "now_ms": store.logs.clock.now_ms(),
            "settings": store_settings(store.config),
            "examined": examined,
            "findings": findings,
            "counts": counts,
        },
    )


def show_replicas(console: Console, request: Request) -> Response:
    """The roots of a replicated store; with ``lag`` in the URL what those that are out lack."""
    with_lag = "lag" in request.query_params
    return console.page(
        request,
        "replicas.html",
        {
            "title": "Roots",
            "found": console.store.replicas(with_lag=with_lag),
            "with_lag": with_lag,
        },
    )


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
    """What ``txnlog maintain`` would do now."""
    planned = console.store.maintain(dry_run=True)
    return console.page(
        request,
        "maintenance.html",
        {
            "title": "Maintenance",
            "planned": [(type(step).__name__, tell(step)) for step in planned[:_SHOWN_FINDINGS]],
            "count": len(planned),
        },
    )
