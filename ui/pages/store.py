"""The store itself: where it is, how it is set, and what the doctor finds."""

from __future__ import annotations

from collections import Counter

from starlette.requests import Request
from starlette.responses import Response

from txnlog.config import store_settings
from txnlog.doctor.finding import Finding
from txnlog.ui.console import Console

_SHOWN_FINDINGS = 200


def show_store(console: Console, request: Request) -> Response:
    """Settings; with ``examine`` in the URL the store is examined, which reads all logs."""
    findings: list[Finding] = []
    counts: Counter[str] = Counter()
    examined = "examine" in request.query_params
    if examined:
        for finding in console.store.examine(with_probe=False):
            counts[finding.state] += 1
            if finding.state != "ok" and len(findings) < _SHOWN_FINDINGS:
                findings.append(finding)
    return console.page(
        request,
        "store.html",
        {
            "title": "Store",
            "settings": store_settings(console.store.config),
            "examined": examined,
            "findings": findings,
            "counts": counts,
        },
    )


def plan_maintenance(console: Console, request: Request) -> Response:
    """What ``txnlog maintain`` would do now."""
    planned = console.store.maintain(dry_run=True)
    return console.page(
        request,
        "maintenance.html",
        {
            "title": "Maintenance",
            "planned": [(type(step).__name__, str(step)) for step in planned[:_SHOWN_FINDINGS]],
            "count": len(planned),
        },
    )
