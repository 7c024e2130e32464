"""Storages that lose responses, or let something happen before a create."""

from __future__ import annotations

from collections.abc import Callable

from txnlog.errors import StorageError
from txnlog.testing import FaultyStorage


class LosingStorage(FaultyStorage):
    """Loses the responses to requests for names with ``losing`` in them, until told to stop.

    Creates of such names take effect or not, as ``effect`` says; reads fail.
    """

    losing = ""
    effect = True

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if self.losing and self.losing in name:
            if self.effect:
                super().put_if_absent(name, data)
            raise StorageError("the connection was reset")
        return super().put_if_absent(name, data)

    def get(self, name: str) -> bytes:
        if self.losing and self.losing in name:
            raise StorageError("the connection was reset")
        return super().get(name)


class HookedStorage(FaultyStorage):
    """Calls a rule before each create; the rule may raise. ``last`` is what it was called for."""

    rule: Callable[[str], None] | None = None
    last = ("", b"")

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self.last = (name, data)
        if self.rule is not None:
            self.rule(name)
        return super().put_if_absent(name, data)

    def fail_at(self, part: str) -> None:
        """Creates of names with ``part`` in them fail without effect, as long as the rule holds."""

        def rule(name: str) -> None:
            if part in name:
                raise StorageError("the connection was reset")

        self.rule = rule

    def interrupt_at(self, part: str) -> None:
        """The next create of a name with ``part`` in it is interrupted, as by Ctrl-C."""

        def rule(name: str) -> None:
            if part in name:
                self.rule = None
                raise KeyboardInterrupt

        self.rule = rule
