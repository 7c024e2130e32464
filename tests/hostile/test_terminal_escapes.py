"""A terminal obeys nothing that comes from a store, in whichever place of the output it stands."""

from __future__ import annotations

import sys

import pytest

from txnlog.cli.output.fields import Field
from txnlog.cli.output.tables import TableOutput

HOSTILE = "\x1b]0;owned\x07\x9b2J\u202egpj"
FIELDS: list[Field[str]] = [
    Field(f"key{HOSTILE}", f"TITLE{HOSTILE}", str, lambda item: f"cell{item}"),
    Field("glance", "GLANCE", str, str, glance=lambda item: f"glance{item}"),
]
PARTS = ("TITLE", "heading", "below", "part", "nothing", "unknown")


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("live", [False, True])
def test_every_part_of_the_output_is_escaped(
    terminal: bool, live: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells, titles, headings, lines below, and properties; escaped, not left out."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    output = TableOutput()
    output.rows(FIELDS, [HOSTILE])
    output.rows(
        FIELDS,
        [HOSTILE],
        heading=lambda item: f"heading{item}",
        below=lambda item: [f"below{item}"],
        live=live,
    )
    with output.document() as document:
        document.fields(FIELDS, HOSTILE)
        document.rows("part", f"part{HOSTILE}", FIELDS, [HOSTILE])
        document.rows("none", f"nothing{HOSTILE}", FIELDS, [])
        document.rows("unknown", f"unknown{HOSTILE}", FIELDS, None)
    out = capsys.readouterr().out
    obeyed = {char for char in out if not char.isprintable()} - {"\n"}
    if terminal:  # rich's own, for bold and colours
        obeyed -= {"\x1b"}
        assert "\x1b]" not in out
    assert obeyed == set()
    for part in ("glance" if terminal else "cell", *PARTS):
        assert f"{part}\\x1b]0;owned\\x07\\u009b2J\\u202egpj" in out
