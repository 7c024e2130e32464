"""Expressions over the columns of a row, as people type them: ``amount > 0 AND name IS NOT NULL``.

A text becomes a tree of our own, and the tree an expression of Arrow (``binding``); nothing is
executed but that. Nulls are SQL's: a comparison with one is unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    import pyarrow.compute as pc

MOST_CHARACTERS: Final = 4096
_MOST_DEPTH: Final = 50
_MOST_TOKENS: Final = 500
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<text>'(?:[^']|'')*')"""
    r"""|(?P<quoted>"(?:[^"]|"")+")|(?P<word>\w+)|(?P<sign><=|>=|<>|!=|[=<>(),.+*-]))"""
)
_PATTERN: Final = re.compile(r"(?:[^\\]|\\[%_\\])*", re.DOTALL)
"""Of LIKE. Whatever else stands behind a backslash is an error in Spark."""
COMPARISONS: Final = {
    "=": "equal",
    "!=": "not_equal",
    "<>": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
ARITHMETIC: Final = {"+": "add_checked", "-": "subtract_checked", "*": "multiply_checked"}
_FUNCTIONS: Final = {
    "length": "utf8_length",
    "lower": "utf8_lower",
    "upper": "utf8_upper",
    "abs": "abs_checked",
    "isnan": "is_nan",
}


@dataclass(frozen=True, slots=True)
class ColumnNode:
    """A column, or a field within it."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant: a number (a float if it is written with an exponent), a text, true or false."""

    value: int | float | Decimal | str | bool


@dataclass(frozen=True, slots=True)
class Call:
    """A function of Arrow, or ``in`` and ``like``, of other nodes."""

    name: str
    arguments: tuple[Node, ...]


Node: TypeAlias = ColumnNode | Literal | Call


def parse(text: str) -> Node:
    """Parse a text into a tree. Raises ValueError: it is not a valid expression."""
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"it has more than {MOST_CHARACTERS} characters")
    return _Parser(text).whole()


def columns_of(node: Node) -> Iterator[str]:
    """The names of the columns that a tree uses, some more than once."""
    if isinstance(node, ColumnNode):
        yield node.path[0]
    elif isinstance(node, Call):
        for argument in node.arguments:
            yield from columns_of(argument)


class _Parser:
    """Each method parses what binds more tightly than that of the method before it."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        self._at = self._depth = self._copied = 0
        at = 0
        text = text.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise ValueError(f"it is not clear from {text[at:].strip()[:20]!r} on")
            assert found.lastgroup is not None
            self._tokens.append((found.lastgroup, found[found.lastgroup]))
            at = found.end()
            if len(self._tokens) > _MOST_TOKENS:
                raise ValueError(f"it has more than {_MOST_TOKENS} words and signs")

    def whole(self) -> Node:
        node = self._any()
        if self._at < len(self._tokens):
            raise ValueError(f"{self._tokens[self._at][1]!r} is not expected there")
        return node

    def _word(self) -> str:
        kind, text = self._peek()
        return text.upper() if kind == "word" else ""

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _takes(self, *wanted: str) -> str:
        """One of these signs or words, if it is next."""
        kind, text = self._peek()
        text = text.upper() if kind == "word" else text
        if kind in ("sign", "word") and text in wanted:
            self._at += 1
            return text
        return ""

    def _expect(self, wanted: str) -> None:
        if not self._takes(wanted):
            found = self._peek()[1]
            raise ValueError(f"{wanted} is missing" + (f" before {found!r}" if found else ""))

    def _any(self) -> Node:
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise ValueError(f"it is nested more than {_MOST_DEPTH} deep")
        node = self._all()
        while self._takes("OR"):
            node = Call("or_kleene", (node, self._all()))
        self._depth -= 1
        return node

    def _all(self) -> Node:
        node = self._not()
        while self._takes("AND"):
            node = Call("and_kleene", (node, self._not()))
        return node

    def _not(self) -> Node:
        count = 0
        while self._takes("NOT"):
            count += 1
        node = self._comparison()
        return Call("invert", (node,)) if count % 2 else node

    def _comparison(self) -> Node:
        node = self._sum()
        sign = self._takes(*COMPARISONS)
        if sign:
            return Call(COMPARISONS[sign], (node, self._sum()))
        if self._takes("IS"):
            negated = self._takes("NOT")
            self._expect("NULL")
            return Call("is_valid" if negated else "is_null", (node,))
        negated = self._takes("NOT")
        if self._takes("IN"):
            self._count_twice(node)
            found: Node = Call("in", (node, *self._list()))
        elif self._takes("BETWEEN"):
            self._count_twice(node)
            low = self._sum()
            self._expect("AND")
            high = self._sum()
            pair = Call("greater_equal", (node, low)), Call("less_equal", (node, high))
            found = Call("and_kleene", pair)
        elif self._takes("LIKE"):
            pattern = self._primary()
            if not isinstance(pattern, Literal) or not isinstance(pattern.value, str):
                raise ValueError("LIKE needs a text in single quotes")
            if _PATTERN.fullmatch(pattern.value) is None:
                raise ValueError("behind a \\ in the text of LIKE there is %, _ or another \\")
            found = Call("like", (node, pattern))
        elif negated:
            raise ValueError("behind NOT there is IN, BETWEEN or LIKE")
        else:
            return node
        return Call("invert", (found,)) if negated else found

    def _count_twice(self, node: Node) -> None:
        """IN and BETWEEN use their operand twice: within each other this doubles each time."""
        self._copied += _size_of(node)
        if self._copied > _MOST_TOKENS:
            raise ValueError("there is too much within IN and BETWEEN")

    def _list(self) -> Sequence[Node]:
        self._expect("(")
        found = [self._constant()]
        while self._takes(","):
            found.append(self._constant())
        self._expect(")")
        return found

    def _constant(self) -> Literal:
        node = self._sum()
        if not isinstance(node, Literal):
            raise ValueError("IN needs constants, and no NULL")  # noqa: TRY004 - of a text
        return node

    def _sum(self) -> Node:
        node = self._product()
        while sign := self._takes("+", "-"):
            node = Call(ARITHMETIC[sign], (node, self._product()))
        return node

    def _product(self) -> Node:
        node = self._signed()
        while self._takes("*"):
            node = Call(ARITHMETIC["*"], (node, self._signed()))
        return node

    def _signed(self) -> Node:
        is_negative = False
        while self._takes("-"):
            is_negative = not is_negative
        node = self._primary()
        if not is_negative:
            return node
        if isinstance(node, Literal) and not isinstance(node.value, str | bool):
            # A minus sign would round a decimal to 28 digits.
            value = node.value
            return Literal(value.copy_negate() if isinstance(value, Decimal) else -value)
        return Call("negate_checked", (node,))

    def _primary(self) -> Node:
        if self._takes("("):
            node = self._any()
            self._expect(")")
            return node
        kind, text = self._peek()
        if kind in ("end", "sign") or self._word() in ("NULL", "IS", "IN", "AND", "OR", "LIKE"):
            raise ValueError(f"a value is missing {f'before {text!r}' if text else 'at its end'}")
        self._at += 1
        if kind == "number":
            return Literal(_number(text))
        if kind == "text":
            return Literal(text[1:-1].replace("''", "'"))
        if kind == "word" and text.upper() in ("TRUE", "FALSE"):
            return Literal(text.upper() == "TRUE")
        if kind == "word" and text.lower() in _FUNCTIONS and self._takes("("):
            inside = self._any()
            self._expect(")")
            return Call(_FUNCTIONS[text.lower()], (inside,))
        path = [_name(kind, text)]
        while self._takes("."):
            kind, text = self._peek()
            if kind not in ("word", "quoted"):
                raise ValueError(f"the name of a field is missing before {text!r}")
            self._at += 1
            path.append(_name(kind, text))
        return ColumnNode(tuple(path))


def _size_of(node: Node) -> int:
    """How many nodes are evaluated for a tree."""
    if not isinstance(node, Call):
        return 1
    first, *others = map(_size_of, node.arguments)
    return 1 + first * (2 if node.name == "in" else 1) + sum(others)


def _number(text: str) -> int | float | Decimal:
    if "e" not in text.lower():
        return int(text) if text.isdigit() else Decimal(text)
    if math.isinf(number := float(text)):
        raise ValueError(f"{text} is greater than any float")
    return number


def _name(kind: str, text: str) -> str:
    return text[1:-1].replace('""', '"') if kind == "quoted" else text


def evaluate(expression: pc.Expression, batch: pa.RecordBatch) -> pa.Array:
    """The value of an expression for each row. Raises ArrowException."""
    from pyarrow import acero

    source = acero.TableSourceNodeOptions(pa.Table.from_batches([batch]))
    steps = [
        acero.Declaration("table_source", source),
        acero.Declaration("project", acero.ProjectNodeOptions([expression], ["value"])),
    ]
    found = acero.Declaration.from_sequence(steps).to_table(use_threads=False)
    return found.column(0).combine_chunks()
