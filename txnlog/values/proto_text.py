"""The text of a .proto as descriptors, by Protobuf's own compiler.

The text is somebody else's. The compiler is C++ and runs in a process of its own, with limits of
time, memory and the size of files. It looks for imports in one folder that has nothing but the
schema and its references, whose names are checked; no name reaches its command line.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from txnlog.errors import InvalidSchema, StorageError, require_package

_CPU_S: Final = 20
"""What a text may cost. The clock alone says as much of the machine."""
_TIMEOUT_S: Final = 120
_KILLED: Final = -9
_OUT_OF_TIME: Final = -24
"""By the signal for too much of the processor's time."""
_MOST_OUTPUT: Final = 16 << 20
_MOST_KEPT: Final = 1 << 18
"""Results of texts up to this are kept; they are about as long."""
_NAME: Final = re.compile(r"(?:\w[\w.+-]*/)*\w[\w.+-]*\.proto", re.ASCII)
_MOST_CHARS: Final = 200
_MOST_SHOWN: Final = 300
_MOST_READ: Final = 1 << 20
_LOG: Final = re.compile(r"WARNING: All log|[IWEF]\d{4} |\S+ warning: ")
_LIMITS: Final = (("AS", 2 << 30), ("CPU", _CPU_S), ("FSIZE", _MOST_OUTPUT), ("CORE", 0))
_TEXTS, _DESCRIPTORS, _OUTPUT, _ERRORS = "texts", "descriptors.pb", "output.pb", "errors.txt"
_CHILD: Final = f"""
import json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
try:
    import resource
except ImportError:
    pass
else:
    for kind, most in {_LIMITS}:
        which = getattr(resource, "RLIMIT_" + kind)
        hard = resource.getrlimit(which)[1]
        try:
            resource.setrlimit(which, (most if hard < 0 else min(most, hard), hard))
        except (ValueError, OSError):
            pass
from grpc_tools import protoc
sys.exit(protoc.main(["protoc", *sys.argv[1:]]))
"""


def compile_proto(main: str, texts: Sequence[tuple[str, str]], descriptors: bytes) -> bytes:
    """A descriptor set of a file and all that it imports, each file behind what it imports.

    ``main`` is its name among the ``texts``, which are by name, or in the set ``descriptors``.

    Raises InvalidSchema: it is no .proto, a name is not one of a file, or an import is not there;
    InvalidOption: the compiler is not installed; StorageError: this machine cannot run it, which
    says nothing of the text.
    """
    size = len(descriptors) + sum(len(text) for _, text in texts)
    compiled = _compile_small if size <= _MOST_KEPT else _compile
    return compiled(main, texts, descriptors)


def _compile(main: str, texts: Sequence[tuple[str, str]], descriptors: bytes) -> bytes:
    require_package("grpc_tools", "registry", "the text of a .proto")
    for name, _ in texts:
        if len(name) > _MOST_CHARS or not _NAME.fullmatch(name):
            raise InvalidSchema(f"{name!r:.300} cannot be the name of a .proto that is imported")
    try:
        with TemporaryDirectory(prefix="txnlog-proto-") as made:
            folder = Path(made)
            for name, text in texts:
                _write(folder / _TEXTS / name, text)
            (folder / _DESCRIPTORS).write_bytes(descriptors)
            return _run(folder, main)
    except subprocess.TimeoutExpired as error:
        raise StorageError(f"the compiler of .proto has not ended in {_TIMEOUT_S} s") from error
    except OSError as error:
        raise StorageError(f"the compiler of .proto cannot be run: {error!s:.300}") from error


_compile_small = lru_cache(maxsize=256)(_compile)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except (FileExistsError, NotADirectoryError, IsADirectoryError, UnicodeEncodeError) as error:
        raise InvalidSchema(f"{path.name!r} of a .proto cannot be read: {error!s:.300}") from error


def _run(folder: Path, main: str) -> bytes:
    # Isolated: nothing is imported from the folder, but from where this process looks for modules.
    paths = [path for path in sys.path if Path(path).is_absolute()]
    command = [
        *[sys.executable, "-I", "-c", _CHILD, json.dumps(paths), f"-I{_TEXTS}"],
        *(f"--descriptor_set_in={_DESCRIPTORS}", "--include_imports"),
        *(f"--descriptor_set_out={_OUTPUT}", main),
    ]
    with (folder / _ERRORS).open("wb") as told:
        code = subprocess.run(  # noqa: S603 - nothing of the schema is in the command
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=told,
            timeout=_TIMEOUT_S,
            check=False,
        ).returncode
    if code == _KILLED:
        raise StorageError("the compiler of .proto was killed: for want of memory, probably")
    if code == 0:
        return (folder / _OUTPUT).read_bytes()
    with (folder / _ERRORS).open("rb") as told:
        lines = told.read(_MOST_READ).decode(errors="replace").splitlines()
    # What the compiler's own log has is none of an error.
    errors = [line for line in lines if not _LOG.match(line)]
    why = "; ".join(line.removeprefix(f"{_TEXTS}/") for line in errors)[:_MOST_SHOWN]
    why = why or f"the compiler ended with {code}"
    is_named = any(line.startswith((f"{_TEXTS}/", f"{main}:")) for line in errors)
    output = folder / _OUTPUT
    is_long = output.exists() and output.stat().st_size >= _MOST_OUTPUT
    if code == _OUT_OF_TIME or is_long or (code == 1 and is_named):
        raise InvalidSchema(f"it is no .proto, or its imports are not registered with it: {why}")
    raise StorageError(f"the compiler of .proto has failed, which says nothing of a text: {why}")
