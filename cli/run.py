"""Runs one command line: every way it can end becomes one clear line and an exit code."""

from __future__ import annotations

import os
import sys

from txnlog.cli.app import app
from txnlog.cli.output.streams import (
    DAMAGE,
    FAILURE,
    INTERRUPTED,
    OK,
    OUTPUT_CLOSED,
    USAGE,
    DamageFound,
    OutputClosed,
    flush,
    warn,
)
from txnlog.errors import CorruptEntry, CorruptRecord, TxnlogError


def run() -> int:
    """Run the command line of this process; returns the exit code."""
    try:
        _open_streams()
        code = _run_app()
        flush()
    except OutputClosed:
        _forget_stdout()
        code = OUTPUT_CLOSED
    except KeyboardInterrupt:
        code = INTERRUPTED
    except DamageFound:
        code = DAMAGE
    except TxnlogError as error:
        _say(str(error))
        code = DAMAGE if isinstance(error, (CorruptRecord, CorruptEntry)) else FAILURE
    except OSError as error:
        _say(f"cannot write the output: {error}")
        _forget_stdout()
        code = FAILURE
    except ModuleNotFoundError:
        raise
    except Exception as error:
        if os.environ.get("TXNLOG_DEBUG"):
            raise
        _say(
            f"unexpected {type(error).__name__}: {error}; this is a bug in txnlog: "
            "set TXNLOG_DEBUG=1 to see where, and report it"
        )
        code = FAILURE
    return code


def _open_streams() -> None:
    """Open the null device in place of standard streams that were closed when the process began.

    Otherwise the next file to be opened would get their numbers, and their output.
    Raises OSError if that is stdout: its data would be lost.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            stream = open(opened, "r" if number == 0 else "w", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            if name == "stdout":
                raise OSError("stdout is closed")


def _run_app() -> int:
    for number, argument in enumerate(sys.argv[1:], 1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            _say(f"argument {number}, {argument!r:.60}, is not UTF-8")
            return USAGE
    try:
        app(prog_name="txnlog")
    except SystemExit as exit_:  # typer has reported a wrong usage, or the command is done
        return exit_.code if isinstance(exit_.code, int) else OK
    return OK


def _forget_stdout() -> None:
    """Send the interpreter's last flush to the null device, where it cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(message: str) -> None:
    """One message for people, on stderr."""
    warn(" ".join(message.split()))
