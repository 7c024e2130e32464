"""Interrupts at each line of the library in turn: where they can come, and how they are raised.

A trace function raises an exception before a line. The interpreter takes a real one at fewer
places: after a call, at the beginning of a function and at the end of a round of a loop, but
never between the last call of a ``with`` or ``try`` block and what ends it. So only the lines are
chosen before which it could have taken one: otherwise each ``with lock:`` would seem to leak.
"""

from __future__ import annotations

import dis
import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, TypeAlias

import txnlog

Traced: TypeAlias = Callable[[FrameType, str, Any], Any]
ROOT: Final = Path(txnlog.__file__).parent

_SILENT: Final = {
    *("NOP", "POP_TOP", "COPY", "SWAP", "PUSH_NULL", "CACHE", "EXTENDED_ARG", "IS_OP", "UNARY_NOT"),
    *("LOAD_CONST", "LOAD_GLOBAL", "LOAD_DEREF", "STORE_DEREF", "LOAD_CLOSURE", "KW_NAMES"),
    *("PRECALL", "POP_EXCEPT", "RERAISE", "END_FOR", "MAKE_CELL", "COPY_FREE_VARS"),
    *("CHECK_EXC_MATCH", "WITH_EXCEPT_START", "RETURN_CONST", "TO_BOOL", "NOT_TAKEN"),
    *("JUMP_FORWARD", "JUMP_BACKWARD_NO_INTERRUPT"),
}
"""Instructions that do nothing which may fail, and run no code."""
_STORES: Final = ("STORE_ATTR", "STORE_SUBSCR", "STORE_GLOBAL", "DELETE_")
_ENDS: Final = ("RETURN_VALUE", "RETURN_CONST", "RERAISE", "RAISE_VARARGS", "JUMP_FORWARD")


@dataclass(frozen=True, order=True)
class Point:
    """The ``hit``-th time, from 1, that a line is about to run."""

    file: str
    line: int
    hit: int

    def __str__(self) -> str:
        return f"{self.file.removeprefix(f'{ROOT}/')}:{self.line} ({self.hit})"


@cache
def _interruptible(code: CodeType) -> frozenset[int]:
    """The offsets of a function before which the interpreter may take an interrupt."""
    instructions = [*dis.get_instructions(code)]
    handlers: dict[int, tuple[int, int]] = {}
    for entry in sorted(dis._parse_exception_table(code), key=lambda e: e.end - e.start)[::-1]:  # type: ignore[attr-defined]
        for one in instructions:
            if entry.start <= one.offset < entry.end:
                depth = handlers.get(one.offset, (0, 0))[0] + 1
                handlers[one.offset] = depth, entry.target
    before: dict[int, list[dis.Instruction]] = {one.offset: [] for one in instructions}
    for one, after in pairwise(instructions):
        if not one.opname.startswith((*_ENDS, "JUMP_BACKWARD")):
            before[after.offset].append(one)
    for one in instructions:
        if one.opcode in (*dis.hasjrel, *dis.hasjabs):
            before[one.argval].append(one)

    def may_come(offset: int) -> bool:
        depth, target = handlers.get(offset, (0, 0))
        seen, waiting = set[int](), [*before[offset]]
        while waiting:
            one = waiting.pop()
            if one.offset in seen:
                continue
            seen.add(one.offset)
            where = handlers.get(one.offset, (0, 0))
            if one.opname.startswith(_STORES) or one.opname == "PUSH_EXC_INFO" or where[0] > depth:
                continue
            jumps = one.opname.startswith(("POP_JUMP", "JUMP_IF"))
            local = one.opname.startswith(("LOAD_FAST", "STORE_FAST"))
            if jumps or local or one.opname in _SILENT:
                waiting += before[one.offset]
                continue
            # What a block begins with is its own, though a `try:` right there seems not to be.
            begins = one.opname == "BEFORE_WITH"
            if where[0] < depth or (where == (depth, target) and not begins):
                return True
        return False

    return frozenset(one.offset for one in instructions if may_come(one.offset))


def _is_finalizing(frame: FrameType | None) -> bool:
    """Whether it runs because an object is collected, at whatever moment that is.

    What is raised there leaves the finalizer, and reaches nobody.
    """
    while frame is not None:
        if frame.f_code is weakref.finalize.__call__.__code__:
            return True
        frame = frame.f_back
    return False


class Tracer:
    """Counts the lines that run of some folders and files, and raises before one of them."""

    def __init__(
        self, watched: Iterable[str], at: Point | None = None, kind: type[BaseException] = Exception
    ) -> None:
        self.hits: dict[tuple[str, int], int] = {}
        self.raised = False
        paths = [ROOT / path for path in watched]
        assert all(path.exists() for path in paths), paths
        self._watched = tuple(map(str, paths))
        self._known: dict[str, bool] = {}
        self._at = at
        self._kind = kind

    def run(self, call: Callable[[], object]) -> object:
        """The result of the call, of which lines are counted; raises what leaves it."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return call()
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, _event: str, _: object) -> Traced | None:
        name = frame.f_code.co_filename
        if name not in self._known:
            self._known[name] = name.startswith(self._watched)
        at = self._at
        if not self._known[name] or self.raised:
            return None
        if (at is not None and name != at.file) or _is_finalizing(frame):
            return None
        return self._line

    def _line(self, frame: FrameType, event: str, _: object) -> Traced:
        if event == "line" and not self.raised and frame.f_lasti in _interruptible(frame.f_code):
            key = frame.f_code.co_filename, frame.f_lineno
            hit = self.hits[key] = self.hits.get(key, 0) + 1
            if self._at == Point(*key, hit):
                self.raised = True
                raise self._kind("an interrupt of the test")
        return self._line

    def points(self) -> list[Point]:
        """The first and the last time of each line."""
        return sorted({Point(*key, hit) for key, hits in self.hits.items() for hit in {1, hits}})
