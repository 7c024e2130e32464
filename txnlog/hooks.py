"""What is found by its name alone: what parts of txnlog add to the rest, and public names.

A part is a folder in ``txnlog`` that can be left out: nothing outside of it imports it. What it
adds, it registers: its package has ``HOOKS``, the name of its module for each hook that it serves.
Such a module is imported when the hook is used. The hooks are

* ``storage``: what lies at a place, see ``storage/registry.py``;
* ``maintenance``: steps of ``Store.maintain``, see ``admin/maintenance.py``;
* ``metrics``: numbers for monitoring, see ``admin/metrics.py``;
* ``old copies``: files that nothing is deleted from, see ``admin/purge_topic.py``;
* ``doctor``: checks, see ``doctor/examination.py``;
* ``command``: groups of verbs, see ``cli/app.py``;
* ``pages``: pages of ``txnlog ui``, see ``ui/app.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any

PARTS = ("replication",)


def lazily(
    module: Mapping[str, Any], homes: Mapping[str, Collection[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` for a module that imports its public names on first use.

    ``module``: its ``globals()``. ``homes``: the modules of its package, each with the names that
    it defines.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {module['__name__']!r} has no attribute {name!r}")
        return getattr(import_module(f"{module['__package__']}.{home_of[name]}"), name)

    return load, lambda: sorted(module["__all__"])


def registered(hook: str) -> list[Any]:
    """The modules that serve a hook, of the parts that are there. Each hook says what they have."""
    found = []
    for part in PARTS:
        try:
            package = import_module(f"txnlog.{part}")
        except ModuleNotFoundError as error:
            if error.name != f"txnlog.{part}":
                raise
            continue
        if hook in package.HOOKS:
            found.append(import_module(f"txnlog.{part}.{package.HOOKS[hook]}"))
    return found
