"""How commands fail: one clear line on stderr, the right exit code, never a traceback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import txnlog
from tests.support.cli.cli_command import COMMAND, cli, cli_each, environment
from txnlog.cli.input import storage_options
from txnlog.cli.input.storage_options import keep_secret, redact
from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.streams import DamageFound
from txnlog.errors import CorruptEntry, StorageError


def test_an_empty_store_is_no_failure(empty_store: Path) -> None:
    """Every list of an empty store is an empty list."""
    store = ("ls", "--store", empty_store, "-o", "json")
    for done in cli_each(*((verb, *store) for verb in ("topics", "groups", "txns"))):
        assert done.json() == []


def test_a_wrong_place_is_named(tmp_path: Path, store_path: Path) -> None:
    """A missing store, a folder that is none, an unknown scheme or topic: exit 1."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.txt").write_text("hello")
    cases = (
        (("topics", "ls", "--store", tmp_path / "absent"), "there is no store at"),
        (("topics", "ls", "--store", other), "it is not a txnlog store"),
        (("topics", "ls", "--store", "ftp://host/x"), "ftp://"),
        (("topics", "describe", "nope", "--store", store_path), "topic 'nope' does not exist"),
        (("topics", "describe", "a b", "--store", store_path), "'a b'"),
        (("segments", "ls", "orders:9", "--store", store_path), "no partition 9"),
        (("segments", "dump", "--file", other / "absent.log"), "cannot be read"),
        (("segments", "dump", "--file", other), "cannot be read"),
    )
    for done, (_, named) in zip(cli_each(*(case[0] for case in cases)), cases, strict=True):
        assert (done.code, done.out) == (1, ""), done
        assert done.err.startswith("txnlog: ")
        assert named in done.err
        assert done.err.count("\n") == 1
    assert not (tmp_path / "absent").exists()


def test_wrong_usage_is_exit_2_and_repeats_no_secret(store_path: Path) -> None:
    """Bad options and targets are refused before anything is opened."""
    store = ("--store", store_path)
    cases = (
        (("topics", "ls"), "TXNLOG_STORE"),
        (("topics", "ls", *store, "--nope"), "--nope"),
        (("topics", "ls", *store, "-o", "xml"), "'-o': 'xml' is not one of"),
        (("topic", "ls", *store), "topics"),
        (("records", "read", "orders:x", *store), "orders:x"),
        (("records", "read", "orders:\u0660", *store), "orders:\u0660"),
        (("topics", "config", "set", "orders", "segment.bytes", *store), "setting 'segment.bytes'"),
        (("records", "read", "orders", "--from", "soon", *store), "soon"),
        (("records", "read", "orders", "--from", "@soon", *store), "@soon"),
        (("records", "read", "orders", "-n", "-1", *store), "--max-records"),
        (("segments", "dump", *store), "--file"),
        (("topics", "create", "x", "--config", "a", *store), "KEY=VALUE"),
        (("topics", "ls", *store, "--storage-option", "hunter2"), "KEY=VALUE"),
    )
    for done, (_, named) in zip(cli_each(*(case[0] for case in cases)), cases, strict=True):
        assert (done.code, done.out) == (2, ""), done
        assert named in done.err
        assert "hunter2" not in done.err
    done = cli("topics", "ls", *store, "--storage-option", "secret=hunter2")
    assert (done.code, "hunter2" in done.err) == (1, False)


def test_a_short_secret_is_one_where_it_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """``me`` is a key at home, and in half of all words; of a long one nothing may be shown."""
    monkeypatch.setattr(storage_options, "_secrets", [])
    keep_secret({"key": "me", "secret": "long-secret", "nested": {"token": "a.b"}})
    told = "a name of me, key=me/x, some segments, me: xlong-secretx, a.b, aab, a.bc"
    assert redact(told) == "a name of ***, key=***/x, some segments, ***: x***x, ***, aab, a.bc"


def test_numbers_of_any_size_and_texts_that_are_none(store_path: Path) -> None:
    """A count is a count; what is not UTF-8 is named, and nothing is made of it."""
    at, many = ("--store", store_path), 10**30
    done = cli_each(
        ("records", "read", "orders", "-n", many, *at),
        ("log", "dump", "orders", "--max-entries", many, *at),
        ("records", "changes", "orders", "--since", "earliest", "-n", many, *at),
    )
    assert [one.code for one in done] == [0, 0, 0]
    for arguments in (("--grep", "\udcff"), ("--where", "value==\udcff")):
        found = cli("records", "read", "orders", *arguments, *at)
        assert (found.code, "is not UTF-8" in found.err) == (2, True)


def test_a_value_of_any_size_is_not_repeated_in_full(store_path: Path) -> None:
    """Neither as usage nor as an error of the library; what to do instead is still said."""
    store = ("--store", store_path)
    large = "x" * 10_000
    cases = (
        (("records", "read", "orders", "--from", large, *store), "write earliest, latest"),
        (("records", "read", "orders", "--where", large, *store), "a place in the JSON"),
        (("topics", "create", "t", "--config", large, *store), "is not of the form KEY=VALUE"),
        (("topics", "ls", *store, f"--{large}"), "No such option"),
        ((large,), "No such command"),
        (("topics", "ls", "--store", f"{store_path}/{large}"), "too long"),
    )
    for done, (_, said) in zip(cli_each(*(case[0] for case in cases)), cases, strict=True):
        assert (done.code in (1, 2), done.out) == (True, ""), done
        assert 20 < len(done.err) < 2500
        assert said in done.err, done


def test_a_damaged_log_is_exit_3_and_hides_no_other(own_store: Path) -> None:
    """A damaged topic, group or transactional id is reported; the healthy ones are listed."""
    for folder in ("topics/paid/log", "groups/etl", "transactions/etl-2"):
        entry = max((own_store / folder).glob("*.json"))
        entry.write_bytes(entry.read_bytes()[:-20])
    for verb, healthy in (("topics", ["empty", "orders"]), ("txns", ["etl-1", "open"])):
        done = cli(verb, "ls", "--store", own_store)
        assert done.code == 3
        assert [line.split()[0] for line in done.out.splitlines()[1:]] == healthy
        assert done.err.count("\n") == 1
        assert ".json" in done.err
    assert cli("groups", "ls", "--store", own_store).code == 3
    done = cli("records", "read", "paid", "--store", own_store)
    assert (done.code, done.out, "topics/paid/log" in done.err) == (3, "", True)


def test_what_cannot_be_read_is_no_damage(capsys: pytest.CaptureFixture[str]) -> None:
    """A storage that fails for one thing of a list: the others are shown, and the code is 1."""
    with pytest.raises(typer.Exit) as failed, DamageReporter() as reporter:
        assert [*reporter.skip_unreadable(iter([StorageError("denied"), 1]))] == [1]
    assert failed.value.exit_code == 1
    items = iter([StorageError("denied"), CorruptEntry("torn"), 1])
    with pytest.raises(DamageFound), DamageReporter() as reporter:
        assert [*reporter.skip_unreadable(items)] == [1]
    assert capsys.readouterr().err.split("\n")[:2] == ["txnlog: denied", "txnlog: denied"]


@pytest.mark.more
def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    """A reader that has had enough ends a long output without a word."""
    path = tmp_path / "store"
    store = txnlog.open(str(path), create=True)
    store.topics.create("t")
    with store.producer() as producer:
        for number in range(20_000):
            producer.send("t", f"{number:0100d}")
    for output in ("table", "json", "jsonl"):
        command = [*COMMAND, "records", "read", "t", "--store", str(path), "-o", output]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(30) == 141
    if Path("/dev/full").exists():
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                [*COMMAND, "topics", "ls", "--store", str(path)],
                stdout=full,
                stderr=subprocess.PIPE,
                env=environment(),
                check=False,
            )
        assert done.returncode == 1
        assert done.stderr.startswith(b"txnlog: cannot write the output")


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
def test_streams_that_are_closed_harm_nothing(own_store: Path) -> None:
    """Without stdout nothing is begun, without stdin nothing is read; no message becomes data."""

    def closed(redirection: str, *arguments: object) -> tuple[int, str, str]:
        command = [*COMMAND, *map(str, arguments), "--store", str(own_store)]
        shell = ["sh", "-c", f'"$@" {redirection}', "sh", *command]
        done = subprocess.run(shell, capture_output=True, text=True, env=environment(), check=False)
        return done.returncode, done.stdout, done.stderr

    create = ("topics", "create", "new")
    message = "txnlog: cannot write the output: stdout is closed\n"
    assert closed(">&-", *create) == (1, "", message)
    assert closed("2>&-", "topics", "describe", "new") == (1, "", "")
    assert closed("<&-", "topics", "delete", "paid")[:2] == (2, "")
    code, out, err = closed("<&-", "records", "write", "empty", "-o", "json")
    assert (code, out, "there were no records" in err) == (0, "[]\n", True)


@pytest.mark.skipif(os.name == "nt", reason="sends a POSIX signal")
def test_ctrl_c_is_exit_130_without_a_traceback() -> None:
    """An interrupted command says nothing but its exit code."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SLOW],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, b"Traceback" in err) == (130, False)


_SLOW = """
import signal, sys, time
import txnlog, txnlog.cli

# A shell that runs the tests in the background has its children ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)

def slow(*_, **__):
    print("begun", flush=True)
    time.sleep(60)

txnlog.open = slow
sys.argv = ["txnlog", "topics", "ls", "--store", "x"]
txnlog.cli.main()
"""


def test_without_the_extra_the_remedy_is_named() -> None:
    """Without extras the wheel has the command, which says what it lacks."""
    without_typer = "import sys; sys.modules['typer'] = None; import txnlog.cli as cli\n"
    without_rich = (
        "import sys; sys.modules['rich'] = None\n"
        "import txnlog.cli as cli, txnlog.cli.run as run, txnlog.cli.output.tables as tables\n"
        "run.run = lambda: tables._print_rich([], [])\n"
    )
    for script in (without_typer, without_rich):
        done = subprocess.run(
            [sys.executable, "-c", script + "cli.main()"],
            capture_output=True,
            text=True,
            env=environment(),
            check=False,
        )
        assert done.returncode == 1, done
        assert re.search(r"run: pip install 'rich>=\S+' 'typer>=\S+'\n$", done.stderr)
        assert done.stderr.count("\n") == 1
