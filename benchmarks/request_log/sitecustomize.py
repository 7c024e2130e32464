"""Writes each request to a store to a file: for processes that Spark starts, by their PYTHONPATH.

Python imports a module of this name when it starts. Without the variable it does nothing.
"""

from __future__ import annotations

import logging
import os

_PLACE = os.environ.get("TXNLOG_REQUEST_LOG")

if _PLACE:
    _requests = logging.getLogger("txnlog.requests")
    _requests.setLevel(logging.DEBUG)
    _requests.propagate = False
    _file = logging.FileHandler(_PLACE)  # opened for appending: a short line is written whole
    _file.setFormatter(
        logging.Formatter("%(created).4f\t%(process)d\t%(request)s\t%(took_ms).2f\t%(object)s")
    )
    _requests.addHandler(_file)
