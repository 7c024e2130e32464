"""Measures the structure of the code: files, the modules of three walks, who knows whom.

Prints how much there is; what runs for a commit, a poll and the opening of a store, at their second
time in a process; what `Store` offers; and how many functions know more than one mechanism.
"""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import median
from types import FrameType
from uuid import uuid4

import txnlog

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("txnlog", "segments", "spark", "cli", "ui")
FEW_LINES, MANY_LINES = 100, 700
DECORATOR = "txnlog.arguments"
MECHANISMS = {
    "manifests": (
        *("Manifests", "ManifestTable", "ManifestList", "ManifestRef", "Settled", "KeptApart"),
        *("manifests", "settled", "settled_appends_of", "kept_apart", "leave_to_manifests"),
        *("first_unsettled", "settled_producer", "left_out_rewrites"),
    ),
    "the cut": (
        *("consistent_cut", "cut_views", "CutViews", "cut_at_time", "Part", "FirstReading"),
        *("CommittedUnit", "hide_effects", "look_up_needs", "appends_since", "unit_of"),
    ),
    "bundles": (
        *("Bundle", "bundled", "Proposal", "Proposals", "proposals", "is_proposable", "combine"),
        *("file_of", "newest_file", "newest_size"),
    ),
    "sequences": (
        *("SequenceRange", "ProducerState", "IdempotentWriter", "sequences", "next_sequence"),
        *("base_sequence", "advance_sequence", "judge_batches", "batches_of", "check_sequences"),
    ),
    "chapters": (
        *("Chapters", "chapters", "ClosingMark", "FreeingRule", "chapter_of", "closed_end"),
        *("is_closed", "marks_below", "is_widened", "first_of_widest"),
    ),
    "upload notes": (
        *("Retired", "Note", "UploadCheck", "put_notes", "read_notes", "check_history"),
    ),
}
"""By mechanism the names by which a function knows it."""


class Walk:
    """What a call has run of this package: the modules and functions, by their names.

    ``climbs`` are calls from a room into one above it; a method that is decorated is called by
    whoever calls the decorator.
    """

    def __init__(self) -> None:
        self.modules: dict[str, None] = {}
        self.functions: set[tuple[str, str]] = set()
        self.climbs: set[tuple[str, str]] = set()

    @property
    def rooms(self) -> list[str]:
        """In the order in which they are entered."""
        return [*dict.fromkeys(map(room_of, self.modules))]

    def see(self, frame: FrameType, event: str, _: object) -> None:
        """Take note of a call; for ``sys.setprofile``."""
        name, code = str(frame.f_globals.get("__name__")), frame.f_code
        is_written = code.co_name[0] != "<" != code.co_filename[0]  # not by dataclasses, say
        if event != "call" or name.partition(".")[0] != "txnlog" or not is_written:
            return
        self.modules[name] = None
        self.functions.add((name, code.co_qualname))
        behind = frame.f_back
        while behind and behind.f_globals.get("__name__") == DECORATOR:
            behind = behind.f_back
        caller = behind and str(behind.f_globals.get("__name__"))
        if caller and caller.startswith("txnlog") and is_climb(caller, name):
            self.climbs.add((room_of(caller), room_of(name)))


@cache
def rooms() -> dict[str, tuple[str, int]]:
    """By folder, or module in the root, its room and floor from the top in docs/ARCHITECTURE.md."""
    found = {}
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    for floor, row in re.findall(r"^(\d+)\. ((?:`[\w/]+`(?:,\s+)?)+):", text, re.MULTILINE):
        names = re.findall(r"`(?:txnlog/)?(\w+)/?`", row)
        for name in names:
            found[name] = name if "/" in row else names[0], int(floor)
    return found


def room_of(module: str) -> str:
    """``log`` of ``txnlog.log.topic_log``; the modules of a floor in the root are one room."""
    return rooms().get([*module.split("."), "store"][1], ("store", 0))[0]


def is_climb(caller: str, called: str) -> bool:
    """Whether a module lies above another one that calls it."""
    return rooms()[room_of(caller)][1] > rooms()[room_of(called)][1]


def walked(call: Callable[[], object]) -> Walk:
    """What ``call`` runs, in all threads that it begins too."""
    walk = Walk()
    threading.setprofile(walk.see)
    sys.setprofile(walk.see)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return walk


def walks() -> dict[str, Walk]:
    """Opening a store, the first commit of a record into its topic, and the first poll of it."""
    url = f"memory://{uuid4().hex}"
    store = txnlog.open(url, create=True)
    store.topics.create("t", partitions=1)
    producer = store.producer(transactional_id="id")
    producer.init_transactions()

    def commit() -> None:
        producer.begin_transaction()
        producer.send("t", value=b"x")
        producer.commit_transaction()

    consumer = store.consumer("t", group_id="g", auto_offset_reset="earliest")
    polled: list[object] = []
    found = {
        "opening": walked(lambda: txnlog.open(url)),
        "a commit": walked(commit),
        "a poll": walked(lambda: polled.extend(consumer.poll(timeout_ms=10_000))),
    }
    assert len(polled) == 1
    consumer.close()
    return found


def sources() -> dict[str, str]:
    """The text of every module of the package, by its path."""
    paths = {path.resolve() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted(paths)}


def known_by(names: set[str]) -> list[str]:
    """The mechanisms that these names are of."""
    return [one for one, its in MECHANISMS.items() if not names.isdisjoint(its)]


def functions(texts: dict[str, str]) -> Iterator[tuple[str, set[str]]]:
    """The functions of modules that know two mechanisms, with the names of others that they use.

    What is inside of one is part of it.
    """
    for where, text in texts.items():
        if len(known_by({*re.findall(r"\w+", text)})) < 2:
            continue
        for top in ast.parse(text).body:
            for node in top.body if isinstance(top, ast.ClassDef) else [top]:
                if isinstance(node, ast.FunctionDef):
                    inside = [*ast.walk(node)]
                    own = [one for one in inside if isinstance(one, ast.Name)]
                    names = {one.id for one in own}
                    names -= {one.id for one in own if isinstance(one.ctx, ast.Store)}
                    names |= {one.attr for one in inside if isinstance(one, ast.Attribute)}
                    yield f"{where}:{node.name}", names


def known_together(texts: dict[str, str]) -> dict[tuple[str, str], list[str]]:
    """By pair of mechanisms the functions that know both."""
    found: dict[tuple[str, str], list[str]] = {}
    for where, names in functions(texts):
        for pair in combinations(known_by(names), 2):
            found.setdefault(pair, []).append(where)
    return found


def main() -> None:
    """Print it all; with ``-v`` the modules and functions that are counted, too."""
    is_long, texts = "-v" in sys.argv[1:], sources()
    lines = {where: len(text.splitlines()) for where, text in texts.items()}
    few = sum(count < FEW_LINES for count in lines.values())
    many = [f"{where} {count}" for where, count in lines.items() if count > MANY_LINES]
    print(
        f"{sum(lines.values()):,} lines in {len(lines)} files, {median(lines.values()):.0f} each,"
    )
    print(f"{few} under {FEW_LINES}, {len(many)} over {MANY_LINES}: {', '.join(many)}")
    folders = [where.rpartition("/")[0] for where in lines if not where.endswith("__init__.py")]
    counts = ", ".join(f"{one} {folders.count(one)}" for one in dict.fromkeys(folders))
    print(f"modules by folder: {counts}")
    names = [name for name in dir(txnlog.Store) if not name.startswith("_")]
    print(f"{len(names)} names at Store: {', '.join(names)}")
    walks()  # what is imported, or made once, belongs to no walk
    for what, walk in walks().items():
        print(
            f"{what}: {len(walk.functions)} functions in {len(walk.modules)} modules, "
            f"{len(walk.rooms)} rooms, {len(walk.climbs)} climbs"
        )
        if is_long:
            print(f"    {' '.join(walk.modules)}\n    {sorted(walk.climbs)}")
    pairs = known_together(texts)
    for one in MECHANISMS:
        others = {pair: found for pair, found in pairs.items() if one in pair}
        shared = {where for found in others.values() for where in found}
        each = (f"{a if b == one else b} {len(found)}" for (a, b), found in others.items())
        print(f"{one}: {len(shared)} functions know another mechanism, too: {', '.join(each)}")
        if is_long:
            print(f"    {' '.join(sorted(shared))}")


if __name__ == "__main__":
    main()
