"""The code's own tidiness: layers, sizes, names, and what it never does."""

from __future__ import annotations

import ast
import re
import sys

from checkout import PYPROJECT, ROOT, Module, modules

LONGEST_FILE_LINES = 600

# What each layer may import of txnlog: bytes below, the log on top of it, two faces on top of both.
MAY_IMPORT = {
    "segments": {"segments"},
    "core": {"core", "segments"},
    "spark": {"core", "segments", "spark"},
    "cli": {"core", "segments", "cli"},
}

# The rooms of Spark's layer, from the top: each imports only what stands below it. The package
# itself names all of them, when a name is first used.
SPARK_ROOMS = ("transactions", "registration", "source", "stream", "batch", "options")

MODULES = [module for module in modules() if module.name != "pyspark_txnlog"]


def called_names(module: Module) -> set[str]:
    """Names of functions that are called without a dot."""
    calls = (node.func for node in ast.walk(module.tree()) if isinstance(node, ast.Call))
    return {function.id for function in calls if isinstance(function, ast.Name)}


def names_of(requirements: list[str]) -> set[str]:
    """``pyspark`` of ``pyspark[sql]>=4.1``; our dependencies are imported by their own names."""
    return {re.split(r"[^A-Za-z0-9_-]", requirement)[0] for requirement in requirements}


def test_the_whole_code_is_looked_at() -> None:
    """Goal: the checks below do not pass because they see nothing."""
    assert {module.layer for module in MODULES} == MAY_IMPORT.keys()
    assert "txnlog" in {module.name for module in MODULES}


def test_layers_point_one_way() -> None:
    """Goal: no module imports from a layer above or beside its own, not even for its types."""
    wrong = [
        f"{module.where} imports {name}"
        for module in MODULES
        for name in module.imports()
        if name.split(".")[0] == "txnlog"
        and Module(ROOT, name).layer not in MAY_IMPORT[module.layer]
    ]
    assert wrong == []


def test_rooms_of_spark_point_one_way() -> None:
    """No room of spark/ imports from one above it, also inside of functions."""

    def floor(name: str) -> int | None:
        parts = name.split(".")
        in_room = parts[:2] == ["txnlog", "spark"] and len(parts) > 2
        return SPARK_ROOMS.index(parts[2]) if in_room else None

    floors = {module: at for module in MODULES if (at := floor(module.name)) is not None}
    wrong = [
        f"{module.where} imports {name}"
        for module, at in floors.items()
        for name in module.imports()
        if (below := floor(name)) is not None and below < at
    ]
    assert wrong == []
    assert {*floors.values()} == {*range(len(SPARK_ROOMS))}


def test_nothing_but_tests_imports_what_is_for_tests() -> None:
    """Goal: faults are not a part of what runs."""
    wrong = [
        module.where
        for module in MODULES
        if not module.name.startswith("txnlog.testing")
        and any(name.startswith("txnlog.testing") for name in module.imports())
    ]
    assert wrong == []


def test_every_third_party_import_is_a_declared_dependency() -> None:
    """Goal: what is imported is installed: by the core dependencies, or by the right extra."""
    project = PYPROJECT["project"]
    core = names_of(project["dependencies"])
    extras = {key: names_of(value) for key, value in project["optional-dependencies"].items()}
    allowed = {
        "segments": core,
        "core": core | extras["pandas"] | extras["s3"],  # test_wheel: only where they are used
        "spark": core | extras["spark"],
        "cli": core | extras["cli"],
    }
    undeclared = [
        f"{module.where} imports {name}"
        for module in MODULES
        for name in module.imports()
        if name.split(".")[0] not in sys.stdlib_module_names | {"txnlog"} | allowed[module.layer]
    ]
    assert undeclared == []


def test_files_are_short() -> None:
    """Goal: a file is about one thing and can be read in one sitting."""
    lines = {module.where: len(module.path.read_text().splitlines()) for module in MODULES}
    assert {where: n for where, n in lines.items() if n > LONGEST_FILE_LINES} == {}


def test_modules_say_what_they_are_for() -> None:
    """Goal: a module is named for what it does, and its first lines tell it."""
    vague = [m.where for m in MODULES if re.search(r"util|helper|misc|manager", m.path.stem)]
    silent = [m.where for m in MODULES if not ast.get_docstring(m.tree())]
    assert (vague, silent) == ([], [])


def test_stored_data_is_never_executed() -> None:
    """Goal: no bytes of a store can run as code."""
    loaders = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    runners = {"eval", "exec", "compile", "__import__"}
    dangerous = [
        module.where
        for module in MODULES
        if loaders & {name.split(".")[0] for name in module.imports()}
        or runners & called_names(module)
    ]
    assert dangerous == []


def test_only_the_command_prints() -> None:
    """Goal: a library's user decides what reaches stdout."""
    printing = [m.where for m in MODULES if m.layer != "cli" and "print" in called_names(m)]
    assert printing == []


def test_symlinks_are_relative_and_point_right() -> None:
    """Goal: tools that run in the checkout see the import names, wherever it was cloned."""
    targets = {name: (ROOT / "txnlog" / name).readlink() for name in ("segments", "spark", "cli")}
    assert {name: str(target) for name, target in targets.items()} == {
        "segments": "../segments",
        "spark": "../spark",
        "cli": "../cli",
    }
