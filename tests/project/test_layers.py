"""The rooms of the code and the order in which they stand: imports go down the list, in one way."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.support.checkout import ROOT, Module, modules

FLOORS = (
    ("replication",),  # a wing: it adds to all the others, which never import it
    ("cli",),  # two faces, and what the first of them can serve to browsers and to engines
    ("bridge", "spark", "ui"),
    ("testing",),
    ("api",),  # what a user imports: the modules in the root of txnlog/, but for the vocabulary
    ("doctor",),
    ("admin",),
    ("inspect",),
    ("tables",),
    ("kafka",),
    ("write",),
    ("read",),
    ("groups",),
    ("log",),
    ("state",),
    ("storage",),
    ("values",),
    ("columns",),
    ("vocabulary",),
    ("segments",),
)
"""From the top down. A room imports from rooms below its own, and from itself."""
PUBLIC = ("bridge", "cli", "replication", "spark", "storage", "testing", "values")
"""Rooms whose package names what is public."""
INSIDE = {
    "replication": (
        "pages",
        "commands",
        "command",
        "examination",
        "maintenance",
        "openers",
        "standbys",
        "replicas",
        "named_segments",
        "replaced_data",
        "standby",
        "sound_copies",
        "roots",
        "root_names",
    ),
    "ui": (
        "catalog",
        "server",
        "app",
        "pages",
        "lag_curves",
        "plans",
        "record_query",
        "look",
        "page",
        "console",
        "changes",
        "connections",
        "jobs",
        "addresses",
        "access",
        "render",
    ),
    "cli": (
        "__main__",
        "run",
        "app",
        "commands",
        "verbs",
        "completion",
        "session",
        "output",
        "input",
    ),
    "spark": (
        "setup_check",
        "maintenance",
        "batch_read",
        "transactions",
        "registration",
        "source",
        "stream",
        "batch",
        "options",
    ),
}
"""The same for the rooms of a face or a wing, each a folder or a module."""
VOCABULARY = {
    *("arguments", "clock", "config", "display", "errors", "hooks", "limits", "metric", "names"),
    *("schema", "serializers", "time_limits"),
}
"""Modules in the root of txnlog/ that users import, and so does everything else."""

pytestmark = pytest.mark.xdist_group("checkout")  # the process that has parsed all modules
MODULES = {module.name: module for module in modules() if module.name != "pyspark_txnlog"}
HEIGHT = {room: -floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def room_of(name: str) -> str:
    """``log`` of ``txnlog.log.topic_log``, ``api`` of ``txnlog.store``."""
    parts = name.split(".")
    if len(parts) == 1:
        return "api"
    if parts[1] in VOCABULARY:
        return "vocabulary"
    return parts[1] if parts[1] in HEIGHT else "api"


def imported_by(module: Module) -> set[str]:
    """The modules of txnlog that one imports, anywhere in it: in functions too, and for types."""
    found = set()
    for name in module.imports():
        while name not in MODULES and "." in name:
            name = name.rpartition(".")[0]
        if name in MODULES and name != module.name:
            found.add(name)
    return found


@cache
def imports() -> dict[str, set[str]]:
    """What each module imports. Not read while tests are collected, which every process does."""
    return {name: imported_by(module) for name, module in MODULES.items()}


def is_allowed(name: str, imported: str) -> bool:
    mine, other = room_of(name), room_of(imported)
    # The package itself holds no code but the loading of names.
    return imported == "txnlog" or mine == other or HEIGHT[mine] > HEIGHT[other]


def test_every_room_is_on_a_floor() -> None:
    """The list above is of the folders that there are."""
    folders = {path.parent.name for path in (ROOT / "txnlog").glob("*/__init__.py")}
    assert {"api", "vocabulary", *folders} == HEIGHT.keys()
    assert {room_of(name) for name in MODULES} == HEIGHT.keys()


def test_imports_go_down() -> None:
    """No module imports from a room above or beside its own, in functions or for types neither."""
    wrong = [
        f"{MODULES[name].where} imports {imported}"
        for name, found in imports().items()
        for imported in sorted(found)
        if not is_allowed(name, imported)
    ]
    assert wrong == []


@pytest.mark.parametrize("face", INSIDE)
def test_imports_go_down_inside_of(face: str) -> None:
    """Below a face's own package, which names what is public when it is first used."""
    floors = INSIDE[face]
    inside = f"txnlog.{face}."
    rooms = {name: name.split(".")[2] for name in MODULES if name.startswith(inside)}
    assert {*rooms.values()} == {*floors}
    wrong = [
        f"{MODULES[name].where} imports {imported}"
        for name, room in rooms.items()
        for imported in sorted(imports()[name] & rooms.keys())
        if floors.index(room) > floors.index(rooms[imported])
    ]
    assert wrong == []


def test_there_are_no_circles() -> None:
    """Modules can be put in an order, also within a room: each imports only what comes before."""
    waiting = {name: found - {"txnlog"} for name, found in imports().items()}
    while free := {name for name, found in waiting.items() if not found & waiting.keys()}:
        waiting = {name: found for name, found in waiting.items() if name not in free}
    assert waiting == {}


def test_architecture_names_every_room_in_this_order() -> None:
    """docs/ARCHITECTURE.md lists the rooms as they stand here."""
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    rooms_of_floors = text.partition("## The rooms\n")[2].partition("\n![")[0]
    rows = re.findall(r"^\d+\. ([^:]+):", rooms_of_floors, re.MULTILINE)
    named = [tuple(re.findall(r"`(?:txnlog/)?(\w+)/?`", row)) for row in rows]
    shown = [tuple(room for room in rooms if room not in ("api", "vocabulary")) for rooms in FLOORS]
    in_root = {name.rpartition(".")[2] for name in MODULES if room_of(name) == "api"} - {"txnlog"}
    assert [tuple(sorted(found)) for found in named] == [
        tuple(sorted(rooms))
        or tuple(sorted(VOCABULARY if FLOORS[floor] == ("vocabulary",) else in_root))
        for floor, rooms in enumerate(shown)
    ]


def test_the_picture_names_every_room() -> None:
    """docs/images/floors.svg has a box for each room, and the modules of the two in the root."""
    picture = (ROOT / "docs" / "images" / "floors.svg").read_text(encoding="utf-8")
    in_boxes = " ".join(re.findall(r'class="code bold middle"[^>]*>([^<]+)<', picture))
    in_root = {name.rpartition(".")[2] for name in MODULES if room_of(name) == "api"} - {"txnlog"}
    folders = HEIGHT.keys() - {"api", "vocabulary"}
    assert set(re.findall(r"\w+", in_boxes)) == folders | in_root | VOCABULARY


def test_packages_hold_no_code() -> None:
    """A package's ``__init__`` loads names: importing one room does not import its neighbours."""
    public = {"txnlog", *(f"txnlog.{name}" for name in PUBLIC)}
    defining = [
        name
        for name, module in MODULES.items()
        if module.path.name == "__init__.py"
        and name not in public
        and ".commands" not in name  # a package there is a group of verbs
        and any(not isinstance(node, ast.Expr) for node in module.tree().body)
    ]
    assert defining == []
