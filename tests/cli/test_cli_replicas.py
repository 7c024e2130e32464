"""``txnlog replicas`` and ``txnlog store create --replica``."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import txnlog
from tests.support.cli.cli_command import Finished, cli
from txnlog.replication import Replicas, open_replicas
from txnlog.replication.commands import changes
from txnlog.replication.roots.old_incarnations import Forgotten


@pytest.fixture
def at(tmp_path: Path) -> tuple[object, ...]:
    """The options that name a store on the roots ``a`` and ``b``."""
    made = cli(
        *("replicas", "create", tmp_path / "a", tmp_path / "b"),
        *("--controller", tmp_path / "control", "-c", "replica.lag.time.max.ms=5000", "-o", "json"),
    )
    assert made.code == 0, made.err
    assert (made.json()["url"], made.json()["kind"]) == (str(tmp_path / "control"), "replicated")
    return "--store", tmp_path / "a", "-o", "json"


def told(done: Finished) -> Any:
    """What is printed; each new epoch is told on stderr."""
    assert done.code == 0, done
    return json.loads(done.out)


def test_a_set_is_shown_and_changed(at: tuple[object, ...], tmp_path: Path) -> None:
    """A root goes with --yes alone, comes back as another incarnation, leads, and is cleaned up."""
    refused = cli("replicas", "remove", "r1", *at)
    assert (refused.code, "--yes" in refused.err, "r0 in sync" in refused.err) == (2, True, True)
    assert cli("replicas", "remove", "r1", "--dry-run", *at).code == 0
    assert told(cli("replicas", "remove", "r1", "--yes", *at))["out"] == ["r1"]
    planned = cli("replicas", "add", tmp_path / "b", "--dry-run", *at)
    joined = cli("replicas", "add", tmp_path / "b", *at)
    assert (planned.out, told(joined)["member"]) == (joined.out, "r1-1")
    elected = told(cli("replicas", "elect", "r1", *at))
    assert (elected["leader"], elected["clean"], elected["lost_since_ms"]) == ("r1-1", True, None)
    assert told(cli("replicas", "elect", "--preferred", "--dry-run", *at))["leader"] == "r0-0"
    for wrong in ([], ["r0", "--preferred"], ["--preferred", "--unclean"]):
        assert cli("replicas", "elect", *wrong, *at).code == 2
    found = cli("replicas", "describe", "--history", "--logs", *at).json()
    assert found["logs"] == []
    assert [(one["root"], one["state"]) for one in found["replicas"]] == [
        ("r0", "in sync"),
        ("r1", "leader"),
    ]
    assert found["replicas"][1]["old_members"] == ["r1-0"]
    assert [one["epoch"] for one in found["epochs"]] == [0, 1, 2, 3, 4]
    assert cli("replicas", "forget", *at).code == 2
    assert told(cli("replicas", "forget", "--yes", *at))[0]["member"] == "r1-0"
    nothing = cli("replicas", "forget", "--yes", *at)
    assert (nothing.code, nothing.out) == (0, "[]\n")


def test_damage_is_found_and_repaired(at: tuple[object, ...], tmp_path: Path) -> None:
    """Exit code 3 until it is put right."""
    store = txnlog.open(str(tmp_path / "a"))
    store.topics.create("t")
    with store.producer() as producer:
        producer.send("t", "1")
    assert cli("replicas", "verify", *at).json() == []
    for path in (tmp_path / "b").rglob("*.log"):
        path.unlink()
    found = cli("replicas", "verify", *at)
    assert (found.code, "missing" in found.err) == (3, True)
    (repaired,) = cli("replicas", "verify", "--repair", *at).json()
    assert (repaired["kind"], repaired["members"], repaired["is_repaired"]) == (
        "missing",
        ["r1-0"],
        True,
    )
    assert cli("replicas", "verify", "--deep", *at).json() == []


@pytest.mark.condition(60)
def test_an_unclean_election_says_first_what_it_loses(
    at: tuple[object, ...], tmp_path: Path
) -> None:
    cli("replicas", "remove", "r1", "--yes", *at)
    refused = cli("replicas", "elect", "r1", *at)
    assert (refused.code, "may be lost" in refused.err) == (1, True)
    shutil.rmtree(tmp_path / "a" / "incarnation-00000")
    asked = cli("replicas", "elect", "r1", "--unclean", *at)  # the store cannot be opened
    assert (asked.code, asked.out) == (2, "")
    assert "acknowledged from epoch 1 on" in asked.err
    assert "nobody can tell what these have: r0-0" in asked.err
    done = told(cli("replicas", "elect", "r1", "--unclean", "--yes", *at))
    assert (done["clean"], done["lost_records"], done["older_records"]) == (False, None, None)


def test_no_root_answers(tmp_path: Path) -> None:
    """Nothing is in sync for all that anybody knows; the doctor examines what there is."""
    made = open_replicas(
        [str(tmp_path / "a"), str(tmp_path / "b")],
        controller=str(tmp_path / "control"),
        create=True,
        config={"replica.lag.time.max.ms": 100},
    ).store
    assert Replicas(made).describe().condition == "whole"
    for which in "ab":
        (tmp_path / which).rename(tmp_path / f"{which}-away")
    at = "--store", tmp_path / "control"
    shown = cli("replicas", "describe", "--lag", "--logs", *at)
    assert (shown.code, "nothing can be read or written" in shown.err) == (1, True)
    assert "condition         offline" in shown.out
    for root, state in (("r0", "leader"), ("r1", "in sync")):
        assert re.search(rf"{root} +{state} +mark gone .* unknown +unknown +unknown ", shown.out)
    found = cli("doctor", *at, "-o", "json")
    assert (found.code, "damage found: 2" in found.err) == (3, True)
    told = [(one["subject"], one["state"], one["rule"]) for one in json.loads(found.out)]
    assert told[:2] == [("r0-0", "damage", "R7"), ("r1-0", "damage", "R7")]
    assert told[-1] == ("", "unreadable", None)


def test_the_controller_moves(at: tuple[object, ...], tmp_path: Path) -> None:
    planned = cli("replicas", "move-controller", tmp_path / "new", "--dry-run", *at)
    assert told(planned)["epoch"] == 2
    (tmp_path / "b").rename(tmp_path / "away")
    moved = cli("replicas", "move-controller", tmp_path / "new", *at)
    assert (moved.code, "not told" in moved.err) == (0, True)
    (tmp_path / "away").rename(tmp_path / "b")
    again = told(cli("replicas", "move-controller", tmp_path / "new", *at))
    assert (again["controller"], again["told"]) == (str(tmp_path / "new"), ["r0", "r1"])
    assert cli("replicas", "describe", *at).json()["controller"] == str(tmp_path / "new")


def test_a_store_on_one_root_has_none(empty_store: Path) -> None:
    refused = cli("replicas", "describe", "--store", empty_store)
    assert (refused.code, "a store on one root" in refused.err) == (1, True)


def test_options_under_a_url_are_for_that_root(at: tuple[object, ...], tmp_path: Path) -> None:
    """Also where the store is named by a local root, which takes none."""
    file = tmp_path / "config.toml"
    file.write_text(
        f'store = "{tmp_path / "a"}"\n'
        '[storage_options]\nkey = "k"\n'
        '[storage_options."s3://bucket/control"]\nkey = "k"\n'
    )
    assert cli("--config-file", file, "replicas", "describe", "-o", "json").code == 0


def test_settings_are_shown_and_changed(at: tuple[object, ...]) -> None:
    """Without any nothing is changed; wrong ones change nothing."""

    def held(*arguments: str) -> dict[str, str]:
        found = told(cli("replicas", "config", *arguments, *at))
        return {one["key"]: one["value"] for one in found if one["source"] == "store"}

    before = {"replica.lag.time.max.ms": "5000"}
    changed = {**before, "min.insync.replicas": "2"}
    assert held() == before
    assert held("min.insync.replicas=2", "--dry-run") == changed
    assert held() == before
    assert held("min.insync.replicas=2") == held() == changed
    assert cli("replicas", "config", "min.insync.replicas=9", *at).code == 1
    assert held("--unset", "min.insync.replicas") == before
    assert cli("replicas", "describe", *at).json()["epoch"] == 2


def test_data_is_placed_and_moved(at: tuple[object, ...], tmp_path: Path) -> None:
    """By settings, which hold from then on; what is there follows."""
    store = txnlog.open(str(tmp_path / "a"))
    store.topics.create("t")
    with store.producer() as producer:
        producer.send("t", "1")
    assert cli("replicas", "reassign", *at).code == 1
    wrong = cli("topics", "create", "u", "--replication-factor", "3", *at)
    assert (wrong.code, "there are 2 roots" in wrong.err) == (1, True)
    told(cli("replicas", "config", "replication.factor.t=1", "replica.rack.r1=x", *at))
    described = cli("replicas", "describe", "--lag", *at).json()
    assert described["under_replicated"] == 0
    planned = cli("replicas", "reassign", "--dry-run", *at)
    (done,) = cli("replicas", "reassign", "t", *at).json()
    assert told(planned) == [done]
    assert (done["topic"], done["copied_count"], done["lacking_count"]) == ("t", 0, 0)
    assert done["deleted_count"] > 0
    planned = cli("replicas", "remove", "r0", "--dry-run", *at)
    assert planned.code == 0
    assert told(cli("replicas", "remove", "r0", "--force", "--yes", *at))["out"] == ["r0"]
    assert len(store.scan("t").to_arrow()) == 1
    lost = cli("replicas", "forget", "r0-0", "--lost", "--yes", *at)
    assert (lost.code, "not lost" in lost.err) == (1, True)
    assert cli("replicas", "forget", "--lost", "--yes", *at).code == 2
    joined = cli("replicas", "add", tmp_path / "a", "--rack", "y", *at)
    assert told(joined)["member"] == "r0-1"


@pytest.mark.parametrize(
    ("members", "dry_run", "asked"),
    [
        (["r1-0"], False, [False]),
        (["r1-0"], True, [True]),
        (["r1-0", "r2-0"], False, [True, True, False, False]),
    ],
    ids=["one", "dry-run", "several"],
)
def test_what_is_forgotten_is_read_no_more_than_needed(
    monkeypatch: pytest.MonkeyPatch, members: list[str], dry_run: bool, asked: list[bool]
) -> None:
    """Of several nothing goes if one is refused, which takes a look at each before."""
    looks: list[bool] = []

    def forget(member: str, *, lost: bool, dry_run: bool) -> Forgotten:
        assert not lost
        looks.append(dry_run)
        return Forgotten(member, "", 0, 0)

    shown: list[Forgotten] = []
    session: Any = SimpleNamespace(
        output=SimpleNamespace(rows=lambda _, rows: shown.extend(rows)),
    )
    monkeypatch.setattr(changes, "open_roots", lambda _: SimpleNamespace(forget=forget))
    changes.forget_incarnations(session, members, yes=True, dry_run=dry_run)
    assert [one.member for one in shown] == members
    assert looks == asked
