"""``txnlog metrics``: a store as numbers, for Prometheus or a program."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from txnlog.cli.input.options import Format
from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.escape import escape_controls
from txnlog.cli.output.fields import Field, text
from txnlog.cli.output.streams import write
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.results import Metric


FIELDS: list[Field[Metric]] = [
    text("name", "NAME", lambda metric: metric.name),
    Field(
        "labels", "LABELS", lambda metric: dict(metric.labels), lambda metric: str(metric.labels)
    ),
    Field("value", "VALUE", lambda metric: metric.value, lambda metric: str(metric.value)),
]


def print_metrics(session: Session) -> None:
    """Print offsets, sizes, lags and transactions for Prometheus.

    For the textfile collector of node_exporter, or a job that pushes: no port is opened. It costs
    a listing for each topic, group and transactional id. What cannot be read is reported on
    stderr and counted; the rest is there all the same.

    \b
    Example:
      txnlog metrics > txnlog.prom.tmp; mv txnlog.prom.tmp txnlog.prom
    """
    from txnlog.admin.metrics import to_prometheus

    with DamageReporter() as reporter:
        found = reporter.skip_unreadable(session.open_to_read().metrics().with_errors())
        if session.output_format is not Format.TABLE:
            session.output.rows(FIELDS, found)
            return
        # A program takes labels as they are; a terminal would obey what stands in them.
        shows = escape_controls if sys.stdout.isatty() else str
        for line in to_prometheus(found):
            write(shows(line) + "\n")
