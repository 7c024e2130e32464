"""What the doctor says of the roots of a replicated store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import txnlog
from tests.support.replication.replica_folders import (
    FIRST,
    SECOND,
    lose,
    make,
    make_written,
    objects,
    skip_probes,
)
from txnlog.replication import Replicas, root_names
from txnlog.replication.examination import epoch_violations
from txnlog.replication.roots.epochs import (
    Proposer,
    decided_at,
    elected,
    elected_unclean,
    first_epoch,
    joined,
    joining,
    without,
)
from txnlog.results import Finding

WHO = Proposer("x", 0, "test")
MADE = first_epoch({"r0": "/a", "r1": "/b"}, {}, WHO)
ALONE = without(MADE, "r1-0", WHO)
JOINING = joining(ALONE, "r1-1", "/b", WHO)
JOINED = joined(JOINING, "r1-1", 2, 0, WHO)
assert JOINED is not None


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> txnlog.Store:
    skip_probes(monkeypatch)
    return make_written(tmp_path, "1")


def findings(store: txnlog.Store, *, with_contents: bool = False) -> list[Finding]:
    found = store.examine(with_probe=False, with_contents=with_contents)
    return [one for one in found if one.check == "replicas" or one.state != "ok"]


def test_roots_that_are_sound_and_one_that_is_out(made: txnlog.Store) -> None:
    (found,) = findings(made)
    assert (found.state, found.detail) == ("ok", "epoch 0, in sync: r0-0, r1-0")
    Replicas(made).remove("r1")
    note, found = findings(made)
    assert (note.state, note.subject, found.state) == ("note", "r1", "ok")
    assert "(an operator took it out); `txnlog replicas add" in note.detail


@pytest.mark.parametrize("gone", [FIRST, SECOND])
def test_a_file_that_one_root_lacks_is_not_lost(
    made: txnlog.Store, tmp_path: Path, gone: str
) -> None:
    """One finding, with its remedy; with --deep the segment is read, from the other root."""
    (name,) = (name for name in objects(tmp_path / gone) if name.endswith("-0.log"))
    (tmp_path / gone / name).unlink()
    (found,) = findings(made, with_contents=True)
    assert (found.state, found.rule, found.path) == ("damage", "R1", name)
    assert "verify --repair" in found.detail


def cut(path: Path, by: int) -> None:
    path.write_bytes(path.read_bytes()[:-by])


def flip(path: Path, at: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-at] + bytes([data[-at] ^ 1]) + data[len(data) - at + 1 :])


def lose_file(path: Path, _: int) -> None:
    path.unlink()


REPAIR = "`txnlog replicas verify --deep --repair` replaces it"
RESTORE = "restore it from a backup"
MOUNT = "mount its disk, or start its server"


@pytest.mark.parametrize("harm", [cut, flip, lose_file])
@pytest.mark.parametrize(
    ("where", "other", "remedy"),
    [
        ([FIRST], "in", REPAIR),
        ([SECOND], "in", REPAIR),
        ([FIRST, SECOND], "in", RESTORE),
        ([FIRST], "out", REPAIR),
        ([FIRST, SECOND], "out", RESTORE),
        ([FIRST], "away", MOUNT),
    ],
    ids=["leader", "follower", "both", "alone", "everywhere", "alone, the other away"],
)
def test_a_file_has_one_remedy(
    made: txnlog.Store,
    tmp_path: Path,
    where: list[str],
    other: str,
    remedy: str,
    harm: Callable[[Path, int], None],
) -> None:
    """By whatever it is found: a backup where no root has it whole, and then alone."""
    (name,) = (name for name in objects(tmp_path / FIRST) if name.endswith("-0.log"))
    if other != "in":
        Replicas(made).remove("r1")
    for number, root in enumerate(where):
        harm(tmp_path / root / name, 6 + number)
    if other == "away":
        lose(tmp_path / "b")
    found = [one for one in findings(made, with_contents=True) if one.path == name]
    if harm is lose_file:
        remedy = remedy.replace("--deep --repair` replaces", "--repair` copies")
    told = {(one.check, word) for one in found for word in REMEDIES if word in one.detail}
    of_roots = {(check, word) for check, word in told if check == "replicas"}
    assert of_roots == {("replicas", remedy)}
    # Whoever reads the file cannot tell what a root that does not answer has.
    if other != "away":
        assert {word.replace("the file", "it") for _, word in told} == {remedy}
    done = [*Replicas(made).verify(with_contents=True, repair=True)]
    assert [one.is_repaired for one in done] == ["verify" in remedy]


REMEDIES = (
    REPAIR,
    REPAIR.replace("--deep --repair` replaces", "--repair` copies"),
    RESTORE,
    "restore the file from a backup",
    MOUNT,
    "`txnlog replicas add`",
    "`txnlog replicas reassign`",
)


def test_a_disk_that_is_not_mounted(made: txnlog.Store, tmp_path: Path) -> None:
    lose(tmp_path / "b")
    found = {one.rule: one for one in findings(made)}
    assert (found["R7"].state, found["R7"].subject) == ("damage", "r1-0")


def test_too_few_in_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_probes(monkeypatch)
    store = make(tmp_path, **{"min.insync.replicas": 2})
    agreement = store.storage.agreement  # type: ignore[attr-defined]
    assert agreement.put_out(agreement.refresh(), "r1-0", "it fails")
    noted = {one.rule: one for one in findings(store) if one.state == "note"}
    assert noted["R6"].detail.startswith("1 in sync, min.insync.replicas is 2")


def test_below_the_minimum_the_rest_is_examined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the storage promises cannot be tried then."""
    skip_probes(monkeypatch)
    store = make_written(tmp_path, "1")
    Replicas(store).alter({"min.insync.replicas": 2})
    Replicas(store).remove("r1")
    found = [*store.examine()]
    assert (found[0].check, found[0].state) == ("probe", "unreadable")
    assert "min.insync.replicas is 2" in found[0].detail
    assert ("topic", "t", "ok") in [(one.check, one.subject, one.state) for one in found]


def test_no_root_answers(made: txnlog.Store, tmp_path: Path) -> None:
    """What is known of the roots is told all the same."""
    for which in "ab":
        lose(tmp_path / which)
    found = findings(made)
    assert [one.subject for one in found if one.rule == "R7"] == ["r0-0", "r1-0"]
    assert found[-1].state == "unreadable"
    assert "topics, groups and transactional ids could not be examined" in found[-1].detail


def test_an_epoch_that_is_gone(made: txnlog.Store, tmp_path: Path) -> None:
    Replicas(made).remove("r1")
    Replicas(made).add(str(tmp_path / "b"))
    (tmp_path / "control" / root_names.epoch_file(1)).unlink()
    (found,) = (one for one in findings(made) if one.state == "damage")
    assert found.detail == "epoch 1 is gone, and 2 is there"


@pytest.mark.parametrize(
    ("before", "after", "changed", "rule"),
    [
        (ALONE, JOINING, {"leader": "r1-1", "leader_since": 2}, "R5"),
        (MADE, elected(MADE, "r1-0", WHO), {"leader_since": 0}, "R5"),
        (ALONE, JOINED, {}, "R4"),
        (JOINING, JOINED, {"leader_since": 3}, "R4"),
        (ALONE, JOINING, {"joining": {"r1-0": 2}}, "R4"),
        (ALONE, JOINING, {"joining": {"r1-1": 1}}, "R4"),
        (ALONE, elected_unclean(ALONE, "r1-0", WHO), {"unclean": 0}, "R5"),
        (MADE, decided_at(MADE, "/c", WHO), {"controllers": ("/c", "/d", "/e")}, "R9"),
        (decided_at(MADE, "/c", WHO), ALONE, {}, "R9"),
        (ALONE, elected_unclean(ALONE, "r1-0", WHO), {"last_unclean": -1}, "R5"),
        (ALONE, elected_unclean(ALONE, "r1-0", WHO), {"leader": "r0-0"}, "R5"),
    ],
)
def test_epochs_that_do_not_follow(
    before: Any, after: Any, changed: dict[str, Any], rule: str
) -> None:
    """As they are they do, but for one that is left out."""
    assert bool([*epoch_violations(before, after)]) == (not changed)
    broken = msgspec.structs.replace(after, **changed)
    assert rule in [rule for rule, _ in epoch_violations(before, broken)]
