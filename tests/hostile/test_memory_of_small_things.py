"""A small object takes little memory, whatever it says of its size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MOST_BYTES = 64 << 20
SECONDS = 60


def test_what_is_refused_takes_little_memory_first() -> None:
    """Tokens, entries and checkpoints of a few KB that once took up to 4 GB; in one child."""
    done = subprocess.run(
        [sys.executable, "-P", str(Path(__file__).with_name("memory_child.py"))],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    grown = json.loads(done.stdout)
    assert len(grown) == 9
    assert {name: taken for name, (_, taken) in grown.items() if taken > MOST_BYTES} == {}
