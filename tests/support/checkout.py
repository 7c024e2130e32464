"""The checkout that the tests stand in: its folders, its modules and what they import."""

from __future__ import annotations

import ast
import importlib.util
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CODE_FOLDERS = ("txnlog", "segments", "spark", "cli", "ui")
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


@cache  # a dozen tests look at each
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@cache
def _walk(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(_parse(path)))


@dataclass(frozen=True)
class Module:
    """A source file of the package, and the name that it must be imported by."""

    path: Path
    name: str

    @property
    def where(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def layer(self) -> str:
        """``segments``, ``spark``, ``cli`` and ``ui``; everything else is ``core``.

        What a wing adds to the command is of ``cli``, and its pages are of ``ui``.
        """
        _, part, inside, *_ = (*self.name.split("."), "", "")
        if part == "replication":
            part = {"commands": "cli", "pages": "ui"}.get(inside, part)
        return part if part in CODE_FOLDERS else "core"

    def tree(self) -> ast.Module:
        return _parse(self.path)

    def nodes(self) -> tuple[ast.AST, ...]:
        """All of the tree's."""
        return _walk(self.path)

    def imports(self) -> Iterator[str]:
        """Full names of all that is imported, anywhere in the file, for type checkers too."""
        package = self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]
        for node in self.nodes():
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                    base = ".".join([*parents, base] if base else parents)
                yield from (f"{base}.{alias.name}" for alias in node.names)


def modules() -> list[Module]:
    """Every module of the package, found without following the symlinks."""
    found = [Module(ROOT / "pyspark_txnlog.py", "pyspark_txnlog")]
    for folder in CODE_FOLDERS:
        prefix = () if folder == "txnlog" else ("txnlog",)
        for path in sorted((ROOT / folder).rglob("*.py")):
            inside = path.relative_to(ROOT).parent.parts
            if path.is_relative_to(ROOT / "txnlog") and inside[1:2] and inside[1] in CODE_FOLDERS:
                continue  # through a symlink, on a Python whose rglob follows them
            stem = () if path.name == "__init__.py" else (path.stem,)
            found.append(Module(path, ".".join((*prefix, *inside, *stem))))
    return found


def script(name: str) -> ModuleType:
    """A module of scripts/, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
