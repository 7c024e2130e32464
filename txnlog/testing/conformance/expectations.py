"""How a check reports a violation."""

from __future__ import annotations

from collections.abc import Callable

from txnlog.errors import ObjectNotFound, TxnlogError


class NotConforming(AssertionError):
    """A storage breaks a promise of its interface."""


def expect(holds: object, otherwise: str) -> None:
    """Raise NotConforming with the message ``otherwise``, unless it is true."""
    if not holds:
        raise NotConforming(otherwise)


def expect_equal(found: object, expected: object, what: str) -> None:
    """Raise NotConforming unless both are equal; the message shows the beginning of each."""
    expect(found == expected, f"{what}: {_short(found)} instead of {_short(expected)}")


def expect_error(kind: type[TxnlogError], call: Callable[[], object], what: str) -> None:
    """Raise NotConforming unless the call raises an error of the kind."""
    try:
        call()
    except kind:
        return
    raise NotConforming(f"{what} raised no {kind.__name__}")


def expect_missing(call: Callable[[], object], name: str) -> None:
    """Raise NotConforming unless the call reports a missing object with the name."""
    try:
        call()
    except ObjectNotFound as error:
        expect(name in str(error), f"an ObjectNotFound does not name {name}: {error}")
        return
    raise NotConforming(f"reading {name}, which is not there, raised no ObjectNotFound")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
