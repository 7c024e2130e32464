"""What Tab completes: from the store that is meant, quickly, and without a word if it cannot."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

import txnlog
from tests.support.cli.cli_command import cli, list_files
from tests.support.replication.replica_folders import make
from txnlog.admin.topics import TopicAdmin
from txnlog.cli import completion
from txnlog.cli.app import app


@pytest.fixture
def completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> object:
    """Completions of fish for a partial line, without a time limit."""
    monkeypatch.setattr(completion, "_WAIT_S", 60)

    def find(typed: str) -> list[str]:
        monkeypatch.setenv("_TXNLOG_COMPLETE", "complete_fish")
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", typed)
        monkeypatch.setattr(sys, "argv", ["txnlog"])
        with pytest.raises(SystemExit) as end:
            app(prog_name="txnlog")
        shown = capsys.readouterr()
        assert (end.value.code, shown.err) == (0, "")
        return shown.out.split()

    return find


def test_names_are_those_of_the_store(
    completed: Callable[[str], list[str]], own_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Existing topics, groups, ids, partitions, wherever a verb takes them."""
    txnlog.open(str(own_store)).topics.delete("empty")
    monkeypatch.setenv("TXNLOG_STORE", str(own_store))
    before = list_files(own_store)
    for typed, expected in {
        "txnlog topics describe ": ["orders", "paid"],
        "txnlog topics describe o": ["orders"],
        "txnlog topics ls paid ": ["orders", "paid"],
        "txnlog consume o": ["orders"],
        "txnlog records read orders:": ["orders:0", "orders:1"],
        "txnlog segments ls paid:": ["paid:0"],
        "txnlog records read nope:": [],
        "txnlog topics create ": [],
        "txnlog groups describe ": ["etl"],
        "txnlog records read orders --group ": ["etl"],
        "txnlog groups seek etl ": ["orders", "paid"],
        "txnlog txns describe e": ["etl-1", "etl-2"],
        "txnlog txns ls --state C": ["CompleteCommit", "CompleteAbort"],
        "txnlog txns ls --state O": ["Ongoing"],
    }.items():
        assert completed(typed) == expected, typed
    assert list_files(own_store) == before


def test_settings_and_their_values_are_completed(completed: Callable[[str], list[str]]) -> None:
    """Those of topics, of stores in the verbs of stores; values where these are words."""
    keys = completed("txnlog topics config get orders ")
    assert {"retention.ms", "cleanup.policy"} < {*keys}
    for typed in (
        "topics config set orders ",
        "topics create new -c ",
        "topics create new --config ",
    ):
        assert completed(f"txnlog {typed}") == [f"{key}=" for key in keys], typed
    assert completed("txnlog topics config unset orders record.") == ["record.format"]
    set_ = "txnlog topics config set orders"
    for typed, expected in {
        f"{set_} cleanup.policy=": ["delete", "compact"],
        f"{set_} segment.bytes=4096 message.timestamp.type=L": ["LogAppendTime"],
        f"{set_} retention.ms=": [],
        f"{set_} nonsense=": [],
    }.items():
        key = typed.rpartition(" ")[2].partition("=")[0]
        assert completed(typed) == [f"{key}={value}" for value in expected], typed
    of_stores = completed("txnlog store create /data/store -c ")
    assert "offsets.retention.ms=" in of_stores
    assert not {*of_stores} & {f"{key}=" for key in keys}


def test_the_store_is_the_one_that_is_meant(
    completed: Callable[[str], list[str]],
    store_path: Path,
    empty_store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By option, before or behind, by a file, by a variable; where there is none it is nothing."""
    file = tmp_path / "config.toml"
    file.write_text(f'store = "{store_path}"\n')
    missing = tmp_path / "missing"
    monkeypatch.delenv("TXNLOG_STORE", raising=False)
    assert completed("txnlog topics describe p") == []
    assert completed(f"txnlog --config-file {file} topics describe p") == ["paid"]
    monkeypatch.setenv("TXNLOG_STORE", str(empty_store))
    assert completed("txnlog topics describe p") == []
    assert completed(f"txnlog --store {store_path} topics describe p") == ["paid"]
    assert completed(f"txnlog topics describe --store {store_path} p") == ["paid"]
    assert completed(f"txnlog topics describe --store {missing} p") == []
    assert completed("txnlog --store s3://nowhere --storage-option x topics describe p") == []
    assert completed("txnlog --store nonsense://x topics describe p") == []
    assert not missing.exists()


def test_names_that_a_shell_would_evaluate_are_not_offered(
    completed: Callable[[str], list[str]], empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group or an id may be called anything, and zsh evaluates what it is given."""
    store = txnlog.open(str(empty_store))
    store.topics.create("t")
    odd = ("$(touch x)", "`id`", "a b", "a;b", "x\ny", "\x1b[31m", "'q'", '"', "-rf", "~", "*", "é")
    for group in (*odd, "good.1"):
        store.groups.reset_offsets(group, ["t"], to="latest")
        store.producer(transactional_id=group).init_transactions()
    monkeypatch.setenv("TXNLOG_STORE", str(empty_store))
    assert completed("txnlog groups describe ") == ["good.1"]
    assert completed("txnlog txns describe ") == ["good.1"]


def test_names_of_a_store_on_several_roots(
    completed: Callable[[str], list[str]], tmp_path: Path
) -> None:
    """Whichever of its folders is named."""
    make(tmp_path).producer(transactional_id="job").init_transactions()
    for folder in ("control", "a", "b"):
        assert completed(f"txnlog txns describe --store {tmp_path / folder} ") == ["job"]


def test_a_storage_that_does_not_answer_is_not_waited_for(
    completed: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is offered when the time is up, and the process ends soon whatever still runs."""
    never, armed = Event(), []

    class Recorded:
        def __init__(self, seconds: float, leave: object) -> None:
            armed.append((seconds, leave))
            self.daemon = False

        def start(self) -> None:
            assert self.daemon

    monkeypatch.setattr(completion, "_WAIT_S", 0.01)
    monkeypatch.setattr(completion, "Timer", Recorded)
    monkeypatch.setattr(completion, "_find_names", lambda *_: never.wait())
    assert completed("txnlog topics describe ") == []
    assert armed == [(completion._LINGER_S, completion._leave)]
    never.set()


def test_many_names_are_not_read_one_by_one(
    completed: Callable[[str], list[str]], store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are listed: only of a few it is asked whether they were deleted."""
    monkeypatch.setenv("TXNLOG_STORE", str(store_path))
    monkeypatch.setattr(completion, "_READ_UP_TO", 2)
    monkeypatch.setattr(TopicAdmin, "list", None)
    assert completed("txnlog topics describe ") == ["empty", "orders", "paid"]


def test_the_command_completes(store_path: Path) -> None:
    """In a process of its own, for bash, what needs no store."""
    variables = {
        "TXNLOG_STORE": str(store_path),
        "_TXNLOG_COMPLETE": "complete_bash",
        "COMP_WORDS": "txnlog txns ls --state Prep",
        "COMP_CWORD": "4",
    }
    assert cli(env=variables).lines() == ["PrepareCommit", "PrepareAbort"]
