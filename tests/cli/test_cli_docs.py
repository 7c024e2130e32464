"""docs/CLI.md says what the command does: verbs, options and JSON keys."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli.cli_command import cli, cli_each
from txnlog.cli.commands import (
    bench,
    bridge,
    demo,
    doctor,
    export,
    groups,
    import_,
    index,
    log,
    maintain,
    metrics,
    offsets,
    schemas,
    segments,
    tables,
    txns,
)
from txnlog.cli.commands.records import changes, count, write
from txnlog.cli.commands.topics import compact, config, merge, purge, trim
from txnlog.cli.output import (
    group_fields,
    record_fields,
    store_fields,
    topic_fields,
    transaction_fields,
)
from txnlog.cli.output.batch_fields import batch_fields
from txnlog.cli.output.fields import Field
from txnlog.cli.output.store_fields import setting_fields
from txnlog.replication.commands import changes as replica_changes
from txnlog.replication.commands import roots, standbys

CHECKOUT = Path(__file__).parents[2]
DOCUMENT = CHECKOUT / "docs" / "CLI.md"
PROMISED_KEYS = Path(__file__).with_name("json_keys.txt")
COMMON = {"--store", "--storage-option", "--output", "-o", "--bytes", "-b", "--help", "-h"}
HABITS = {"--dry-run", "--yes", "-y"}
"""Options of the verbs that change something, and of those that take something away."""
OPTION = re.compile(r"--?[a-z][\w-]*")


def keys(*fields: Field[Any]) -> list[str]:
    """The JSON keys of fields."""
    return [field.key for field in fields]


KEYS = {
    "bridge": keys(*bridge.FIELDS),
    "doctor": keys(*doctor.FIELDS),
    "maintain": keys(*maintain.FIELDS),
    "catalog serve": [],
    "ui": [],
    "metrics": keys(*metrics.FIELDS),
    "demo": [*keys(*demo.DEMO), "records", *keys(*demo.RECORDS)],
    "bench": keys(*bench.FIELDS),
    "import": [
        *keys(*import_.TOTAL),
        *("partitions", "damages"),
        *keys(*import_.PARTITIONS, *import_.DAMAGES),
    ],
    "export": [*keys(*export.TOTAL), "partitions", *keys(*export.PARTITIONS)],
    "store create": [],
    "replicas create": [],
    "store describe": keys(*store_fields.STORE),
    "store config": keys(*setting_fields("store")),
    "replicas follow": keys(*standbys.FOLLOWED),
    "replicas promote": [*keys(*standbys.PROMOTION), "missing", *keys(*standbys.MISSING)],
    "topics ls": keys(*topic_fields.SUMMARY),
    "topics describe": [
        *keys(*topic_fields.DETAILS[len(topic_fields.SUMMARY) :]),
        *("partitions", "open_transactions"),
        *keys(*topic_fields.PARTITIONS, *transaction_fields.REF),
    ],
    "topics create": [],
    "topics alter": [],
    "topics add-partitions": [],
    "topics delete": [],
    "topics trim": keys(*trim.FIELDS),
    "topics compact": keys(*compact.FIELDS),
    "topics merge": keys(*merge.FIELDS),
    "topics purge": keys(*purge.FIELDS),
    "topics config get": keys(*config.SETTINGS),
    "topics config set": keys(*config.CHANGES),
    "topics config unset": [],
    "offsets ls": keys(*offsets.FIELDS),
    "segments ls": keys(*segments.SEGMENTS),
    "segments dump": keys(*batch_fields(with_records=True), *record_fields.CONTENT),
    "segments verify": keys(*segments.CHECKS),
    "segments du": keys(*segments.USAGE),
    "index dump": keys(*index.ENTRIES),
    "index verify": keys(*index.CHECKS),
    "index rebuild": keys(*index.REBUILDS),
    "log dump": keys(*log.FIELDS),
    "records read": keys(*record_fields.RECORD),
    "records changes": [changes.CHANGE.key],
    "records head": [],
    "records tail": [],
    "records count": [*keys(*count.TOTAL), "partitions", *keys(*count.PARTITIONS)],
    "records write": keys(*write.FIELDS),
    "tables publish": keys(*tables.FIELDS),
    "schemas ls": keys(*schemas.SUMMARY),
    "schemas show": keys(*schemas.SCHEMA),
    "schemas add": [],
    "schemas delete": [],
    "schemas check": keys(*schemas.OBJECTIONS),
    "schemas config": keys(*schemas.MODES),
    "groups ls": keys(*group_fields.SUMMARY, *group_fields.PLACES),
    "groups describe": keys(
        *group_fields.OFFSETS, *group_fields.STATE, *group_fields.MEMBERS_VERBOSE
    ),
    "groups remove-members": [],
    "groups seek": keys(*groups.RESETS),
    "groups translate": keys(*groups.TRANSLATED),
    "groups delete": [],
    "groups delete-offsets": [],
    "groups log": keys(*groups.LOG, *groups.LOGGED_OFFSETS),
    "txns ls": keys(*txns.list_fields(0)),
    "txns describe": [
        *keys(*transaction_fields.DETAILS[len(transaction_fields.SUMMARY) :]),
        "entries",
        *keys(*transaction_fields.ENTRIES),
    ],
    "txns producers": keys(*txns.PRODUCERS),
    "txns find-hanging": keys(*txns.HUNG),
    "txns why": keys(*txns.STABLE_OFFSET, *txns.HOLDERS),
    "txns abort": [],
    "txns log": keys(*txns.LOG),
    "replicas describe": [
        *keys(*roots.SET),
        *("replicas", "scrub", "epochs", "logs"),
        *keys(*roots.REPLICAS, *roots.SCRUB, *roots.EPOCHS, *roots.LOGS),
    ],
    "replicas add": keys(*replica_changes.JOINED),
    "replicas remove": [],
    "replicas elect": [*keys(*replica_changes.ELECTION), "older"],
    "replicas config": keys(*setting_fields("store")),
    "replicas reassign": keys(*replica_changes.REASSIGNED),
    "replicas verify": keys(*roots.DIFFERENCES),
    "replicas forget": keys(*replica_changes.FORGOTTEN),
    "replicas move-controller": keys(*replica_changes.MOVED),
    "replicas recover": [],
}


@pytest.fixture(scope="module")
def sections() -> dict[str, str]:
    """What the document says under each verb."""
    parts = re.split(r"^## txnlog (.+)$", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """The help of each verb."""
    return _helps([])


LOOKS = {
    "store": "describe config",
    "topics": "ls describe",
    "topics config": "get",
    "offsets": "ls",
    "segments": "ls dump verify du",
    "index": "dump verify",
    "log": "dump",
    "records": "read changes head tail count",
    "schemas": "ls show check",
    "groups": "ls describe log",
    "txns": "ls describe producers find-hanging why log",
    "replicas": "describe",
    "": "metrics doctor",
}
"""Verbs that change nothing, by their group."""
ADDS = {
    "store": "create",
    "records": "write",
    "tables": "publish",
    "catalog": "serve",
    "schemas": "add",
    "replicas": "create follow verify",
    "": "import export bridge ui demo bench",
}
"""Verbs that only add, or change what is there only if an option says so."""


def test_all_verbs_that_change_something_have_the_same_habit(helps: dict[str, str]) -> None:
    """They do it, or with --dry-run say what they would do; none has another word for either."""
    without = {
        f"{group} {verb}".strip()
        for verbs in (LOOKS, ADDS)
        for group, several in verbs.items()
        for verb in several.split()
    }
    dry = {verb for verb, shown in helps.items() if "--dry-run" in shown}
    assert (dry & without, dry | without) == (set(), {*helps})
    assert {verb for verb, shown in helps.items() if "--yes" in shown} <= dry
    assert [verb for verb, shown in helps.items() if "--execute" in shown] == []


def test_what_is_compared_with_other_tools_exists(helps: dict[str, str]) -> None:
    """Each verb that docs/COMPARISON.md names for txnlog, and each of its options."""
    text = DOCUMENT.with_name("COMPARISON.md").read_text(encoding="utf-8")
    table = text.partition("## In the browser")[0]
    cells = [line.split(" | ")[1] for line in table.splitlines() if line.startswith("| ")][1:]
    named = [said for cell in cells for said in re.findall("`(.+?)`", cell)]
    assert len(named) > 40
    for said in named:
        verb, *options = re.split(" (?=--)", said)
        assert verb in helps, said
        assert {*options} <= {*OPTION.findall(helps[verb])}, said


def test_every_verb_and_option_is_documented(
    sections: dict[str, str], helps: dict[str, str]
) -> None:
    """The verbs of --help are the headings; a verb's own options and example are in its section.

    What all verbs have, and the habits of those that change something, are said once.
    """
    assert sorted(helps) == sorted(sections)
    like_read = ("records changes", "records head", "records tail", "records count")
    for verb, shown in helps.items():
        said = sections[verb] + (sections["records read"] if verb in like_read else "")
        example = shown.partition("Example:\n")[2].partition("\n\n")[0].split("\n")
        assert all(line.strip() in sections[verb] for line in example), verb
        assert max(map(len, shown.splitlines())) <= 80, verb
        columns = re.findall(r"^  (-.+?)(?:  |$)", shown, flags=re.MULTILINE)
        options = {option for column in columns for option in OPTION.findall(column)}
        assert options >= COMMON, verb
        assert options - COMMON - HABITS <= set(OPTION.findall(said)), verb


def test_options_that_are_documented_exist(sections: dict[str, str], helps: dict[str, str]) -> None:
    """At the verb under which they stand, or at the one that is named with them."""
    count = 0
    for verb, said in sections.items():
        for kafkas, *span in re.findall(r"(Kafka's )?`([^`]+)`|^    (.+)$", said, re.MULTILINE):
            of, options = _called("".join(span), [*helps], verb)
            if not kafkas and of in helps:
                assert {*options} <= {*OPTION.findall(helps[of]), *COMMON}, (verb, span)
                count += len(options)
    assert count > 300


def _called(span: str, verbs: list[str], here: str) -> tuple[str, list[str]]:
    """The verb that a piece of a command is of, and the options in it."""
    words = span.rpartition("| ")[2].removeprefix("txnlog ")
    found = [verb for verb in verbs if f"{words} ".startswith(f"{verb} ")]
    if not found and not words.startswith("-"):
        return "", []  # another program, or no command at all
    return max(found, default=here, key=len), re.findall(r"(?<!\S)--[a-z][\w-]*", words)


def test_the_json_keys_are_the_promised_ones() -> None:
    """They are a contract: json_keys.txt gets longer, and else does not change."""
    promised = (line.partition(":") for line in PROMISED_KEYS.read_text().splitlines())
    assert {verb: keys.split() for verb, _, keys in promised} == {
        v: k for v, k in KEYS.items() if k
    }


def test_documented_json_keys_exist(sections: dict[str, str]) -> None:
    """A verb's section has those that need a word, in the order of its output."""
    assert sorted(KEYS) == sorted(sections)
    count = 0
    for verb, expected in KEYS.items():
        listed = [key for block in sections[verb].split("\n\n") for key in _keys_in(block)]
        left = iter(expected)
        assert all(key in left for key in listed), verb
        count += len(listed)
    assert count > 200


def test_commands_that_messages_advise_exist(sections: dict[str, str]) -> None:
    """With the options that they are given there; a group may be named alone."""
    count = 0
    for path in [*CHECKOUT.glob("txnlog/**/*.py"), *CHECKOUT.glob("cli/**/*.py")]:
        for text in _texts(ast.parse(path.read_text(encoding="utf-8"))):
            for advice in re.findall(r"`txnlog ([a-z][^`]*)`", text):
                words = advice.split()
                verb = " ".join(words[:2]) if " ".join(words[:2]) in sections else words[0]
                found = [name for name in sections if f"{name} ".startswith(f"{advice} ")]
                assert found or verb in sections, (path, advice)
                options = {*re.findall(r"--[a-z][\w-]*", advice)}
                documented = OPTION.findall(sections.get(verb, ""))
                assert options <= {*COMMON, *HABITS, *documented}, (path, advice)
                count += 1
    assert count > 50


def _keys_in(block: str) -> list[str]:
    """The keys of a list that begins with ``Keys``.

    It ends with its sentence; what stands in parentheses is about the key before it.
    """
    if block.lstrip().startswith("Keys"):
        listed = re.sub(r"\([^()]*\)", "", block).partition(":")[2]
        return re.findall(r"`(\w+)`", re.split(r"\.\s", f"{listed}\n")[0])
    return []


def _texts(tree: ast.AST) -> Iterator[str]:
    """All strings; what is put into one stands there as ``X``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (str(p.value) if isinstance(p, ast.Constant) else "X" for p in node.values)
            yield "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_a_verb_is_found_by_what_is_typed(sections: dict[str, str]) -> None:
    """``txnlog topics trim`` is ``commands/topics/trim.py``; other groups' verbs share a file."""
    commands = CHECKOUT / "cli" / "commands"
    shared = {"records head": "records ends", "records tail": "records ends"}
    for verb in sections:
        typed = shared.get(verb, verb).replace("-", "_").replace("import", "import_").split()
        if typed[0] == "replicas":
            continue  # in the wing's own folder
        places = [commands.joinpath(*typed), commands.joinpath(*typed[:-1])]
        assert any(place.with_suffix(".py").is_file() for place in places), verb


def _helps(words: list[str]) -> dict[str, str]:
    """The help of all verbs below a group of them, at any depth."""
    groups = [[*words, command] for command in _commands(cli(*words, "--help").out)]
    helps: dict[str, str] = {}
    for group, done in zip(groups, cli_each(*((*g, "-h") for g in groups)), strict=True):
        helps |= _helps(group) if _commands(done.out) else {" ".join(group): done.out}
    return helps


def _commands(help_text: str) -> list[str]:
    """The first words of the lines under ``Commands:``, of which none is cut short."""
    listed = help_text.partition("Commands:\n")[2].partition("\n\n")[0]
    assert "..." not in listed, "the first sentence of its help is too long for 80 columns"
    return re.findall(r"^  ([\w-]+)", listed, flags=re.MULTILINE)
