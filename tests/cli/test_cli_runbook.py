"""Each state that ``replicas describe`` shows, and what docs/REPLICAS.md says to type then.

The commands are taken from the page: it names each state that there is, and what it says helps.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import msgspec
import pytest

import txnlog
from tests.support.checkout import ROOT
from tests.support.cli.cli_command import cli
from tests.support.replication.replica_folders import lose, skip_probes, values, write
from txnlog.replication import Replica, Replicas, ReplicasDescription, open_replicas
from txnlog.replication.roots.description import Answer, Condition, RootState
from txnlog.replication.roots.epochs import Root, joining
from txnlog.replication.roots.find_replicas import prepare_root
from txnlog.replication.roots.replicated_storage import ReplicatedStorage, find_replicated
from txnlog.testing import VirtualClock

PAGE = (ROOT / "docs/REPLICAS.md").read_text()


class Roots:
    """A store on ``disk1`` and ``disk2`` with one record; things happen to its roots."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disks = folder / "disk1/store", folder / "disk2/store"
        self.store = open_replicas(
            [str(self.disks[0]), str(self.disks[1])],
            controller=str(folder / "control"),
            create=True,
            clock=VirtualClock(),
        ).store
        self.store.topics.create("t", partitions=1)
        write(self.store, "1")
        self.mend: Callable[[], object] = lambda: None

    @property
    def storage(self) -> ReplicatedStorage:
        found = find_replicated(self.store.storage)
        assert found is not None
        return found

    def lose(self, which: int) -> None:
        """An empty folder is in a disk's place."""
        self.mend = lose(self.disks[which])

    def jam(self, which: int) -> None:
        """Each request to a root fails, whatever it is for."""
        disk = self.disks[which]
        away = disk.rename(disk.with_name("away"))
        disk.symlink_to(disk)

        def mend() -> None:
            disk.unlink()
            away.rename(disk)

        self.mend = mend

    def put_out(self) -> None:
        agreement = self.storage.agreement
        assert agreement.put_out(agreement.refresh(), "r1-0", "it fails")

    def begin_to_join(self) -> None:
        """And be killed."""
        self.put_out()
        _, url = prepare_root(self.storage, str(self.disks[1]))
        agreement = self.storage.agreement
        who = agreement.proposer("it joins")
        agreement.propose_alone(joining(agreement.refresh(), "r1-1", url, who))

    def fall_below(self) -> None:
        Replicas(self.store).alter({"min.insync.replicas": 2})
        self.put_out()

    def lose_all(self) -> None:
        self.put_out()
        write(self.store, "2")
        self.lose(0)

    def name_a_server(self) -> None:
        agreement = self.storage.agreement
        epoch = agreement.refresh()
        roots = {**epoch.roots, "r1": Root("webhdfs://localhost:9/store")}
        changes = {"number": epoch.number + 1, "roots": roots, "by": "x"}
        agreement.propose_alone(msgspec.structs.replace(epoch, **changes))

    def data(self, which: int) -> list[Path]:
        return [*(self.disks[which] / "incarnation-00000/topics").rglob("*-0.log")]

    def lose_data(self) -> None:
        for path in self.data(1):
            path.unlink()

    def cut_data(self) -> None:
        for path in self.data(0):
            path.write_bytes(path.read_bytes()[:-1])

    def lose_placed(self) -> None:
        Replicas(self.store).alter({"replication.factor": 2})
        self.lose_data()

    def leave_placed(self) -> None:
        self.lose_placed()
        for path in self.data(0):
            path.rename(self.disks[1] / path.relative_to(self.disks[0]))
        self.put_out()

    def return_once(self) -> None:
        self.put_out()
        Replicas(self.store).add(str(self.disks[1]))


@dataclass(frozen=True)
class Case:
    """A row of the page: what leads to it, what is shown of one root, and what in the end."""

    begin: Callable[[Roots], object]
    condition: Condition
    is_shown: Callable[[ReplicasDescription, Replica], object]
    which: int = 1
    end: Condition = "whole"


def each(*steps: Callable[[Roots], object]) -> Callable[[Roots], object]:
    return lambda roots: [step(roots) for step in steps]


def losing(which: int) -> Callable[[Roots], object]:
    return lambda roots: Roots.lose(roots, which)


def jamming(which: int) -> Callable[[Roots], object]:
    return lambda roots: Roots.jam(roots, which)


def shows(state: RootState, answer: Answer) -> Callable[[ReplicasDescription, Replica], object]:
    return lambda _, root: (root.state, root.answer) == (state, answer)


CASES = {
    "`whole`": Case(lambda _: None, "whole", lambda _, root: root.differing),
    "`in sync`, `mark gone`": Case(losing(1), "degraded", shows("in sync", "mark gone")),
    "`in sync`, `no answer`": Case(jamming(1), "degraded", shows("in sync", "no answer")),
    "`leader`, `mark gone`": Case(losing(0), "degraded", shows("leader", "mark gone"), which=0),
    "`leader`, `no answer`": Case(jamming(0), "degraded", shows("leader", "no answer"), which=0),
    "`out`, `answers`": Case(Roots.put_out, "degraded", shows("out", "answers")),
    "`out`, `mark gone`": Case(
        each(Roots.put_out, losing(1)), "degraded", shows("out", "mark gone")
    ),
    "`out`, `no answer`": Case(
        each(Roots.put_out, jamming(1)), "degraded", shows("out", "no answer")
    ),
    "`joining`, `answers`": Case(Roots.begin_to_join, "degraded", shows("joining", "answers")),
    "`joining`, `mark gone`": Case(
        each(Roots.begin_to_join, losing(1)),
        "degraded",
        shows("joining", "mark gone"),
    ),
    "`below minimum`": Case(
        Roots.fall_below, "below minimum", lambda found, _: found.min_insync == 2
    ),
    "`offline`": Case(
        Roots.lose_all, "offline", shows("leader", "mark gone"), which=0, end="degraded"
    ),
    "`not asked`": Case(
        Roots.name_a_server, "degraded", shows("in sync", "not asked"), end="degraded"
    ),
    "OBJECTS BEHIND, `in sync` or `leader`": Case(
        Roots.lose_data, "degraded", lambda _, root: root.objects_behind
    ),
    "DIFFERING": Case(Roots.cut_data, "degraded", lambda _, root: root.differing, which=0),
    "UNDER-REPLICATED": Case(
        Roots.lose_placed, "degraded", lambda found, _: found.under_replicated
    ),
    "ONLY OUT": Case(
        Roots.leave_placed, "degraded", lambda found, _: found.only_out, end="degraded"
    ),
    "OLD": Case(Roots.return_once, "whole", lambda _, root: root.old),
}
CONTROLLER = (
    "`no controller`",
    "`outdated controller`",
    "`read-only controller`",
    "an error that names the controller",
)


def rows() -> dict[str, list[str]]:
    """The commands of the page, by what ``describe`` shows."""
    table = PAGE.partition("## Runbook")[2].partition("|---|---|---|\n")[2].partition("\n\n")[0]
    cells = (line.strip("| ").split(" | ") for line in table.splitlines())
    return {shown: re.findall("`txnlog ([^`]+)`", todo) for shown, _, todo in cells}


ROWS = rows()


def describe(folder: Path) -> ReplicasDescription:
    """As another process does, all roots compared."""
    return open_replicas(str(folder / "control")).describe(with_lag=True)


def test_the_page_names_each_state() -> None:
    assert {*ROWS} == {*CASES, *CONTROLLER}
    told = " ".join(ROWS)
    assert all(f"`{word}`" in told for word in (*get_args(RootState), *get_args(Answer)))
    assert all(f"`{word}`" in PAGE for word in get_args(Condition))


def test_the_controller_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then another root does not, either."""
    skip_probes(monkeypatch)
    roots = Roots(tmp_path)
    mount = lose(tmp_path / "control")
    assert open_replicas(str(roots.disks[1])).describe().condition == "no controller"
    done = cli("replicas", "describe", "--store", roots.disks[0])
    assert (done.code, "nothing is acknowledged" in done.err) == (1, True)
    roots.lose(1)
    done = cli("replicas", "describe", "--store", roots.disks[0])
    assert (done.code, str(tmp_path / "control") in done.err) == (1, True)
    mount()
    roots.mend()
    assert describe(tmp_path).condition == "whole"


def test_the_controller_is_from_a_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_probes(monkeypatch)
    control = tmp_path / "control"
    roots = Roots(tmp_path)
    shutil.copytree(control, tmp_path / "backup")
    roots.put_out()
    write(roots.store, "2")
    shutil.rmtree(control)
    (tmp_path / "backup").rename(control)
    done = cli("replicas", "describe", "--store", control)
    assert (done.code, "nothing above need be true" in done.err) == (1, True)
    assert describe(tmp_path).condition == "outdated controller"
    for command in ("elect r1", "remove r0 --yes", "config replica.auto.return=true"):
        done = cli("replicas", *command.split(), "--store", control)
        assert (done.code, "restored from a backup" in done.err) == (1, True)
    told = cli("doctor", "--store", control, "--no-probe", "-o", "json").out
    assert ("R16" in told, "--repair" in told) == (True, False)
    shutil.rmtree(control)
    new = ("--controller", tmp_path / "new")
    assert cli("replicas", "recover", "--store", roots.disks[1], *new).code == 0
    assert values(txnlog.open(roots.disks[1])) == ["1", "2"]


def test_the_controllers_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is noticed before a root fails by those who try to put something; then by all."""
    skip_probes(monkeypatch)
    control = tmp_path / "control"
    roots = Roots(tmp_path)
    (control / ".probe").touch()  # nothing can be put there
    assert describe(tmp_path).condition == "whole"
    write(roots.store, "2")
    for command in ("doctor", "maintain"):
        done = cli(command, "--store", control)
        assert (done.code != 0, "takes no epoch" in done.out + done.err) == (True, True), done
    roots.lose(1)
    done = cli("replicas", "describe", "--store", control)
    assert (done.code, "takes no epoch" in done.err) == (1, True)
    assert describe(tmp_path).condition == "read-only controller"
    (control / ".probe").unlink()
    assert describe(tmp_path).condition == "degraded"
    write(roots.store, "3")
    assert not list(control.rglob(".probe/*"))


@pytest.mark.parametrize("row", CASES)
def test_what_the_page_says_helps(
    row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disks are mounted before roots are added; every command ends well."""
    skip_probes(monkeypatch)
    roots, case = Roots(tmp_path), CASES[row]
    case.begin(roots)
    found = describe(tmp_path)
    assert found.condition == case.condition
    assert case.is_shown(found, found.replicas[case.which]) or not ROWS[row]
    for command in ROWS[row]:
        if command.startswith("replicas add"):
            roots.mend()
        given = command.replace("/data/", f"{tmp_path}/").replace("'", "").split()
        done = cli(*given, "--store", tmp_path / "control")
        assert done.code == 0, done
    if row != "`not asked`":  # what is named is named for one command
        found = describe(tmp_path)
    else:
        assert "no answer" in done.out
    assert found.condition == case.end
    assert row == "`not asked`" or not case.is_shown(found, found.replicas[case.which])
