"""Prints records as fields, or by a template."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txnlog.cli.input.record_options import Encoding
from txnlog.cli.output.record_fields import Record, record_fields
from txnlog.cli.output.record_template import Template
from txnlog.cli.output.streams import write_bytes

if TYPE_CHECKING:
    from txnlog.cli.output.output import Output


@dataclass(frozen=True, slots=True)
class RecordPrinter:
    """``--encoding`` and ``--format``, which overrides the former."""

    encoding: Encoding
    template: Template | None

    @classmethod
    def of(cls, encoding: Encoding, template: str | None) -> RecordPrinter:
        """The printer for the options. Raises BadParameter."""
        if template is None:
            return cls(encoding, None)
        # A terminal would obey control characters in a record; a pipe gets the bytes.
        return cls(encoding, Template(template, raw=not sys.stdout.isatty()))

    def print(self, output: Output, records: Iterable[Record], *, live: bool = False) -> None:
        """Print records as they arrive."""
        if self.template is None:
            output.rows(record_fields(self.encoding), records, streamed=True, live=live)
            return
        for record in records:
            write_bytes(self.template.render(record))
