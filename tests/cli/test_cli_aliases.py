"""What is typed by fingers that know other tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli.cli_command import cli_each


@pytest.mark.more
def test_other_words_for_verbs_are_understood(store_path: Path) -> None:
    """They do what the verb does, options and all; help lists none of them."""
    pairs = (
        ("topics list", "topics ls"),
        ("topics show orders", "topics describe orders"),
        ("topics rm orders --dry-run", "topics delete orders --dry-run"),
        ("records cat orders -n 1", "records read orders -n 1"),
        ("groups reset g orders --to-earliest --dry-run", "groups seek g orders --to 0 --dry-run"),
        ("groups reset-offsets g orders --to 0 --dry-run", "groups seek g orders --to 0 --dry-run"),
        ("consume orders -f %o", "records read orders --format %o"),
    )
    commands = [
        (*text.split(), "--store", store_path, "-o", "jsonl") for pair in pairs for text in pair
    ]
    done = cli_each(*commands, ("-h",), ("records", "-h"), ("produce", "-h"), ("topics", "lst"))
    for pair, alias, verb in zip(pairs, done[:-4:2], done[1:-4:2], strict=True):
        assert (alias.code, alias.out) == (verb.code, verb.out), pair
        assert verb.out, pair
    root, records, produce, unknown = done[-4:]
    for word in ("consume", "produce", "cat", "list"):
        assert f"  {word} " not in root.out.partition("Commands:")[2]
        assert f"  {word} " not in records.out.partition("Commands:")[2]
    assert "Write records from stdin" in produce.out
    assert (unknown.code, "No such command 'lst'" in unknown.err) == (2, True)
