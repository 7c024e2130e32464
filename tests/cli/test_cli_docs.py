"""docs/CLI.md says what the command does: verbs, options and JSON keys."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_command import cli, cli_each

from txnlog.cli.commands import (
    bench,
    demo,
    doctor,
    groups,
    index,
    kafka,
    log,
    offsets,
    records,
    segments,
    topics,
    txns,
)
from txnlog.cli.commands.groups import seek
from txnlog.cli.commands.records import write
from txnlog.cli.commands.topics import config, trim
from txnlog.cli.commands.txns import why
from txnlog.cli.output import batch_fields, record_fields
from txnlog.cli.output.transaction_refs import owner_fields

DOCUMENT = Path(__file__).parents[2] / "docs" / "CLI.md"
COMMON = {"--store", "--storage-option", "--output", "-o", "--help", "-h"}
OPTION = re.compile(r"--?[a-z][\w-]*")

TOPIC = [field.key for field in topics.DETAILS]
OWNER = [field.key for field in owner_fields()]
PARTITION = [field.key for field in topics.PARTITIONS]
GROUP = [field.key for field in groups.SUMMARY]
CONTENT = [field.key for field in record_fields.CONTENT]
TRANSACTION = [field.key for field in txns.DETAILS]
PARTS = [field.key for field in kafka.IMPORTED]
DAMAGES = [field.key for field in kafka.DAMAGES]
KEYS = {
    "doctor": [field.key for field in doctor.FIELDS],
    "demo": [
        *[field.key for field in demo.DEMO],
        "records",
        *[field.key for field in demo.RECORDS],
    ],
    "bench": [field.key for field in bench.MEASURED],
    "import": [
        *[field.key for field in kafka.IMPORT],
        *("partitions", "damages"),
        *PARTS,
        *DAMAGES,
    ],
    "export": [
        *[field.key for field in kafka.EXPORT],
        "partitions",
        *[field.key for field in kafka.EXPORTED],
    ],
    "topics ls": [field.key for field in topics.SUMMARY],
    "topics describe": [
        *TOPIC[len(topics.SUMMARY) :],
        *("partitions", "open_transactions"),
        *PARTITION,
        *OWNER,
    ],
    "topics create": [],
    "topics add-partitions": [],
    "topics delete": [],
    "topics trim": [field.key for field in trim.FIELDS],
    "topics config get": [field.key for field in config.SETTINGS],
    "topics config set": [field.key for field in config.CHANGES],
    "topics config unset": [],
    "offsets ls": [field.key for field in offsets.FIELDS],
    "segments ls": [field.key for field in segments.FIELDS],
    "segments dump": [
        *[field.key for field in batch_fields.batch_fields(with_records=True)],
        *CONTENT,
    ],
    "segments verify": [field.key for field in segments.CHECKS],
    "segments du": [field.key for field in segments.USAGE],
    "index dump": [field.key for field in index.ENTRIES],
    "index verify": [field.key for field in index.CHECKS],
    "index rebuild": [field.key for field in index.REBUILDS],
    "log dump": [field.key for field in log.FIELDS],
    "records read": [field.key for field in record_fields.RECORD],
    "records head": [],
    "records tail": [],
    "records count": [
        *[field.key for field in records.COUNT],
        "partitions",
        *[field.key for field in records.COUNTS],
    ],
    "records write": [field.key for field in write.WRITTEN],
    "groups ls": GROUP,
    "groups describe": [field.key for field in groups.OFFSETS],
    "groups seek": [field.key for field in seek.RESETS],
    "groups delete": [],
    "groups delete-offsets": [],
    "groups log": [
        *[field.key for field in groups.ENTRIES],
        *[field.key for field in groups.LOGGED],
    ],
    "txns ls": [field.key for field in txns.listed(0)],
    "txns describe": [
        *TRANSACTION[len(txns.FIELDS) :],
        "entries",
        *[field.key for field in txns.ENTRIES],
    ],
    "txns producers": [field.key for field in txns.PRODUCERS],
    "txns find-hanging": [field.key for field in why.HUNG],
    "txns why": [
        *[field.key for field in why.STABLE],
        *[field.key for field in why.HOLDERS],
    ],
    "txns abort": [],
    "txns log": [field.key for field in txns.LOGGED],
}


@pytest.fixture(scope="module")
def sections() -> dict[str, str]:
    """What the document says under each verb."""
    parts = re.split(r"^## txnlog (.+)$", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_verb_and_option_is_documented(sections: dict[str, str]) -> None:
    """The verbs of --help are the headings; a verb's own options and example are in its section."""
    helps = _helps([])
    assert sorted(helps) == sorted(sections)
    for verb, shown in helps.items():
        example = shown.partition("Example:\n")[2].partition("\n\n")[0].split("\n")
        assert all(line.strip() in sections[verb] for line in example), verb
        columns = re.findall(r"^  (-.+?)(?:  |$)", shown, flags=re.MULTILINE)
        options = {option for column in columns for option in OPTION.findall(column)}
        assert options >= COMMON, verb
        assert options - COMMON <= set(OPTION.findall(sections[verb])), verb


def test_the_json_keys_are_documented(sections: dict[str, str]) -> None:
    """Each verb's section lists exactly the keys of its output, in their order."""
    assert sorted(KEYS) == sorted(sections)
    for verb, keys in KEYS.items():
        tables = re.split(r"^\| (\w+) \|", sections[verb], flags=re.MULTILINE)
        listed = [
            key
            for head, body in zip(tables[1::2], tables[2::2], strict=True)
            if head == "key"
            for key in re.findall(r"^\| `(\w+)` \|", body, flags=re.MULTILINE)
        ]
        assert listed == keys, verb


def _helps(words: list[str]) -> dict[str, str]:
    """The help of all verbs below a group of them, at any depth."""
    groups = [[*words, command] for command in _commands(cli(*words, "--help").out)]
    helps: dict[str, str] = {}
    for group, done in zip(groups, cli_each(*((*g, "-h") for g in groups)), strict=True):
        helps |= _helps(group) if _commands(done.out) else {" ".join(group): done.out}
    return helps


def _commands(help_text: str) -> list[str]:
    """The first words of the lines under ``Commands:``."""
    listed = help_text.partition("Commands:\n")[2].partition("\n\n")[0]
    return re.findall(r"^  ([\w-]+)", listed, flags=re.MULTILINE)
