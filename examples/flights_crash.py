"""Runs the Spark job of the demo and kills it at the worst moment, for certain.

The job itself knows nothing of this: its store lies on a storage that kills the process with
SIGKILL just before, or just after, the one put that decides a transaction. Nothing is caught,
closed or cleaned up.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from txnlog.clock import SystemClock
from txnlog.storage.adapters.local import LocalStorage
from txnlog.store import attach

sys.path.insert(0, str(Path(__file__).resolve().parent))
import flights_job

MOMENTS = {
    "before-decision": "all is placed, nothing is decided",
    "after-decision": "it is decided, no marker is written",
}


class FatalStorage(LocalStorage):
    """Kills its process at one moment of the ``victim``-th transaction that is to be committed."""

    def __init__(self, root: str, moment: str, victim: int) -> None:
        super().__init__(root)
        self._moment = moment
        self._left = victim

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if b'"status":"PrepareCommit"' not in data:
            return super().put_if_absent(name, data)
        self._left -= 1
        self._die_if("before-decision")
        created = super().put_if_absent(name, data)
        self._die_if("after-decision")
        return created

    def _die_if(self, moment: str) -> None:
        if self._left == 0 and moment == self._moment:
            print(f"   next batch: killed with SIGKILL: {MOMENTS[moment]}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    parser = flights_job.arguments()
    parser.add_argument("--moment", choices=MOMENTS, required=True)
    parser.add_argument("--victim", type=int, required=True, help="which transaction, from 1")
    given = parser.parse_args()
    storage = FatalStorage(given.store, given.moment, given.victim)
    flights_job.run(attach(storage, clock=SystemClock()), given.batch_size)
