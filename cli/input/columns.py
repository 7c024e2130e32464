"""Columns of typed topics, as they are typed: words, or a file that has or describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.assignments import parse_pair
from txnlog.errors import InvalidSchema

if TYPE_CHECKING:
    import pyarrow as pa

    from txnlog.columns.schema_words import WrittenColumns

DefaultOption = Annotated[
    list[str] | None,
    typer.Option(
        "--default",
        metavar="COLUMN=VALUE",
        help="Of records sent without the column; may be repeated.",
    ),
]


def parse_schema(text: str) -> WrittenColumns:
    """Columns in words; without a space it is the name of a file. Raises BadParameter."""
    from txnlog.columns.schema_files import read_columns
    from txnlog.columns.schema_words import parse_columns

    try:
        is_path = len(text.split()) == 1 or Path(text).is_file()
        return read_columns(Path(text)) if is_path else parse_columns(text)
    except InvalidSchema as error:
        raise typer.BadParameter(f"--schema: {error}") from error


def parse_columns_of(option: str, texts: Sequence[str]) -> WrittenColumns:
    """The columns of an option that may be repeated. Raises BadParameter."""
    import pyarrow as pa

    from txnlog.columns.schema_words import WrittenColumns, parse_columns

    fields: list[pa.Field] = []
    defaults: dict[str, pa.Scalar] = {}
    for text in texts:
        try:
            found = parse_columns(text)
        except InvalidSchema as error:
            raise typer.BadParameter(f"{option}: {error}") from error
        fields += found.columns
        defaults.update(found.defaults)
    return WrittenColumns(pa.schema(fields), defaults)


def parse_defaults(texts: Sequence[str], columns: pa.Schema) -> Mapping[str, pa.Scalar]:
    """Values of ``--default``, by column. Raises BadParameter."""
    from txnlog.columns.schema_words import parse_default

    parsed = {}
    for text in texts:
        name, value = parse_pair("--default", text, "COLUMN=VALUE")
        if name not in columns.names:
            known = ", ".join(columns.names)
            raise typer.BadParameter(f"--default: there is no column {name!r}; there are {known}")
        try:
            parsed[name] = parse_default(value, columns.field(name))
        except InvalidSchema as error:
            raise typer.BadParameter(f"--default: {error}") from error
    return parsed


def split_names(texts: Sequence[str]) -> list[str]:
    """Names that are separated by commas, or in options of their own."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]
