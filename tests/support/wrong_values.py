"""Values that are wrong for most arguments, and calls with each of them."""

from __future__ import annotations

import copy
import datetime as dt
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from txnlog import TopicPartition
from txnlog.errors import TxnlogError

_WHERE = TopicPartition("t", 0)


def no_function(*_: object) -> None:
    """A function that takes anything."""


def _wrong() -> list[object]:
    """Values of many types."""
    return [
        *(None, True, -1, 0, 5, 1 << 70, 1.5, math.nan),
        *("", "x", "x" * 300, "a\0b", "half \ud800", b"x", no_function, object()),
        *([], ["t"], [None], [["t"]], (), ("t", 0), set(), range(3)),
        *([()], [("t",)], [("t", "0")], [TopicPartition("t", "0")]),  # type: ignore[arg-type]
        *([TopicPartition("t", 0.0)], [TopicPartition("t", True)]),  # type: ignore[arg-type]
        *({}, {"t": 1}, {5: 5}, {None: None}, {_WHERE: "x"}, {_WHERE: None}, {_WHERE: 1 << 70}),
        *(_WHERE, TopicPartition("t", 9), TopicPartition(5, "x")),  # type: ignore[arg-type]
        dt.datetime(1, 1, 1),  # noqa: DTZ001 - wrong for that
        *(dt.timedelta(1), pa.schema([]), pa.table({}), pa.array([1])),
    ]


def wrong_json(document: Any) -> Iterator[str]:
    """A document with each of its parts replaced by values of other types, one at a time."""
    numbers = (math.inf, math.nan, True, 1.9, -5, 10**30, 10**400)
    wrong: list[object] = [*numbers, "x", "", None, [], {}, [[]], [{}]]
    yield from map(json.dumps, wrong)
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for place, part in items:
        kept = copy.copy(document)
        for text in wrong_json(part) if isinstance(part, (dict, list)) else map(json.dumps, wrong):
            kept[place] = json.loads(text)
            yield json.dumps(kept)


def call_wrongly(call: Callable[..., object], arguments: Mapping[str, object]) -> None:
    """Call with each argument replaced by each wrong value: it succeeds, or the error is our own.

    ``arguments`` are right.
    """
    for name in arguments:
        for value in _wrong():
            try:
                call(**{**arguments, name: value})
            except TxnlogError:
                pass
            except Exception as error:
                error.add_note(f"{name}={value!r:.200}")
                raise


def call_with_texts(call: Callable[[object], object]) -> None:
    """Give a text where several are wanted: it is taken for one of them, or refused.

    ``call`` is given the one argument, and returns what can be compared.
    """

    def outcome(given: object) -> str:
        try:
            return repr(call(given))
        except TxnlogError as error:
            return f"{type(error).__name__}: {error}"

    for text in ("tc", "t*", "value", "delta:there"):
        found = outcome(text)
        is_refused = found.startswith("Invalid") and found != outcome([*text])
        assert found == outcome([text]) or is_refused, f"{text!r} taken for its letters: {found}"
    of_one = outcome(_WHERE)  # a tuple of a text and a number
    assert of_one.startswith("Invalid") or of_one == outcome([_WHERE])
