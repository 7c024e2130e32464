"""``txnlog doctor``: is everything in the store as it should be?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Final

import typer

from txnlog.cli.input.options import Format
from txnlog.cli.input.places import parse_duration
from txnlog.cli.output.escape import escape_text
from txnlog.cli.output.fields import Field, number, text
from txnlog.cli.output.streams import FAILURE, HANGING, DamageFound, warn
from txnlog.cli.session import Session
from txnlog.errors import NotEnoughReplicas, OutdatedController

if TYPE_CHECKING:
    from txnlog.doctor.findings import Finding


def _show_detail(finding: Finding) -> str:
    # A reason names its file mostly.
    known = finding.path is None or finding.path in finding.detail
    rule = "" if finding.rule is None else f"{finding.rule}: "
    return escape_text(rule + (finding.detail if known else f"{finding.path}: {finding.detail}"))


FIELDS: list[Field[Finding]] = [
    text("state", "STATE", lambda finding: finding.state),
    text("check", "CHECK", lambda finding: finding.check),
    text("subject", "SUBJECT", lambda finding: finding.subject),
    text("rule", None, lambda finding: finding.rule),
    text("path", None, lambda finding: finding.path),
    number("size_bytes", None, lambda finding: finding.size_bytes),
    Field("detail", "DETAIL", lambda finding: finding.detail, _show_detail),
]


_SEVERITY: Final = ("damage", "unreadable", "hanging", "orphan", "note", "ok")
_VARYING: Final = re.compile(r"[0-9a-f]{16,}|\d+")
_SUBJECTS: Final = 3


@dataclass(slots=True)
class FindingGroup:
    """Findings of one kind, which differ only in their subjects and in numbers."""

    first: Finding
    count: int = 0
    subjects: dict[str, None] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        """Count one more; a few of the things that they are about are kept."""
        self.count += 1
        if len(self.subjects) <= _SUBJECTS:
            self.subjects.setdefault(finding.subject)


def group_findings(findings: Iterable[Finding]) -> list[FindingGroup]:
    """The findings by kind, the worst first. Keeps one of each kind."""
    groups: dict[tuple[str | None, ...], FindingGroup] = {}
    for finding in findings:
        detail = finding.detail
        for name in (finding.path, finding.subject):
            detail = detail.replace(name, "") if name else detail
        kind = (finding.state, finding.check, finding.rule, _VARYING.sub("#", detail))
        groups.setdefault(kind, FindingGroup(finding)).add(finding)
    return sorted(groups.values(), key=lambda group: _SEVERITY.index(group.first.state))


def _show_subjects(group: FindingGroup) -> str:
    shown = [escape_text(subject) for subject in group.subjects][:_SUBJECTS]
    return ", ".join(shown + ["\u2026"] * (len(group.subjects) > _SUBJECTS))


def _show_group(group: FindingGroup) -> str:
    more = f" (and {group.count - 1} more such: --all lists them)" if group.count > 1 else ""
    return _show_detail(group.first) + more


GROUPS: list[Field[FindingGroup]] = [
    text("state", "STATE", lambda group: group.first.state),
    text("check", "CHECK", lambda group: group.first.check),
    number("count", "COUNT", lambda group: group.count),
    text("subject", "SUBJECT", _show_subjects),
    Field("detail", "DETAIL", _show_group, _show_group),
]


def examine_store(
    session: Session,
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC", help="Only these topics."),
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every segment and every index, too.")
    ] = False,
    no_probe: Annotated[
        bool, typer.Option("--no-probe", help="Do not write to the storage to try it out.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="A line for each finding, as they are found.")
    ] = False,
    orphan_age: Annotated[
        str | None,
        typer.Option(
            "--orphan-age",
            metavar="AGE",
            help="When a file that nothing refers to is an orphan, such as 90m or 7d.",
        ),
    ] = None,
) -> None:
    """Check a store: the storage's promises, logs, files, damage.

    Of each kind of finding there is one line, the worst first; --all has a line for each finding,
    as they are found, and so has JSON.

    Reads only, but for the probe, which creates some small files and deletes them; ends no
    transaction; may run while others write. L1, T3 and so on are rules in docs/PROTOCOL.md.
    Orphans, files that nothing refers to, are not damage: they only take up space. One younger than
    --orphan-age (24h unless the store says otherwise) may be an upload that is still running.

    What cannot be read is reported, and the rest is checked. Of a store that cannot be opened since
    its roots fail the roots are examined. Exit code 3 if there is damage, 1 if
    something could not be read, 4 if there are only transactions that hang.

    \b
    Example:
      txnlog doctor
      txnlog doctor orders --deep --no-probe
    """
    age_ms = None if orphan_age is None else parse_duration(orphan_age)
    from txnlog.hooks import registered

    try:
        found = session.open_to_read().examine(
            topics or None, with_probe=not no_probe, with_contents=deep, orphan_age_ms=age_ms
        )
    except (NotEnoughReplicas, OutdatedController) as error:
        url, options = session.named_url(), session.storage_options
        parts = [hook.examine_closed(url, options, error) for hook in registered("doctor")]
        found = chain.from_iterable(parts)
    tally = _Tally()
    if every or session.output_format is not Format.TABLE:
        session.output.rows(FIELDS, tally.count(found), streamed=True)
    else:
        session.output.rows(GROUPS, group_findings(tally.count(found)), streamed=True)
        if tally.has_segments and not deep:
            warn("segments were listed, not read: --deep reads them, too")
    _conclude(tally.states, tally.orphan_bytes)


class _Tally:
    """Counts findings by their state while they pass through."""

    def __init__(self) -> None:
        self.states: Counter[str] = Counter()
        self.orphan_bytes = 0
        self.has_segments = False

    def count(self, findings: Iterable[Finding]) -> Iterator[Finding]:
        for finding in findings:
            self.states[finding.state] += 1
            self.has_segments = self.has_segments or finding.check == "data"
            if finding.state == "orphan":
                self.orphan_bytes += finding.size_bytes or 0
            yield finding


def _conclude(states: Counter[str], orphan_bytes: int) -> None:
    """Sum up what was found, and end the command with the exit code for it."""
    if states["orphan"]:
        warn(f"orphans: {states['orphan']}, which take {orphan_bytes} bytes")
    if states["hanging"]:
        warn(f"hanging transactions: {states['hanging']}; `txnlog txns describe` tells more")
    if states["damage"]:
        warn(f"damage found: {states['damage']}")
    if states["unreadable"]:
        warn(f"not readable, so not checked: {states['unreadable']}; mend that, and run it again")
    if states["damage"]:
        raise DamageFound
    if states["unreadable"]:
        raise typer.Exit(FAILURE)
    if states["hanging"]:
        raise typer.Exit(HANGING)
