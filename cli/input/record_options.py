"""Options of the verbs of ``txnlog records`` that read: which records, and how to show them."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from txnlog.cli.input.places import Range, parse_place, parse_range, parse_time


class Isolation(str, Enum):
    """Kafka's isolation levels, and one that files allow: docs/ISOLATION.md."""

    COMMITTED = "read_committed"
    SNAPSHOT = "snapshot"
    UNCOMMITTED = "read_uncommitted"


class Encoding(str, Enum):
    """How bytes are shown: as text if they are UTF-8, or always in one of these."""

    TEXT = "text"
    HEX = "hex"
    BASE64 = "base64"


IsolationOption = Annotated[
    Isolation,
    typer.Option(
        "--isolation-level",
        help="snapshot leaves only what is undecided out; read_uncommitted shows all.",
    ),
]
EncodingOption = Annotated[
    Encoding,
    typer.Option("--encoding", help="Keys, values and headers as text, hex or base64."),
]
RangeOption = Annotated[
    str | None,
    typer.Option(
        "--offset",
        metavar="RANGE",
        help="As kcat and rpk: start, -10, +10, 42:50, @TIME:TIME, @-1h.",
    ),
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="PLACE", help="Where to begin: earliest (the default), latest, 42, @TIME."
    ),
]
ToOption = Annotated[
    str | None,
    typer.Option(
        "--to", metavar="PLACE", help="Where to end, latest if left out; that offset is not read."
    ),
]
AsOfOption = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="MOMENT",
        help="The topic as it was at @TIME, or where a snapshot's token says.",
    ),
]
TemplateOption = Annotated[
    str | None,
    typer.Option(
        "--format", metavar="TEMPLATE", help="Print this of each record: %t %p %o %k %v %h %d, \\n."
    ),
]
ShortTemplateOption = Annotated[str | None, typer.Option("-f", hidden=True)]
"""kcat's option, for verbs that cannot follow; hidden in help, because tail has another."""
MaxRecordsOption = Annotated[
    int, typer.Option("-n", "--max-records", "--max", min=0, help="At most this many.")
]
ToFileOption = Annotated[
    Path | None,
    typer.Option("--to-file", metavar="PATH", help="Into a new .parquet, .arrow or .csv file."),
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        "--columns", metavar="COLUMN,...", help="Only these, in files, Parquet, CSV and Arrow."
    ),
]
EscapeFormulasOption = Annotated[
    bool,
    typer.Option(
        "--escape-formulas",
        help="For CSV: an apostrophe before what spreadsheets take for a formula.",
    ),
]
LatestOption = Annotated[
    bool, typer.Option("--latest", help="Only the newest record of each key; no tombstones.")
]
SkipDamagedOption = Annotated[
    bool,
    typer.Option("--skip-damaged", help="Pass damaged records, and say how many. Not an error."),
]


def join_range(offset: str | None, from_: str | None, to: str | None) -> Range:
    """The range of ``--offset``, or else of ``--from`` and ``--to``. Raises BadParameter."""
    if offset is None:
        return Range(parse_place(from_ or "earliest"), parse_place(to or "latest"))
    if from_ is not None or to is not None:
        raise typer.BadParameter("--offset says both ends: leave --from and --to out")
    return parse_range(offset)


def parse_moment(as_of: str | None) -> int | str | None:
    """The moment of ``--as-of``, in the library's form. Raises BadParameter."""
    if as_of is None or not as_of.startswith("@"):
        return as_of
    return parse_time(as_of).timestamp_ms
