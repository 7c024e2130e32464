"""``txnlog records head``: the oldest records."""

from __future__ import annotations

from txnlog.cli.input.options import TargetArgument
from txnlog.cli.input.places import parse_target
from txnlog.cli.input.ranges import EVERYTHING
from txnlog.cli.input.record_options import (
    Encoding,
    EncodingOption,
    Isolation,
    IsolationOption,
    MaxRecordsOption,
    SkipDamagedOption,
    TemplateOption,
)
from txnlog.cli.input.scan_plan import plan_scan
from txnlog.cli.input.value_options import ValueChoice
from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.decoded_text import DecodedText
from txnlog.cli.output.record_fields import read_scanned
from txnlog.cli.output.record_printer import RecordPrinter
from txnlog.cli.session import Session


def head_records(
    session: Session,
    target: TargetArgument,
    max_records: MaxRecordsOption = 10,
    isolation_level: IsolationOption = Isolation.COMMITTED,
    encoding: EncodingOption = Encoding.TEXT,
    template: TemplateOption = None,
    skip_damaged: SkipDamagedOption = False,
    values: ValueChoice | None = None,
) -> None:
    """Show the oldest records of all partitions, by their times.

    Up to this many records of each partition are held in memory: for many use `records read`.
    --value-format shows the fields of values, as it does there.

    \b
    Example:
      txnlog records head orders -n 3
    """
    where, printer = parse_target(target), RecordPrinter.of(encoding, template)
    opened = session.open_to_read()
    snapshot = opened.snapshot([where.topic], isolation_level=isolation_level.value)
    decoded = DecodedText.of(values, opened, where.topic)
    with DamageReporter() as reporter:
        report = reporter.report_records(skip_damaged)
        found = plan_scan(snapshot, where, EVERYTHING).head(max_records, report=report)
        batches = found.to_batches()
        if decoded is not None:
            batches = decoded.texts(batches)
        printer.print(session.output, read_scanned(batches))
    if decoded is not None:
        decoded.summary()
