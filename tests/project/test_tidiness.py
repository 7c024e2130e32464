"""The code's own tidiness: layers, sizes, names, and what it never does."""

from __future__ import annotations

import ast
import re
import sys

import pytest

from tests.support.checkout import PYPROJECT, ROOT, Module, modules

pytestmark = pytest.mark.xdist_group("checkout")  # the process that has parsed all modules
MODULES = [module for module in modules() if module.name != "pyspark_txnlog"]


def called_names(module: Module) -> set[str]:
    """Names of functions that are called without a dot."""
    calls = (node.func for node in module.nodes() if isinstance(node, ast.Call))
    return {function.id for function in calls if isinstance(function, ast.Name)}


ADAPTED = (
    *("azure", "gcs", "hdfs", "hdfs-kerberos", "s3", "sftp"),
    *("delta", "iceberg", "kafka", "pandas", "polars", "duckdb", "registry"),
)
"""The extras of the core: what adapters are built on, tables of others, and data frames."""


def names_of(requirements: list[str]) -> set[str]:
    """``pyspark`` of ``pyspark[sql]>=4.1``, as it is imported."""
    names = (re.split(r"[^A-Za-z0-9_-]", requirement)[0] for requirement in requirements)
    return {name.replace("-", "_") for name in names}


def test_the_whole_code_is_looked_at() -> None:
    """The checks below do not pass because they see nothing."""
    assert {module.layer for module in MODULES} == {"segments", "core", "spark", "cli", "ui"}
    assert "txnlog" in {module.name for module in MODULES}


def test_nothing_but_tests_imports_what_is_for_tests() -> None:
    """Faults are not a part of what runs."""
    wrong = [
        module.where
        for module in MODULES
        if not module.name.startswith("txnlog.testing")
        and any(name.startswith("txnlog.testing") for name in module.imports())
    ]
    assert wrong == []


def test_every_third_party_import_is_a_declared_dependency() -> None:
    """Every import is installed, by the core dependencies or by the right extra."""
    project = PYPROJECT["project"]
    core = names_of(project["dependencies"])
    extras = {key: names_of(value) for key, value in project["optional-dependencies"].items()}
    allowed = {
        "segments": core,
        # test_wheel: only where they are used. adlfs hands out objects of the azure packages, s3fs
        # of botocore's, and it takes sessions of aiobotocore's. protobuf is called google.protobuf.
        "core": core.union(
            *(extras[key] for key in ADAPTED), {"aiobotocore", "azure", "botocore", "google"}
        ),
        # PySpark hands out py4j's objects.
        "spark": core | extras["spark"] | {"py4j"},
        "cli": core | extras["cli"],
        "ui": core | extras["ui"],
    }
    undeclared = [
        f"{module.where} imports {name}"
        for module in MODULES
        for name in module.imports()
        if name.split(".")[0] not in sys.stdlib_module_names | {"txnlog"} | allowed[module.layer]
    ]
    assert undeclared == []


def test_modules_say_what_they_are_for() -> None:
    """A module is named for what it does, and its first lines tell it."""
    vague = [m.where for m in MODULES if re.search(r"util|helper|misc|manager", m.path.stem)]
    silent = [m.where for m in MODULES if not ast.get_docstring(m.tree())]
    assert (vague, silent) == ([], [])


def test_no_class_name_means_two_things() -> None:
    """Whoever reads a name of another module knows which class it is; private ones stay at home."""
    homes: dict[str, list[str]] = {}
    for module in MODULES:
        for node in module.nodes():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module.name)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_docstrings_stand_alone() -> None:
    """Whoever meets one in a search, or in an editor, has not read the one before it."""
    leaning = re.compile(r'\s*"""(The same|Also|Like|As)\b')
    found = [
        f"{module.where}:{number}"
        for module in MODULES
        for number, line in enumerate(module.path.read_text().splitlines(), 1)
        if leaning.match(line)
    ]
    assert found == []


def test_docstrings_say_of_each_error_when_it_is_raised() -> None:
    """As the API's pages need it: ``Error, OtherError: when``, and what follows is indented."""
    wrong = [
        f"{module.where}: {line.strip()}"
        for module in MODULES
        for node in module.nodes()
        if isinstance(node, ast.FunctionDef)
        for _, _, raised in [(ast.get_docstring(node) or "").partition("\nRaises:\n")]
        for line in raised.partition("\n\n")[0].splitlines()
        if not re.match(r"    (?:[A-Z]\w+(?:, [A-Z]\w+)*:(?: |$)| )", line)
    ]
    assert wrong == []


def test_stored_data_is_never_executed() -> None:
    """No bytes of a store can run as code."""
    loaders = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    runners = {"eval", "exec", "compile", "__import__"}
    dangerous = [
        module.where
        for module in MODULES
        if loaders & {name.split(".")[0] for name in module.imports()}
        or runners & called_names(module)
    ]
    assert dangerous == []


def test_no_other_interpreter_is_started() -> None:
    """It would import what lies in the working folder, unless it is isolated."""
    started = [
        f"{module.where}:{node.lineno}"
        for module in MODULES
        for node in module.nodes()
        if isinstance(node, ast.List | ast.Tuple)
        and node.elts
        and ast.unparse(node.elts[0]) == "sys.executable"
        and [ast.unparse(one) for one in node.elts[1:2]] != ["'-I'"]
    ]
    assert started == []


WAY_IN = "segments/untrusted.py"
SCANS = {"txnlog/read/arrow_scans.py", "txnlog/read/dataset.py", "txnlog/read/row_filter.py"}
"""Where Arrow itself opens files, behind a check of each, or evaluates a filter without any."""
OWN_FILES = {"txnlog/columns/schema_files.py", "txnlog/write/table_input.py"}
"""What a user gives to a command himself, of any writer and size: none of a store's bytes."""
DECODERS = re.compile(
    r"(pa|pyarrow)\.ipc\.(?!new_|IpcWriteOptions)|ipc\.(open|read|RecordBatch|Message)|feather|orc"
    r"|parquet\.(?!ParquetWriter|FileMetaData)\w|pa\.(deserialize|memory_map|read_)"
    r"|dataset\.(?!Dataset|Fragment|FileSystemDataset|UnionDataset|dataset)\w"
)


def decoders(module: Module) -> list[str]:
    """The calls and attributes by which a module decodes Arrow's formats."""
    names = (ast.unparse(n) for n in module.nodes() if isinstance(n, ast.Attribute))
    return [name for name in names if DECODERS.match(name)]


def test_arrow_and_parquet_are_decoded_in_one_place() -> None:
    """Bytes of others are checked there before Arrow's C++ sees them."""
    found = {module.where: decoders(module) for module in MODULES}
    assert {"pa.ipc.open_stream", "pa.ipc.read_schema", "parquet.ParquetFile"} < {*found[WAY_IN]}
    assert all(found[where] for where in SCANS | OWN_FILES)
    assert {where for where, names in found.items() if names} == {WAY_IN, *SCANS, *OWN_FILES}


OPENING = (
    *("open", "link", "unlink", "mkdir", "rmdir", "stat", "lstat", "scandir", "listdir"),
    *("exists", "lexists", "isfile", "isdir", "islink", "getsize", "samefile"),
)
OPENING_PATHS = ("read_bytes", "read_text", "write_bytes", "write_text", "iterdir", "glob")


def test_local_storage_opens_no_name_itself() -> None:
    """All of it goes through ``inside``, which follows no link; nor does Arrow open a path."""
    found = {module.where: module for module in MODULES}
    local = found["txnlog/storage/adapters/local.py"]
    called = {*called_names(local)}
    for node in local.nodes():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            name = node.func.attr
            if ast.unparse(owner) in ("os", "os.path") or name in OPENING_PATHS:
                called.add(name)
    assert "fsync" in called  # they are seen
    assert called.isdisjoint({*OPENING, *OPENING_PATHS})
    by_arrow = re.compile(r"memory_map\(|OSFile\(|LocalFileSystem\(\)")
    opened = [where for where, module in found.items() if by_arrow.search(module.path.read_text())]
    # The first one opens descriptors, the other one nothing.
    assert opened == ["txnlog/read/arrow_scans.py", "txnlog/read/row_filter.py"]


def test_names_of_segment_files_are_made_in_one_place() -> None:
    """A segment's files are named by SegmentPaths; nobody else knows how their names end."""
    ending = re.compile(r"(?<![*])\.(log|index|timeindex|txnindex)$")
    wrong = [
        f"{module.where}:{node.lineno} has {node.value!r}"
        for module in MODULES
        if module.name != "txnlog.names"
        for node in module.nodes()
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and ending.search(node.value)
    ]
    assert wrong == []


def test_only_the_command_prints() -> None:
    """A library's user decides what reaches stdout."""
    printing = [m.where for m in MODULES if m.layer != "cli" and "print" in called_names(m)]
    assert printing == []


def test_symlinks_are_relative_and_point_right() -> None:
    """Tools that run in the checkout see the import names, wherever it was cloned."""
    names = ("segments", "spark", "cli", "ui")
    targets = {name: (ROOT / "txnlog" / name).readlink() for name in names}
    assert {name: str(target) for name, target in targets.items()} == {
        "segments": "../segments",
        "spark": "../spark",
        "cli": "../cli",
        "ui": "../ui",
    }


DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
NAMED_PATH = re.compile(
    r"`((?:txnlog|segments|spark|cli|ui|tests|docs|examples|benchmarks)/[\w./-]+)`"
)


def test_documents_name_files_that_are_there() -> None:
    """A path in a document leads somewhere: what was moved or renamed is moved there too."""
    named = {
        (document.name, path)
        for document in DOCUMENTS
        if document.name != "CHANGELOG.md"
        for path in NAMED_PATH.findall(document.read_text())
    }
    assert len(named) > 50
    assert sorted(where for where in named if not (ROOT / where[1]).exists()) == []


SYMBOL = re.compile(r"`([A-Z]\w*[a-z]\w*|[a-z]\w*_\w+)(?:\.(\w+))?(?:\(\))?`")
"""What looks like a class and a member, or a function, module or test of several words."""


def members() -> dict[str, set[str]]:
    """By class what it and its bases define: methods, and attributes of it and of ``self``."""
    found: dict[str, set[str]] = {}
    bases: dict[str, list[str]] = {}
    for module in MODULES:
        for one in (node for node in module.nodes() if isinstance(node, ast.ClassDef)):
            bases[one.name] = [ast.unparse(base).partition("[")[0] for base in one.bases]
            own = found.setdefault(one.name, set())
            for node in ast.walk(one):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    own.add(node.name)
                elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                    own.add(node.id if isinstance(node, ast.Name) else node.attr)
    for _ in range(5):  # classes that far above
        for name, above in bases.items():
            found[name].update(*(found.get(base, ()) for base in above))
    return found


OF_CODE = ("PROTOCOL", "REPLICATION", "ARCHITECTURE", "CONDITIONS", "ISOLATION")
"""Pages that name it."""


def test_documents_name_code_that_is_there() -> None:
    """What is renamed is renamed there, too."""
    classes = members()
    files = [module.path for module in MODULES] + [*(ROOT / "tests").rglob("*.py")]
    words = {file.stem for file in files}
    for file in files:
        words.update(re.findall(r"\w+", file.read_text()))
    gone = [
        (document, name, member)
        for document in ["CONTRIBUTING.md", *(f"docs/{name}.md" for name in OF_CODE)]
        for name, member in SYMBOL.findall((ROOT / document).read_text())
        if name not in words or (name in classes and member and member not in classes[name])
    ]
    assert gone == []


def test_no_test_is_imported() -> None:
    """What tests share stands beside them or in tests/support, where it is looked for."""
    imports = re.compile(r"^\s*(?:from|import) tests\.\w+(?:\.| import )test_\w+", re.MULTILINE)
    importing = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        for found in imports.findall(path.read_text())
        if not found.endswith(path.stem)  # by children, which run one of its functions
    ]
    assert importing == []


def test_no_generator_holds_a_lock_while_it_waits() -> None:
    """Ctrl-C in what drives it would leave it held, for as long as the traceback is kept.

    ``with lock:`` itself is safe: the interpreter takes no interrupt between it and its block.
    """
    held = [
        f"{module.name}:{block.lineno}"
        for module in MODULES
        for block in module.nodes()
        if isinstance(block, ast.With)
        and any(re.search(r"lock|mutex", ast.unparse(item.context_expr)) for item in block.items)
        and any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(block))
    ]
    assert not held
