"""Whatever an object holds, with checksums that fit: the right answer or an error of the project's.

Never a signal, a traceback, 10 s of CPU, or 512 MB more than the object's size. A seed decides
everything: ``mutation_runs.py`` says how to make one again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.hostile.footer_mutations import change_footer, read_struct, write_struct
from tests.hostile.mutated_kinds import (
    KINDS,
    Kind,
    read_files,
    read_folders,
    read_replicas,
    read_standby,
    world,
)
from tests.hostile.mutated_worlds import WORLDS, Files
from tests.hostile.mutation_runs import CPU_S, Outcome, Report, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is counted as Linux does")

TIERS = {"few": range(20), "many": range(20, 100), "very-many": range(100, 1200)}
MARKS = {"few": (), "many": (pytest.mark.more,), "very-many": (pytest.mark.slow,)}
OPEN: dict[tuple[str, str], str] = {}
"""What is known to fail, among which seeds, and why."""


def cases() -> Iterator[Any]:
    """Each kind with each range of seeds."""
    for kind in KINDS:
        for tier, marks in MARKS.items():
            reason = OPEN.get((kind, tier))
            failing = (pytest.mark.xfail(reason=reason, strict=True),) if reason else ()
            yield pytest.param(kind, tier, marks=(*marks, *failing), id=f"{kind}-{tier}")


def mutated(kind: str, seeds: range) -> Report:
    attempt = KINDS[kind]
    if isinstance(attempt, Kind):
        attempt.warm()
    return run(kind, seeds, attempt)


@pytest.mark.few(4)
@pytest.mark.parametrize(("kind", "tier"), [*cases()])
def test_a_mutation_ends_in_an_answer_or_an_error_of_ours(
    kind: str, tier: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = mutated(kind, TIERS[tier])
    if tier == "very-many":
        with capsys.disabled():
            sys.stderr.write(f"\n{report}")
    assert report.failures == [], report
    assert report.done == len(TIERS[tier])


@pytest.mark.parametrize("kind", ["delta-log", "iceberg-metadata", "iceberg-manifest"])
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(20), id="few", marks=pytest.mark.more),
        pytest.param(range(20, 620), id="many", marks=pytest.mark.slow),
    ],
)
def test_what_a_table_holds_is_published_over_or_refused(
    kind: str, seeds: range, capsys: pytest.CaptureFixture[str]
) -> None:
    """By libraries that do not survive a fork: in a process of its own."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.hostile.mutated_tables",
            kind,
            str(seeds.start),
            str(seeds.stop),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    with capsys.disabled():
        sys.stderr.write(f"\n{report['said']}")
    assert report["failures"] == []
    assert report["done"] == len(seeds)


@pytest.mark.parametrize("name", WORLDS)
def test_nothing_is_refused_that_was_not_changed(name: str) -> None:
    """Else the mutations of these objects would try nothing."""
    reads: dict[str, Callable[[Outcome, Files, str], None]] = {
        "standby": read_standby,
        "replicas": read_replicas,
        "kafka_folders": read_folders,
    }
    outcome = Outcome(whole=True)
    reads.get(name, read_files)(outcome, dict(world(name)), max(n for n in world(name) if "." in n))
    assert not outcome.refusals
    assert outcome.steps > 4


def test_each_object_of_a_store_is_of_some_kind() -> None:
    """What is new in a store is mutated, too, or this says that it is not."""
    patterns = [kind.names for kind in KINDS.values() if isinstance(kind, Kind)]
    roots = re.compile("^source/|^standby/(?!standby/)|^/mutated/[ab]/incarnation-00000/")
    names = {name: roots.sub("", name) for chosen in WORLDS for name in world(chosen)}
    left = [
        name
        for name, within in names.items()
        if not any(re.search(one, name) or re.search(one, within) for one in patterns)
    ]
    assert left == []


def end_by_signal() -> None:

    os.abort()


def never_end() -> None:
    while True:
        pass


def raise_raw() -> None:
    raise KeyError("raw")


def take_memory() -> object:
    return np.ones(600 << 20, dtype=np.int8).sum()


@pytest.mark.parametrize(
    ("misbehave", "reported"),
    [
        (end_by_signal, "ended by SIGABRT"),
        (never_end, "took more than 1 s of CPU"),
        (raise_raw, "KeyError"),
        (take_memory, "MB of memory"),
    ],
)
def test_each_way_to_misbehave_is_reported(
    misbehave: Callable[[], object], reported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its seed, and the seeds after it are tried."""
    if misbehave is never_end:
        monkeypatch.setattr("tests.hostile.mutation_runs.CPU_S", 1)

    def attempt(seed: int) -> Outcome:
        if seed == 1:
            misbehave()
        return Outcome()

    report = run("made up", range(3), attempt)
    (failure,) = report.failures
    assert failure.startswith("seed 1: ")
    assert reported in failure
    assert report.done == 3


def test_the_limit_is_the_one_that_is_promised() -> None:
    assert CPU_S == 10


def test_footers_are_written_as_they_are_read() -> None:
    """Thrift's compact protocol, as far as footers have it: else mutations would be noise."""
    files: dict[str, Any] = dict(world("parquet"))
    for name, data in files.items():
        if name.endswith(".parquet"):
            size = int.from_bytes(data[-8:-4], "little")
            footer = data[-8 - size : -8]
            fields, end = read_struct(footer, 0)
            assert end == len(footer)
            assert write_struct(fields) == footer
            assert change_footer(Random(1), data) != data
