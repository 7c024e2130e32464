"""A small object takes little memory, whatever it says of its size."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

from txnlog.inspect.files import open_segment_file
from txnlog.inspect.segments import check_segment_file

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


def test_a_file_of_zeros_is_searched_without_copies_of_it(tmp_path: Path) -> None:
    """As after a crash: each of its bytes could be a format's number, and was gathered once."""
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(bytes(4 << 20))
    with open_segment_file(str(path)) as file:
        tracemalloc.start()
        found = check_segment_file(file)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.damages
    assert peak_bytes < 12 << 20
