"""Processes of tests: Spark drivers and clusters, listened to, and killed with all they started."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

HERE = Path(__file__).parent
SILENCE_S = 300.0


class Process:
    """A process in a session of its own, and the lines that it says.

    Args:
        folder: where it, Spark and the JVM leave their temporary files.
        command: program and arguments.
        logs_to_stdout: what goes to stderr is listened to as well.
        environment: variables to add.
    """

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        *,
        logs_to_stdout: bool = False,
        environment: dict[str, str] | None = None,
    ) -> None:
        folder.mkdir(exist_ok=True)
        inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        paths = [str(Path(path).absolute()) for path in inherited if path]
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(folder),
            "TMPDIR": str(folder),
            "PYTHONWARNINGS": "ignore",
            **(environment or {}),
        }
        self._log = folder / f"stderr-{time.monotonic_ns()}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if logs_to_stdout else log,
                cwd=folder,
                env=variables,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.process.stdout, selectors.EVENT_READ)
        self._heard = b""
        self._said: tuple[str, float] | None = None
        self.took_s: dict[str, float] = {}
        """How long after a line, when it was said last, another one followed."""
        self.over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Leave no process behind, whatever state it is in."""
        self.kill()
        self._selector.close()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()

    # -- what it says ----------------------------------------------------------------------------

    def line(self, timeout_s: float | None = None) -> str | None:
        """The next line; "" once it is over; None if it says nothing for so long.

        Without a timeout it must say something: else, the test has failed.
        """
        deadline = time.monotonic() + (SILENCE_S if timeout_s is None else timeout_s)
        while b"\n" not in self._heard and not self.over:
            left = deadline - time.monotonic()
            if left < 0 or not self._selector.select(left):
                assert timeout_s is not None, f"it says nothing: {self.errors()}"
                return None
            data = os.read(self._descriptor(), 4096)
            self._heard += data
            self.over = not data
        line, _, self._heard = self._heard.partition(b"\n")
        words, now = line.decode(), time.monotonic()
        if self._said is not None:
            self.took_s[self._said[0]] = now - self._said[1]
        self._said = words, now
        return words

    def wait_for(self, *wanted: str) -> str:
        """Listen until it says one of these; "" if it is over before."""
        while True:
            words = self.line()
            assert words is not None
            if words in wanted or (self.over and not words):
                return words

    def errors(self) -> str:
        """The end of what it wrote to stderr."""
        return self._log.read_text(errors="replace")[-4000:]

    def _descriptor(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    # -- what is done to it ----------------------------------------------------------------------

    def listen(self, seconds: float) -> None:
        """Let so much time pass, unless it is over before."""
        deadline = time.monotonic() + seconds
        while not self.over and (left := deadline - time.monotonic()) > 0:
            self.line(left)

    def go_on(self) -> None:
        """Give it the line that it waits for."""
        self.tell("")

    def tell(self, line: str) -> None:
        """Give it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def end(self) -> int:
        """Wait for its end; the exit status."""
        return self.process.wait(SILENCE_S)

    def close(self) -> None:
        """Tell it nothing any more, and let it end by itself, if it does."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(SILENCE_S / 5)

    def interrupt(self) -> None:
        """What Ctrl-C in a terminal does: SIGINT to the group in the foreground."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL to Python, the JVM, and the Python workers, which have a group of their own."""
        while members := self._members():
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.poll()
        self.process.wait()

    def kill_python_only(self) -> None:
        """SIGKILL to the user's process: the JVM and the workers learn of it later, and end."""
        self.process.kill()
        self.process.wait()

    def _members(self) -> list[int]:
        """Living processes of its session."""
        listing = subprocess.run(
            ["ps", "-A", "-o", "pid=,stat="], capture_output=True, text=True, check=True
        )
        found = []
        for row in listing.stdout.splitlines():
            pid, state = row.split()[:2]
            with suppress(ProcessLookupError, PermissionError):
                if not state.startswith("Z") and os.getsid(int(pid)) == self.process.pid:
                    found.append(int(pid))
        return found


def driver(
    folder: Path, script: str, *arguments: object, environment: dict[str, str] | None = None
) -> Process:
    """Run a script of this folder."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    return Process(folder, command, environment=environment)
