"""How many fields the messages in some bytes have, before Protobuf's parser makes room for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

_VARINT, _FIXED64, _LENGTH, _GROUP, _END, _FIXED32 = range(6)
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}
_MESSAGE_TYPES: Final = (10, 11)
"""How descriptors number groups and messages."""


def most_fields(kind: Any) -> int:  # noqa: ANN401 - protobuf's
    """The most fields that a message of this type, or of any type within it, declares."""
    known, left = {kind.full_name: kind}, [kind]
    while left:
        for field in left.pop().fields:
            inner = field.message_type
            if inner is not None and inner.full_name not in known:
                known[inner.full_name] = inner
                left.append(inner)
    return max(len(one.fields) for one in known.values())


def spend_fields(body: bytes, kind: Any, spend: Callable[[int], None]) -> None:  # noqa: ANN401 - protobuf's
    """Call with the number of fields of each message in the bytes of one.

    Bytes that are no message are left to the parser.
    """
    spend(len(kind.fields))
    open_kinds: list[tuple[Any, int]] = [(kind, len(body))]
    at = 0
    while open_kinds:
        inside, end = open_kinds[-1]
        if at >= end:
            open_kinds.pop()
            continue
        tag, at = _varint(body, at)
        wire = tag & 7
        field = None if inside is None else inside.fields_by_number.get(tag >> 3)
        inner = None if field is None or field.type not in _MESSAGE_TYPES else field.message_type
        if wire == _VARINT:
            _, at = _varint(body, at)
        elif wire in _FIXED:
            at += _FIXED[wire]
        elif wire == _LENGTH:
            size, at = _varint(body, at)
            if inner is None:
                at += size
            else:
                spend(len(inner.fields))
                open_kinds.append((inner, min(at + size, end)))
        elif wire == _GROUP:
            if inner is not None:
                spend(len(inner.fields))
            open_kinds.append((inner, end))
        elif wire == _END:
            open_kinds.pop()
        else:
            return


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """A varint, and where it ends: of one that does not, the end of all."""
    number = 0
    for step in range(10):
        if at + step >= len(body):
            break
        byte = body[at + step]
        number |= (byte & 0x7F) << (7 * step)
        if byte < 0x80:
            return number, at + step + 1
    return 0, len(body)
