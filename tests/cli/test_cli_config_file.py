"""``--config-file`` and ``TXNLOG_CONFIG``: a store, its options and the output from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import txnlog
from tests.support.cli.cli_command import cli
from txnlog.cli.input.config_file import Settings
from txnlog.cli.session import RootOptions, open_session


def test_a_file_names_the_store_and_everything_else_wins(
    store_path: Path, empty_store: Path, tmp_path: Path
) -> None:
    """By option or variable; the options of a file are not for a local store."""
    file = tmp_path / "txnlog.toml"
    file.write_text(f'store = "{store_path}"\noutput = "jsonl"\n[storage_options]\nkey = "x"\n')
    by_option = cli("--config-file", file, "topics", "ls")
    assert [json.loads(line)["topic"] for line in by_option.lines()] == ["empty", "orders", "paid"]
    by_variable = {"TXNLOG_CONFIG": str(file)}
    assert cli("topics", "ls", env=by_variable) == by_option
    assert cli("topics", "ls", "-o", "json", "--store", empty_store, env=by_variable).json() == []
    variables = {**by_variable, "TXNLOG_STORE": str(empty_store)}
    assert cli("topics", "ls", env=variables).lines() == []


def test_a_wrong_file_is_wrong_usage_and_its_values_stay_in_it(tmp_path: Path) -> None:
    """An unreadable or malformed setting is named only by its key."""
    file = tmp_path / "txnlog.toml"
    for content, named in (
        ('store = "hunter2', "not TOML"),
        ('stor = "hunter2"', "stor is not one of"),
        ("store = 1", "store must be a string"),
        ('storage_options = "hunter2"', "must be a table"),
        ('output = "xml"', "output 'xml'"),
        (f"a = {'[' * 100_000}", "nested too deeply"),
    ):
        file.write_text(content)
        done = cli("--config-file", file, "topics", "ls")
        assert (done.code, done.out) == (2, ""), done
        assert named in " ".join(done.err.split())
        assert "hunter2" not in done.err
    assert cli("--config-file", tmp_path / "absent.toml", "topics", "ls").code == 2


def test_completion_can_be_installed(tmp_path: Path) -> None:
    """--install-completion writes to the shell's own files in the home folder, and works."""
    env = {
        "HOME": str(tmp_path),
        "SHELL": "/bin/bash",
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    done = cli("--install-completion", "bash", env=env)
    assert done.code == 0, done
    assert "txnlog" in (tmp_path / ".bashrc").read_text()
    asked = {
        "_TXNLOG_COMPLETE": "complete_bash",
        "COMP_WORDS": "txnlog txns find",
        "COMP_CWORD": "2",
    }
    assert cli(env={**env, **asked}).out.split() == ["find-hanging"]


@pytest.mark.more
@pytest.mark.s3
def test_a_store_on_s3_is_written_and_read_by_a_file(
    s3_options: dict[str, Any], tmp_path: Path
) -> None:
    """Options with a nested table reach the filesystem; a wrong secret is not shown."""
    url = "s3://test/cli-config"
    store = txnlog.open(url, create=True, storage_options=s3_options)
    store.topics.create("t")
    with store.producer() as producer:
        for number in range(5):
            producer.send("t", f"v{number}")
    file = tmp_path / "txnlog.toml"
    options = {key: value for key, value in s3_options.items() if key != "client_kwargs"}
    lines = [f'store = "{url}"', "[storage_options]"]
    lines += [f'{key} = "{value}"' for key, value in options.items()]
    lines += ['client_kwargs = { region_name = "us-east-1" }']
    file.write_text("\n".join(lines))
    run = ("--config-file", file)
    found = cli(*run, "records", "tail", "t", "-n", 2, "-o", "json").json()
    assert [record["value"] for record in found] == ["v3", "v4"]
    assert cli(*run, "records", "count", "t", "-o", "json").json()["record_count"] == 5
    moved = cli(*run, "groups", "seek", "g", "t", "--to", 3, "-o", "json").json()
    assert moved == [{"topic": "t", "partition": 0, "before": None, "after": 3}]
    assert cli(*run, "groups", "log", "g", "-o", "json").json()[0]["offsets"][0]["offset"] == 3
    assert cli(*run, "txns", "find-hanging", "-o", "json").json() == []
    file.write_text(file.read_text().replace(url, "s3://absent/store"))
    missing = cli(*run, "topics", "ls")
    assert (missing.code, missing.out, missing.err.count("\n")) == (1, "", 1)
    assert s3_options["secret"] not in missing.err


def test_an_option_of_the_command_overrules_that_of_a_file() -> None:
    """Behind the verb, then before it, then the file; a local store takes none of the file's."""
    settings = Settings(storage_options={"key": "file", "secret": "file", "token": "file"})
    root = RootOptions("s3://bucket/store", {"key": "before", "secret": "before"}, None, settings)
    session = open_session(root, None, ["key=of-the-verb"], None)
    assert session.storage_options == {"key": "of-the-verb", "secret": "before", "token": "file"}
    local = open_session(root, "/data/store", ["key=of-the-verb"], None)
    assert local.storage_options == {"key": "of-the-verb", "secret": "before"}
