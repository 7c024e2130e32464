"""Columns as they are typed: SQL's words, ``carrier string not null, flight int default 0``.

Types are those of SQL, of Spark, and of Arrow as it prints them, so that what ``topics describe``
shows can be typed again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from txnlog.errors import InvalidSchema
from txnlog.segments.records import CONVERSION_ERRORS

_MAX_DEPTH: Final = 16
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<word>[^\W\d]\w*)
    |(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    |"(?P<quoted>(?:[^"]|"")*)"|`(?P<ticked>(?:[^`]|``)*)`
    |'(?P<text>(?:[^']|'')*)'
    |(?P<sign>\[\]|[<>(),:;=\[\]]))""",
    re.VERBOSE,
)
_MOMENT: Final = pa.timestamp("us", "UTC")
_WALL_CLOCK: Final = pa.timestamp("us")
_PLAIN: Final[Mapping[str, pa.DataType]] = {
    **dict.fromkeys(("boolean", "bool"), pa.bool_()),
    **dict.fromkeys(("tinyint", "byte", "int8"), pa.int8()),
    **dict.fromkeys(("smallint", "short", "int16"), pa.int16()),
    **dict.fromkeys(("int", "integer", "int32"), pa.int32()),
    **dict.fromkeys(("bigint", "long", "int64"), pa.int64()),
    **dict.fromkeys(("float", "real", "float32"), pa.float32()),
    **dict.fromkeys(("double", "float64"), pa.float64()),
    **dict.fromkeys(("string", "text", "varchar", "char", "utf8"), pa.string()),
    **dict.fromkeys(("binary", "varbinary", "bytes", "bytea", "blob"), pa.binary()),
    **dict.fromkeys(("date", "date32"), pa.date32()),
    **dict.fromkeys(("timestamptz", "timestamp_ltz"), _MOMENT),
    "timestamp_ntz": _WALL_CLOCK,
}
_DECIMALS: Final = ("decimal", "numeric", "decimal128")
_KNOWN: Final = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal(p, s), string, binary, date, "
    "timestamptz (a moment, kept in UTC), timestamp_ntz (a date and a time of day, without a "
    "zone), array<type>, struct<name: type>, map<type, type>"
)


@dataclass(frozen=True, slots=True)
class WrittenColumns:
    """Columns, and the defaults of some."""

    columns: pa.Schema
    defaults: Mapping[str, pa.Scalar]


def parse_columns(text: str) -> WrittenColumns:
    """The columns that are written there. Raises InvalidSchema, which says where it stops."""
    return _Parser(text).columns()


def parse_default(text: str, field: pa.Field) -> pa.Scalar:
    """A column's default, as it is typed. Raises InvalidSchema."""
    try:
        return pa.array([text], pa.string()).cast(field.type)[0]
    except CONVERSION_ERRORS as error:
        raise InvalidSchema(
            f"column {field.name!r} is {field.type}, and cannot have the default {text!r:.60}: "
            f"{error}"
        ) from error


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int

    @property
    def word(self) -> str:
        """A word without regard to case; of anything else, what no word is."""
        return self.text.casefold() if self.kind in ("word", "sign") else ""


class _Parser:
    """Reads tokens from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*_split(text)]
        self._next = 0

    def columns(self) -> WrittenColumns:
        fields: list[pa.Field] = []
        defaults: dict[str, pa.Scalar] = {}
        while True:
            field, default = self._column(1)
            fields.append(field)
            if default is not None:
                defaults[field.name] = parse_default(default, field)
            if self._peek().kind == "end":
                return WrittenColumns(pa.schema(fields), defaults)
            self._expect(",", "a comma, or the end")

    def _column(self, depth: int) -> tuple[pa.Field, str | None]:
        name = self._name()
        self._take(":")
        kind = self._type(depth)
        nullable, default, may_be_not_null = True, None, True
        while True:
            if may_be_not_null and self._take("not"):
                self._expect("null", "`null` after `not`")
                nullable = False
            elif self._take("null"):
                pass
            elif depth == 1 and self._take("default"):
                # Null is what a column has that is left out, unless it may not be null.
                may_be_not_null = not (nullable and self._take("null"))
                default = self._literal() if may_be_not_null else None
            else:
                return pa.field(name, kind, nullable), default

    def _type(self, depth: int) -> pa.DataType:
        self._check_depth(depth)
        kind = self._base_type(depth)
        while self._take("[]"):
            depth += 1
            self._check_depth(depth)
            kind = pa.list_(kind)
        return kind

    def _check_depth(self, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise self._refusal(f"types are nested more than {_MAX_DEPTH} levels deep")

    def _base_type(self, depth: int) -> pa.DataType:
        token = self._peek()
        if token.kind != "word":
            raise self._refusal("a type is needed here, as in 'flight bigint'")
        self._next += 1
        if token.word in _PLAIN:
            if token.word in ("varchar", "char") and self._take("("):
                self._number()
                self._expect(")", "`)`")
            if token.word == "double":
                self._take("precision")
            return _PLAIN[token.word]
        if token.word in _DECIMALS:
            self._expect("(", "digits and scale, as in decimal(10, 2)")
            digits = self._number()
            scale = self._number() if self._take(",") else 0
            self._expect(")", "`)`")
            if not 1 <= digits <= 38:
                raise self._refusal(f"a decimal has 1 to 38 digits, not {digits}")
            return pa.decimal128(digits, scale)
        match token.word:
            case "timestamp":
                return self._timestamp()
            case "array" | "list":
                return self._list(depth + 1)
            case "struct":
                return self._struct(depth + 1)
            case "map":
                return self._map(depth + 1)
        self._next -= 1
        raise self._refusal(f"{token.text!r} is not a type; there are {_KNOWN}")

    def _timestamp(self) -> pa.DataType:
        """``timestamp[us, tz=UTC]``, as Arrow prints it, or SQL's words for a zone."""
        if self._take("["):
            unit, zone = self._name(), None
            if unit not in ("s", "ms", "us", "ns"):
                raise self._refusal(f"{unit!r} is not a unit of time: s, ms, us or ns")
            if self._take(","):
                self._expect("tz", "`tz=UTC`")
                self._expect("=", "`tz=UTC`")
                zone = self._name()
            self._expect("]", "`]`")
            return pa.timestamp(unit, zone)
        for words, kind in (("with", _MOMENT), ("without", _WALL_CLOCK)):
            if self._take(words):
                self._expect("time", "`time zone`")
                self._expect("zone", "`time zone`")
                return kind
        self._next -= 1
        raise self._refusal(
            "timestamp has a zone in some engines and none in others: say timestamptz (a moment, "
            "kept in UTC) or timestamp_ntz (a date and a time of day, without a zone)"
        )

    def _list(self, depth: int) -> pa.DataType:
        self._expect("<", "`<`")
        if self._peek(1).word == ":":  # as Arrow prints it
            element, _ = self._column(depth + 1)
        else:
            element = pa.field("element", self._type(depth), self._nullable())
        self._expect(">", "`>`")
        return pa.list_(element)

    def _struct(self, depth: int) -> pa.DataType:
        self._expect("<", "`<`")
        fields = [self._column(depth)[0]]
        while self._take(","):
            fields.append(self._column(depth)[0])
        self._expect(">", "`>` or a comma")
        return pa.struct(fields)

    def _map(self, depth: int) -> pa.DataType:
        self._expect("<", "`<`")
        key = self._type(depth)
        self._expect(",", "a comma")
        item = pa.field("value", self._type(depth), self._nullable())
        self._expect(">", "`>`")
        return pa.map_(pa.field("key", key, nullable=False), item)

    def _nullable(self) -> bool:
        if not self._take("not"):
            return True
        self._expect("null", "`null` after `not`")
        return False

    def _literal(self) -> str:
        token = self._peek()
        # A shell's quotes are often around the single ones that SQL wants.
        taken = token.kind in ("text", "quoted", "number") or token.word in ("true", "false")
        if not taken:
            raise self._refusal("a default is a number, 'text', true or false")
        self._next += 1
        return token.text

    def _name(self) -> str:
        token = self._peek()
        if token.kind not in ("word", "quoted", "ticked"):
            raise self._refusal("a name is needed here; one with odd characters stands in quotes")
        self._next += 1
        return token.text

    def _number(self) -> int:
        token = self._peek()
        if token.kind != "number" or not token.text.isdigit() or len(token.text) > 9:
            raise self._refusal("a whole number is needed here")
        self._next += 1
        return int(token.text)

    def _peek(self, ahead: int = 0) -> _Token:
        return self._tokens[min(self._next + ahead, len(self._tokens) - 1)]

    def _take(self, word: str) -> bool:
        found = self._peek().word == word
        self._next += found
        return found

    def _expect(self, word: str, what: str) -> None:
        if not self._take(word):
            raise self._refusal(f"{what} is needed here")

    def _refusal(self, why: str) -> InvalidSchema:
        return _refuse(self._text, self._peek().at, why)


def _split(text: str) -> list[_Token]:
    tokens, at = [], 0
    end = len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None:
            raise _refuse(text, at, "this is neither a name nor a type")
        kind = found.lastgroup
        assert kind is not None
        inside = found[kind]
        for quote, quoting in (('"', "quoted"), ("`", "ticked"), ("'", "text")):
            if kind == quoting:
                inside = inside.replace(2 * quote, quote)
        tokens.append(_Token(kind, inside, found.end() - len(found[0].lstrip())))
        at = found.end()
    return [*tokens, _Token("end", "", end)]


def _refuse(text: str, at: int, why: str) -> InvalidSchema:
    before, after = text[max(0, at - 40) : at].lstrip(), text[at : at + 20]
    where = f"after {before.rstrip()!r}" if before.strip() else "at the beginning"
    at_what = f", at {after!r}" if after else ""
    return InvalidSchema(f"columns: {where}{at_what}: {why}")
