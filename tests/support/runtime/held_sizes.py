"""How much a process remembers: the sizes of all containers that txnlog's own objects hold."""

from __future__ import annotations

import sys
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from types import FunctionType, MethodType
from typing import Any

_ITERABLES = (Sequence, AbstractSet, deque, weakref.WeakSet)
_LEAVES = (str, bytes, bytearray, memoryview, int, float, bool, type(None), type)


def held_sizes(*roots: object) -> Counter[str]:
    """How many elements there are, by the attribute or the module's variable that leads to them.

    Walks from ``roots`` and the variables of all modules of txnlog through its objects, containers,
    and what functions have bound. What is held twice is counted once.
    """
    sizes: Counter[str] = Counter()
    seen: dict[int, object] = {}  # all are kept, so that none gets the id of another
    waiting: list[tuple[str, object]] = [(type(root).__name__, root) for root in roots]
    for name, module in [*sys.modules.items()]:
        if _is_walked(name):
            waiting += [(f"{name}.{key}", value) for key, value in [*vars(module).items()]]
    while waiting:
        path, one = waiting.pop()
        if isinstance(one, _LEAVES) or id(one) in seen:
            continue
        seen[id(one)] = one
        if isinstance(one, (Mapping, *_ITERABLES)):
            sizes[path] += len(one)
        waiting += _held_by(path, one)
    return sizes


def _is_walked(module: str) -> bool:
    """Storages of tests hold files, as a disk does: they are no memory of the library."""
    return module.partition(".")[0] == "txnlog" and not module.startswith("txnlog.testing")


def _held_by(path: str, one: Any) -> Iterator[tuple[str, object]]:
    if isinstance(one, Mapping):
        for key, value in [*one.items()]:
            yield f"{path} key", key
            yield f"{path}[]", value
    elif isinstance(one, _ITERABLES):
        yield from ((f"{path}[]", value) for value in [*one])
    elif isinstance(one, MethodType):
        yield from ((path, part) for part in (one.__self__, one.__func__))
    elif isinstance(one, partial):
        yield from ((path, part) for part in (one.func, *one.args, *one.keywords.values()))
    elif isinstance(one, FunctionType):
        for cell in one.__closure__ or ():
            yield path, getattr(cell, "cell_contents", None)
    kind = type(one)
    if not kind.__module__.startswith("txnlog.testing") and any(
        _is_walked(base.__module__) for base in kind.__mro__
    ):
        for name in _attributes(one):
            yield f"{kind.__name__}.{name}", getattr(one, name, None)


def _attributes(one: object) -> list[str]:
    found = [*getattr(one, "__dict__", ()), *getattr(type(one), "__struct_fields__", ())]
    for base in type(one).__mro__:
        slots = base.__dict__.get("__slots__", ())
        found += [slots] if isinstance(slots, str) else slots
    return [name for name in dict.fromkeys(found) if not name.startswith("__")]
