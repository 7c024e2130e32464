"""Objects of modules in Spark's Python workers: they stay, and are not looked at after each task.

A worker collects garbage when a task has ended, among all objects that there are. The modules of
pyspark, pyarrow and txnlog make 90,000, and looking at them takes about as long as reading a few
megabytes: 20 ms of CPU for each task, for each planned write and for each commit.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

_DAEMON = "pyspark.daemon"
"""Its children run one task after the other, and collect garbage between them."""
_spared: Final[dict[int, int]] = {}
"""How many modules a process had when its objects were spared."""


def spare_modules() -> None:
    """Let later garbage collections of a Spark worker skip the modules that a task has loaded.

    Called at the end of a task; without new modules it does nothing. It also freezes whatever else
    is alive then, which limits what may leak. Outside of workers it does nothing: other processes
    belong to their users.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    loaded = len(sys.modules)
    if main is None or main.name != _DAEMON or _spared.get(os.getpid()) == loaded:
        return
    _spared[os.getpid()] = loaded
    gc.collect()
    gc.freeze()
