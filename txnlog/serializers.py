"""A client's own forms of keys and values: made when they are sent, and when they are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from txnlog.errors import InvalidOption

Serializer: TypeAlias = Callable[[Any], Any]
"""A function of a key or a value; it is not called for None."""


@dataclass(frozen=True, slots=True)
class Serializers:
    """Two functions, of which one may be left out, as one of a key and a value."""

    key: Serializer | None
    value: Serializer | None

    @classmethod
    def of(
        cls, key: Serializer | None, value: Serializer | None, suffix: str
    ) -> Serializers | None:
        """None if both are left out. Raises InvalidOption unless they are functions.

        Args:
            key: for keys.
            value: for values.
            suffix: of the options' names, for errors: ``serializer``, say.
        """
        for name, given in ((f"key_{suffix}", key), (f"value_{suffix}", value)):
            if given is not None and not callable(given):
                raise InvalidOption(f"{name} is {given!r:.200}; it is a function, json.loads say")
        return None if key is None and value is None else cls(key, value)

    def __call__(self, key: object, value: object) -> tuple[object, object]:
        """Both in the other form; None stays None."""
        if key is not None and self.key is not None:
            key = self.key(key)
        if value is not None and self.value is not None:
            value = self.value(value)
        return key, value
