"""The code blocks of a document: found, and run in order as a reader would paste them.

``python`` blocks share one namespace, shell blocks one folder and one environment. What a document
shows as output is compared. A block that cannot run has ``<!-- not run: reason -->`` before it.

markdown-it finds the blocks. The rest is small: libraries for this (Sybil, mktestdocs,
pytest-markdown-docs) run Python, but no shell blocks, and we have as many of these.
"""

from __future__ import annotations

import atexit
import contextlib
import doctest
import functools
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from tests.support.checkout import PYPROJECT, ROOT
from tests.support.cli.cli_command import environment, server_address

DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")]
SPARK_DOCUMENTS = ("README.md", "docs/MOVING_FROM_KAFKA.md", "docs/SPARK.md", "docs/TUTORIAL.md")
"""Documents whose code needs Spark: tests/spark runs it, in the session of all its tests."""
PLAIN = {"text", "xml", "properties"}
"""Blocks that are not code of ours: formats, timelines, other programs' settings."""
NOT_RUN = re.compile(r"<!-- not run: (.+) -->\s*")
MAKE = re.compile(r"make(?P<targets>(?: [a-z-]+)*)(?: \w+=.*)?$")
PIP = re.compile(r"(?:\S*python -m )?(?:\S*/)?pip install (?:-\S+ )*(?P<what>.+)$")
EXTRAS = re.compile(r"\[([\w,-]+)\]")
_CHECKER = doctest.OutputChecker()
_LENIENT = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """One block of code: its language, where it stands, and why it is not run if it is not."""

    document: str
    line: int
    language: str
    text: str
    reason: str | None
    heading: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks_of(path: Path) -> list[Block]:
    """All blocks of a document in their order; an indented one is of the shell."""
    found, reason, heading, in_heading = [], None, "", False
    for token in MarkdownIt().disable("inline").parse(path.read_text(encoding="utf-8")):
        if in_heading:
            heading = token.content
        in_heading = token.type == "heading_open"
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            language = token.info.strip() if token.type == "fence" else "sh"
            where = path.relative_to(ROOT).as_posix()
            line = token.map[0] + 1
            found.append(Block(where, line, language, token.content, reason, heading))
        matched = NOT_RUN.fullmatch(token.content) if token.type == "html_block" else None
        reason = matched[1] if matched else None
    return found


@dataclass
class Runner:
    """Runs blocks one after another: in ``folder``, where ``/data`` and ``/tmp`` are too."""

    folder: Path
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    variables: dict[str, str] = field(default_factory=dict)
    sql: Callable[[str], object] | None = None
    printed: str = ""

    def __post_init__(self) -> None:
        for name in ("data", "tmp", "var/kafka"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    def run(self, blocks: list[Block]) -> None:
        """Run what is to be run; what fails says where it stands."""
        with contextlib.chdir(self.folder):
            for block in blocks:
                if block.reason is None:
                    self._run_one(block)

    def _run_one(self, block: Block) -> None:
        text = self.placed(block.text)
        match block.language:
            case "python":
                self.printed = self._python(text, block)
            case "output":
                self._compare(text, self.printed, block)
            case "sh" | "console":
                self._shell(text, block)
            case "sql":
                assert self.sql, f"{block}: SQL needs Spark"
                for statement in filter(str.strip, text.split(";")):
                    self.sql(statement)
            case "toml":
                tomllib.loads(text)
            case "json":
                json.loads(text)
            case plain:
                assert plain in PLAIN, f"{block}: name its language, or `text`"

    def placed(self, text: str) -> str:
        """The block with folders of its own for those that it names on the reader's machine."""
        return re.sub(r"(?<![\w.])/(data|tmp|var/kafka)\b", rf"{self.folder}/\1", text)

    def _python(self, text: str, block: Block) -> str:
        # So many empty lines that a traceback has the document's own numbers.
        code = compile("\n" * block.line + text, str(ROOT / block.document), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as stdout:
            exec(code, self.names)
        return stdout.getvalue()

    def _shell(self, text: str, block: Block) -> None:
        """Run commands; in a block with prompts compare what they print."""
        if re.search(r"^\$ ", text, re.MULTILINE):
            parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
            assert not parts[0].strip(), f"{block}: begins with output"
            for part in parts[1:]:
                command, expected = _split_command(part)
                self._compare(expected, self._command(command, block), block, command)
        else:
            self._command(text, block)

    def _compare(self, expected: str, got: str, block: Block, of: str = "") -> None:
        if not _CHECKER.check_output(_outdented(expected), _outdented(got), _LENIENT):
            raise AssertionError(f"{block}: {of}\nshown:\n{expected}\nis:\n{got}")

    def _command(self, text: str, block: Block) -> str:
        """Stdout of commands that all must do well, with the variables that others have set."""
        kept = self.folder / ".variables"
        lines = [line for line in text.replace("\\\n", " ").splitlines() if not checked(line)]
        if not "".join(lines).strip():
            return ""
        script = "set -eo pipefail\n{}\ndeclare -px > {}\n".format("\n".join(lines), kept)
        if kept.exists():
            script = f"source {kept}\n{script}"
        done = subprocess.run(
            ["bash", "-c", script],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**_shell_path(), **self.variables},
        )
        assert done.returncode == 0, (
            f"{block}: {done.returncode}\n{text}\n{done.stdout}{done.stderr}"
        )
        return done.stdout


def _split_command(part: str) -> tuple[str, str]:
    """The command behind a prompt, continued lines and all, and the output that is shown."""
    lines = part.splitlines(keepends=True)
    last = next(n for n, line in enumerate(lines) if not line.endswith("\\\n"))
    return "".join(lines[: last + 1]), "".join(lines[last + 1 :])


def _outdented(text: str) -> str:
    return textwrap.dedent("\n".join(line for line in text.splitlines() if line.strip()))


def checked(line: str) -> bool:
    """Whether a command is one that tests cannot run, and that names what there is.

    A target of the Makefile, or extras of the package.
    """
    command = line.partition(" #")[0].strip()
    if found := MAKE.fullmatch(command):
        for target in found["targets"].split():
            assert target in _targets(), f"make {target}"
        return True
    if found := PIP.fullmatch(command):
        extras = PYPROJECT["project"]["optional-dependencies"]
        for names in EXTRAS.findall(found["what"]):
            assert set(names.split(",")) <= extras.keys(), command
        return True
    return False


@functools.cache
def _targets() -> frozenset[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^([a-z-]+):.*## ", text, re.MULTILINE))


CLIENT = """#!{python} -IES
import json, os, socket, sys

server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
request = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
socket.send_fds(server, [len(request).to_bytes(4, "big")], [0, 1, 2])
server.sendall(request)
for descriptor in (0, 1, 2):
    os.close(descriptor)
code = int.from_bytes(server.recv(4), sys.byteorder, signed=True)
os._exit(code if code >= 0 else 128 - code)
"""
"""A ``txnlog`` that has its command run by the server of tests/cli, which has everything loaded."""


@functools.cache
def _shell_path() -> dict[str, str]:
    """Where the shell finds ``txnlog`` and ``python``."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    command = folder / "txnlog"
    command.write_text(CLIENT.format(python=sys.executable, address=server_address()))
    command.chmod(0o755)
    python = Path(sys.executable).parent
    path = os.pathsep.join([str(folder), str(python), os.environ["PATH"]])
    return environment(PATH=path, COLUMNS="120")
