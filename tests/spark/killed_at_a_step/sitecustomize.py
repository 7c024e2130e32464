"""Kills a driver at one of its steps: whichever of its Python processes takes it.

Python imports this when it starts, where this folder is on PYTHONPATH. A step is a file that is
about to be created in a store, by which a transaction goes on: the driver, the JVM and all workers
end there, with nothing caught or closed. The steps are told to a file, a line for each, from when
the driver has made it.
"""

from __future__ import annotations

import os
import runpy
import subprocess
from pathlib import Path

from txnlog.storage.adapters.local import LocalStorage

STEPS = "TXNLOG_TEST_STEPS"
"""The file to which steps are told."""
LAST_STEP = "TXNLOG_TEST_LAST_STEP"
"""The number of the step that is not taken any more; the first has number 1."""

_put_if_absent = LocalStorage.put_if_absent


def _put_unless_killed(self: LocalStorage, name: str, data: bytes) -> bool:
    steps = Path(os.environ[STEPS])
    if not steps.exists():
        return _put_if_absent(self, name, data)
    with steps.open("a") as file:
        file.write(f"{name}\n")
    if len(steps.read_text().splitlines()) >= int(os.environ[LAST_STEP]):
        subprocess.run(["pkill", "-KILL", "--session", f"{os.getsid(0)}"], check=True)
    return _put_if_absent(self, name, data)


# Python imports one module of this name only: this is the other one.
runpy.run_path(str(Path(__file__).parents[2] / "support" / "children" / "sitecustomize.py"))
if STEPS in os.environ:
    LocalStorage.put_if_absent = _put_unless_killed  # type: ignore[method-assign]
