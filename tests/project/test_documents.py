"""The documents: their code runs as it stands, their links lead somewhere."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

import txnlog
import txnlog.replication
import txnlog.spark
import txnlog.testing
import txnlog.values
from tests.support.checkout import ROOT, modules, script
from tests.support.documents import DOCUMENTS, SPARK_DOCUMENTS, Runner, blocks_of

MOST_NOT_RUN = 19
"""Blocks that cannot run: add one only if no test can have what it needs."""
MOST_LINES_OF_README = 115
ELSEWHERE = {*SPARK_DOCUMENTS, "docs/CLI.md"}
"""Run by tests/spark/test_spark_documents.py and tests/cli/test_cli_documents.py."""
BLOCKS = {path.relative_to(ROOT).as_posix(): blocks_of(path) for path in DOCUMENTS}
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def starts_commands(document: str) -> bool:
    """Whether it runs `txnlog`, whose libraries take seconds to load."""
    return any(
        "txnlog " in block.text and block.language in ("sh", "console") and block.reason is None
        for block in BLOCKS[document]
    )


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(name, marks=pytest.mark.more) if starts_commands(name) else name
        for name in sorted(BLOCKS.keys() - ELSEWHERE)
        if BLOCKS[name]
    ],
)
def test_the_code_of_a_document_runs(document: str, tmp_path: Path) -> None:
    """In order, as a reader pastes it; what is shown as output is what comes."""
    Runner(tmp_path).run(BLOCKS[document])


def test_what_is_not_run_is_little_and_says_why() -> None:
    """Each such block has its reason, and is Python at least."""
    left_out = [block for blocks in BLOCKS.values() for block in blocks if block.reason]
    assert len(left_out) <= MOST_NOT_RUN
    for block in left_out:
        assert len(str(block.reason).split()) > 3, block
        if block.language == "python":
            compile(block.text, str(block), "exec")


def anchors_of(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    found: list[str] = []
    text = re.sub(
        r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.append(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    numbered = Counter[str]()
    anchors = set()
    for anchor in found:
        anchors.add(f"{anchor}-{numbered[anchor]}" if numbered[anchor] else anchor)
        numbered[anchor] += 1
    return anchors


@pytest.mark.parametrize("document", BLOCKS)
def test_links_lead_somewhere(document: str) -> None:
    """Files are there, and so are the headings within them."""
    path = ROOT / document
    broken = []
    for link in LINK.findall(path.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    assert broken == []


def test_every_document_is_linked_from_the_readme() -> None:
    """Starting there, all of docs/ can be found."""
    linked = set(LINK.findall((ROOT / "README.md").read_text(encoding="utf-8")))
    assert {name for name in BLOCKS if name.startswith("docs/")} <= linked


@pytest.mark.parametrize("module", ["txnlog", "txnlog.spark"])
def test_the_api_page_names_what_is_public(module: str) -> None:
    """A name that is added to the public line gets its place on the page."""
    shown = set(re.findall(r"^::: (\S+)$", (ROOT / "docs" / "API.md").read_text(), re.MULTILINE))
    public = {f"{module}.{name}" for name in importlib.import_module(module).__all__}
    assert public - {"txnlog.__version__", "txnlog.TxnlogError"} <= shown


def test_the_readme_is_short() -> None:
    """Two screens and a picture: whatever is longer has a document of its own."""
    assert (
        len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MOST_LINES_OF_README
    )


def test_the_pictures_are_as_they_are_drawn() -> None:
    """docs/images has what scripts/draw_pictures.py draws: the script is what is edited."""
    module = script("draw_pictures")
    drawn = {name: draw() for name, draw in module.PICTURES.items()}
    assert drawn == {path.name: path.read_text() for path in module.FOLDER.iterdir()}


@pytest.mark.parametrize(
    "page",
    [
        '<script src="https://cdn.example/a.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/a.css">',
        '<p>a<img alt="" src="HTTP://img.example/a.png">',
        "<style>@import 'https://fonts.example/a.css';</style>",
        '<p style="background: url(https://img.example/a.png)">',
        '<pre class="mermaid"><code>flowchart</code></pre>',
        '<div class="md-source" data-md-component="source">stars</div>',
    ],
)
def test_a_page_that_loads_from_elsewhere_is_found(page: str, tmp_path: Path) -> None:
    """`make docs` ends with this check: the site works where there is no internet."""
    check = script("check_site").loaded_from_elsewhere
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "index.html").write_text(page, encoding="utf-8")
    assert len(check(tmp_path)) == 1


def test_a_page_may_lead_elsewhere(tmp_path: Path) -> None:
    """Links and the page's own files are no finding."""
    (tmp_path / "index.html").write_text(
        '<link rel="canonical" href="https://docs.example/"><a href="https://spark.apache.org">'
        '<script src="../assets/a.js"></script><img src="data:image/png;base64,AA==">',
        encoding="utf-8",
    )
    assert script("check_site").loaded_from_elsewhere(tmp_path) == []


def test_a_link_within_the_site_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    """Neither a page nor a place in one; what is there, or elsewhere, is no finding."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "index.html").write_text(
        '<h2 id="there"></h2><a href="#there"></a><a href="../b.html#\u00fcber"></a>'
        '<a href="/a/"></a><a href=".."></a><a href="https://spark.apache.org"></a>'
        '<a href="../c.md"></a><a href="#gone"></a><a href="/b.html#there"></a>',
        encoding="utf-8",
    )
    (tmp_path / "b.html").write_text('<a name="\u00fcber">', encoding="utf-8")
    (tmp_path / "index.html").write_text('<a href="a/#there">', encoding="utf-8")
    assert script("check_site").broken_links(tmp_path) == [
        f"a/index.html: {link}" for link in ("#gone", "../c.md", "/b.html#there")
    ]


KAFKAS = "TopicPartition(topic, partition, offset)"
"""A call of Kafka's clients, which the table of their names has."""
THINGS = ("store", "consumer", "producer", "scan", "snapshot", "txn")
"""What documents call them; by itself such a name may be a function's."""


def python_calls(text: str) -> Iterator[ast.Call]:
    """The calls in the inline code of a document."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for span in re.findall(r"`([^`]+)`", prose):
        with suppress(SyntaxError):
            tree = ast.parse(" ".join(span.split()), mode="eval")
            yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


@pytest.fixture(scope="module")
def called() -> dict[str, Any]:
    """What documents call: the public functions and classes, and things under their usual names."""
    store = txnlog.open("memory://called", create=True)
    store.topics.create("t")
    txn = object.__new__(txnlog.spark.SparkTransaction)  # without a session
    things = (store, store.consumer("t"), store.producer(), store.scan("t"), store.snapshot("t"))
    public = (txnlog, txnlog.spark, txnlog.testing, txnlog.values, txnlog.replication)
    return {
        **{name: getattr(module, name) for module in public for name in module.__all__},
        **dict(zip(THINGS, (*things, txn), strict=True)),
        "txnlog": txnlog,
    }


@pytest.mark.parametrize("document", BLOCKS)
def test_calls_within_the_text_fit_what_they_call(document: str, called: dict[str, Any]) -> None:
    """Names exist, and take such arguments: code in a sentence is copied, too."""
    wrong = []
    for call in python_calls((ROOT / document).read_text(encoding="utf-8")):
        name, *attributes = ast.unparse(call.func).split(".")
        is_other = ast.unparse(call) == KAFKAS or not all(map(str.isidentifier, attributes))
        if is_other or name not in called or (name in THINGS and not attributes):
            continue
        shown = [one for one in call.args if ast.unparse(one) != "..."]  # it is any number of them
        try:
            signature = inspect.signature(reduce(getattr, attributes, called[name]))
            by_name = {str(one.arg): one.value for one in call.keywords if one.arg}
            signature.bind_partial(*shown, **by_name)
        except (AttributeError, TypeError) as error:
            wrong.append((ast.unparse(call), str(error)))
    assert wrong == []


def members_of_classes() -> dict[str, set[str]]:
    """What each class of the code has, by its name; of two classes of one name, what both have."""
    found: dict[str, set[str]] = {}
    for module in modules():
        for node in module.nodes():
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).update(names_in(node))
    return found


def names_in(class_: ast.ClassDef) -> Iterator[str]:
    for node in ast.walk(class_):
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id
                elif isinstance(target, ast.Attribute):
                    yield target.attr


@pytest.mark.xdist_group("checkout")  # the process that has parsed all modules
@pytest.mark.parametrize("document", ["PROTOCOL", "REPLICATION", "ARCHITECTURE", "FORMAT"])
def test_what_documents_call_by_its_name_exists(document: str) -> None:
    """Classes, and what they have: whoever searches for the name finds the code."""
    text = (ROOT / "docs" / f"{document}.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([A-Z][A-Za-z]+)\.([a-z_]\w*)(?:\(.*?\))?`", text))
    members = members_of_classes()
    assert {(of, name) for of, name in named if name not in members.get(of, ())} == set()
