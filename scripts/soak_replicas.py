"""Random runs of replicas and standbys, one after the other, for as long as one likes.

`make soak-replicas ARGS="--runs 20000"`. Each run is a kind of world and a seed, which decide
everything: what fails is told so that it can be run again by `--only KIND --first SEED --runs 1`.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

sys.path.append(str(Path(__file__).parents[1]))  # last: what is installed goes first

from tests.support.replication import replica_world, standby_world, unclean_world
from tests.support.replication.replica_world import CALM, ROUGH, STORMY
from txnlog.testing import FaultRates

Run: TypeAlias = Callable[[int], Mapping[str, int]]


def _on_roots(rates: FaultRates, **options: bool | int) -> Run:
    return lambda seed: replica_world.run_seeds([seed], rates, **options)


def _standby(rates: FaultRates, **options: bool) -> Run:
    return lambda seed: standby_world.run_seeds([seed], rates, **options)


def _unclean(rates: FaultRates, **options: bool | int) -> Run:
    return lambda seed: unclean_world.run_seeds([seed], rates, **options)


KINDS: Final[Mapping[str, Run]] = {
    "rough": _on_roots(ROUGH),
    "stormy": _on_roots(STORMY, roots=5),
    "scarce": _on_roots(ROUGH, roots=2, scarce=True),
    "rotten": _on_roots(ROUGH, rots=True),
    "rotten-stormy": _on_roots(STORMY, rots=True, roots=5),
    "rotten-operated": _on_roots(ROUGH, rots=True, roots=4, operated=True),
    "rotten-placed": _on_roots(ROUGH, rots=True, placed=True),
    "forgetful": _on_roots(ROUGH, forgets=True),
    "slow": _on_roots(CALM, stalls=True),
    "slow-rough": _on_roots(ROUGH, stalls=True, timed=False),
    "hanging": _on_roots(CALM, hangs=True),
    "hanging-decaying": _on_roots(CALM, hangs=True, decays=True),
    "unmounted": _on_roots(ROUGH, unmounts=True),
    "unmounted-placed": _on_roots(ROUGH, unmounts=True, placed=True, roots=4),
    "unmounted-operated": _on_roots(STORMY, unmounts=True, operated=True, roots=4),
    "cleaned": _on_roots(ROUGH, cleans=2),
    "cleaned-operated": _on_roots(STORMY, cleans=2, roots=4, operated=True),
    "severed": _on_roots(ROUGH, severs=True),
    "severed-placed": _on_roots(ROUGH, severs=True, placed=True, roots=4),
    "severed-operated": _on_roots(STORMY, severs=True, operated=True, roots=4),
    "grown": _on_roots(ROUGH, grows=True),
    "grown-operated": _on_roots(STORMY, grows=True, roots=4, operated=True),
    "lost": _on_roots(ROUGH, loses=True),
    "lost-stormy": _on_roots(STORMY, loses=True, roots=4),
    "lost-operated": _on_roots(ROUGH, loses=True, roots=4, operated=True),
    "lost-grown": _on_roots(ROUGH, loses=True, grows=True),
    "lost-severed": _on_roots(ROUGH, loses=True, severs=True),
    "lost-cleaned": _on_roots(ROUGH, loses=True, cleans=2, operated=True),
    "operated": _on_roots(ROUGH, roots=4, operated=True),
    "operated-stormy": _on_roots(STORMY, roots=4, operated=True),
    "placed": _on_roots(ROUGH, placed=True),
    "placed-stormy": _on_roots(STORMY, placed=True, roots=4),
    "placed-operated": _on_roots(ROUGH, placed=True, roots=4, operated=True),
    "placed-operated-stormy": _on_roots(STORMY, placed=True, operated=True),
    "decayed": _on_roots(ROUGH, decays=True, operated=True),
    "decayed-placed": _on_roots(ROUGH, decays=True, placed=True),
    "decayed-placed-operated": _on_roots(ROUGH, decays=True, placed=True, roots=4, operated=True),
    "decayed-placed-stormy": _on_roots(STORMY, decays=True, placed=True, operated=True),
    "unclean": _unclean(ROUGH, placed=False),
    "unclean-placed": _unclean(ROUGH, roots=4),
    "unclean-placed-stormy": _unclean(STORMY),
    "standby": _standby(standby_world.ROUGH),
    "standby-stormy": _standby(standby_world.STORMY),
    "standby-unmounted": _standby(standby_world.ROUGH, unmounts=True, sweeps=True),
}


def soak(kinds: list[str], first: int, runs: int) -> int:
    """Run kind after kind, seed after seed; returns how many runs have failed."""
    done: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    failed = 0
    began_s = time.monotonic()
    for number in range(runs):
        kind, seed = kinds[number % len(kinds)], first + number // len(kinds)
        try:
            seen.update(KINDS[kind](seed))
        except Exception:  # noqa: BLE001 - whatever it is, it is told, and the others go on
            failed += 1
            print(f"FAILED: --only {kind} --first {seed} --runs 1\n{traceback.format_exc()}")
        done[kind] += 1
        if number % 500 == 499 or number == runs - 1:
            took_s = time.monotonic() - began_s
            told = ", ".join(f"{count} {what}" for what, count in sorted(seen.items()))
            print(f"{number + 1} runs, {failed} failed, {took_s:.0f} s: {told}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in done.items()))
    return failed


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", choices=KINDS, action="append", help="kinds; all if not given")
    options.add_argument("--first", type=int, default=100_000, help="the first seed")
    options.add_argument("--runs", type=int, default=2_000, help="how many in all")
    chosen = options.parse_args()
    logging.disable(logging.WARNING)  # every epoch is logged
    return 1 if soak(chosen.only or list(KINDS), chosen.first, chosen.runs) else 0


if __name__ == "__main__":
    sys.exit(main())
