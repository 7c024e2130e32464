"""What a person sees on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path

from cli_command import COMMAND, environment

import txnlog


def on_terminal(columns: int, *arguments: object, **variables: str) -> str:
    """The output of a command whose stdout is a terminal of that width."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=follower,
        stderr=subprocess.DEVNULL,
        env=environment(TERM="xterm-256color", **variables),
    )
    os.close(follower)
    shown = b""
    try:
        while chunk := os.read(leader, 65536):
            shown += chunk
    except OSError:  # Linux says so when the other end is closed
        pass
    os.close(leader)
    assert process.wait(30) == 0
    return shown.decode().replace("\r\n", "\n")


def test_tables_fit_the_terminal_and_colour_can_be_turned_off(store_path: Path) -> None:
    """At 80 columns no line is longer and wide columns are left out; NO_COLOR leaves no colour."""
    segments = txnlog.open(str(store_path)).segments("orders")
    command = ("segments", "ls", "orders", "--store", store_path)
    narrow = on_terminal(80, *command, NO_COLOR="1")
    plain = re.sub(r"\x1b\[\d*m", "", narrow)
    wide = on_terminal(160, *command)
    assert max(map(len, plain.splitlines())) <= 80
    assert all(known.name in plain for known in segments)
    assert "FROM" not in plain
    assert "FROM" in wide
    assert "\x1b[1m" in wide
    assert "\x1b[3" not in narrow
