"""What a person sees on a terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.cells import cell_len

import txnlog
from tests.support.cli.cli_command import FIRST_MS, cli, cli_each, cli_on_terminal
from txnlog.cli.output.fields import show_size
from txnlog.cli.output.record_fields import RECORD, Content, Record


def run_on_terminal(columns: int, *arguments: object, **variables: str) -> str:
    """The output of a command whose stdout is a terminal of that width."""
    env = {"TERM": "xterm-256color", **variables}
    code, shown = cli_on_terminal(*arguments, columns=columns, env=env)
    assert code == 0
    return shown


def test_tables_fit_the_terminal_and_colour_can_be_turned_off(store_path: Path) -> None:
    """At 80 columns no line is longer and wide columns are left out; NO_COLOR leaves no colour."""
    segments = txnlog.open(str(store_path)).topics.segments("orders")
    command = ("segments", "ls", "orders", "--store", store_path)
    narrow = run_on_terminal(80, *command, NO_COLOR="1")
    plain = re.sub(r"\x1b\[\d*m", "", narrow)
    wide = run_on_terminal(160, *command)
    assert max(map(len, plain.splitlines())) <= 80
    assert all(known.name in plain for known in segments)
    assert "FROM" not in plain
    assert "FROM" in wide
    assert "\x1b[1m" in wide
    assert "\x1b[3" not in narrow


def test_damage_is_told_in_whole_words_at_80_columns(tmp_path: Path) -> None:
    """With the file, the place in it, the offsets that it holds, and what to do."""
    store = txnlog.open(tmp_path / "store", create=True)
    store.topics.create("orders")
    with store.producer() as producer:
        for number in range(7):
            producer.send("orders", value=b"%d" % number)
    (segment,) = store.topics.segments("orders")
    path = tmp_path / "store" / segment.paths.log
    sound = path.read_bytes()
    for damaged, told in (
        (sound[:-1] + bytes([sound[-1] ^ 1]), r"at byte 0 \(relative offset 0\): CRC-32C is "),
        (sound[:-1], rf" {len(sound) - 1} bytes, but the log refers to {len(sound)}; restore it"),
    ):
        path.write_bytes(damaged)
        command = ("doctor", "--deep", "--no-probe", "--store", tmp_path / "store")
        code, shown = cli_on_terminal(*command, columns=80, env={"TERM": "xterm"})
        assert code == 3
        assert max(map(len, shown.splitlines())) <= 80
        words = " ".join(shown.split())
        assert re.search(told, words)
        assert "restore the file from a backup; offsets 0 to 6 of orders:0 are in it" in words


def test_what_operators_look_at_fits_80_columns(tmp_path: Path) -> None:
    """On the demo's store: no line is longer, and no cell is folded: a row is a line."""
    store = tmp_path / "demo"
    shown = run_on_terminal(80, "demo", store, NO_COLOR="1")
    assert "checkout-2  aborted    9 samovars        -" in shown
    at = ("--store", store)
    for verb, rows in (
        (("txns", "ls"), 3),
        (("txns", "log", "checkout-1"), 4),
        (("txns", "producers", "orders"), 3),
        (("groups", "log", "billing"), 1),
        (("records", "tail", "payments"), 2),
        (("groups", "seek", "billing", "--to", "latest", "--dry-run"), 1),
        (("topics", "ls"), 2),
        (("log", "dump", "orders"), 4),
        (("segments", "du"), 4),
    ):
        lines = re.sub(r"\x1b\[\d*m", "", run_on_terminal(80, *verb, *at)).splitlines()
        assert max(map(len, lines)) <= 80, verb
        assert len([line for line in lines if not line.startswith("─")]) == 1 + rows, verb
    why = run_on_terminal(80, "txns", "why", "orders", *at).splitlines()
    assert max(map(len, why)) <= 80
    assert "at once: txnlog txns abort checkout-3" in why[-1]


def test_long_names_are_folded_so_that_rows_fit(tmp_path: Path) -> None:
    """Also in lists that are printed while they are read; nothing of a name is lost."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    name = "customer-events-of-the-region-in-the-west-of-europe-2024"
    store.topics.create(name)
    with store.producer() as producer:
        producer.send(name, "x")
    at = ("--store", store.url)
    for verb in (("offsets", "ls", "--at", "max-timestamp"), ("doctor",), ("segments", "du")):
        lines = re.sub(r"\x1b\[\d*m", "", run_on_terminal(80, *verb, *at)).splitlines()
        assert max(map(len, lines)) <= 80, verb
        column = lines[0].find("SUBJECT" if verb == ("doctor",) else "TOPIC")
        names = "".join(line[column:].split("  ")[0].strip() for line in lines[1:])
        assert name in names, verb
        assert name in cli(*verb, *at).out


def test_an_empty_list_says_so_on_a_terminal(store_path: Path) -> None:
    """A pipe has the headers alone, which is what programs take for an empty list."""
    hanging = ("txns", "find-hanging", "--store", store_path)
    assert run_on_terminal(80, *hanging).splitlines()[-1] == "none"
    assert len(cli(*hanging).lines()) == 1
    assert run_on_terminal(80, "topics", "ls", "--store", store_path).splitlines()[-1] != "none"


@pytest.mark.parametrize("more", [(), ("--all",)])
def test_what_cannot_be_read_is_not_none(tmp_path: Path, more: tuple[str, ...]) -> None:
    """The only group is damaged: the list is empty, and does not say that there is none."""
    store = txnlog.open(str(tmp_path), create=True)
    store.topics.create("orders")
    store.groups.reset_offsets("team", ["orders"], to="latest")
    for entry in (tmp_path / "groups" / "team").glob("*.json"):
        entry.write_bytes(b"{")
    ls = ("groups", "ls", *more, "--store", tmp_path)
    code, shown = cli_on_terminal(*ls, env={"TERM": "xterm-256color"})
    assert (code, "GROUP" in shown, "none" in shown) == (3, True, False)
    assert "team" in cli(*ls).err


def test_a_terminal_is_shown_nothing_that_it_would_obey(store_path: Path) -> None:
    """A template's raw output in a pipe is one harmless line here."""
    read = ("records", "read", "orders:1", "-f", "%k=%v\\n", "--store", store_path)
    shown = run_on_terminal(80, *read, PYTHONIOENCODING="utf-8")
    assert shown == "\\N=\\xff\\x00\ntab\\tnul\\x00esc\\x1b[31m \\\\ é=\\N\n"


def test_columns_stay_in_line_behind_wide_characters(tmp_path: Path) -> None:
    """Chinese and emoji take two columns each: what stands behind them is not moved."""
    store = txnlog.open(str(tmp_path), create=True)
    store.topics.create("orders")
    with store.producer() as producer:
        for key in ("k", "\u8336" * 40, "\U0001f469\u200d\U0001f469", "e\u0301\u05e9"):
            producer.send("orders", "VALUE", key)
    read = ("records", "read", "orders", "--store", tmp_path)
    shown = run_on_terminal(80, *read, PYTHONIOENCODING="utf-8").splitlines()
    assert max(map(cell_len, shown)) <= 80
    assert len({cell_len(line.partition("VALUE")[0]) for line in shown}) == 1, shown


def test_metrics_do_nothing_to_a_terminal(tmp_path: Path) -> None:
    """A program gets the labels as they are."""
    store = txnlog.open(str(tmp_path), create=True)
    store.topics.create("orders")
    store.groups.reset_offsets("\x1b[31mred", ["orders"], to="latest")
    metrics = ("metrics", "--store", tmp_path)
    assert 'group="\\x1b[31mred"' in run_on_terminal(80, *metrics)
    assert 'group="\x1b[31mred"' in cli(*metrics).out


def test_long_records_are_cut_to_the_width_of_a_terminal(tmp_path: Path) -> None:
    """Keys, values and headers share what the other columns leave; a pipe shows them whole."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    store.topics.create("orders")
    with store.producer() as producer:
        producer.send("orders", "v" * 5000, "key", headers=[("h", b"x" * 300)])
        producer.send("orders", "\u8336" * 300, "k" * 100)
    read = ("records", "read", "orders", "--store", tmp_path / "store")
    shown = run_on_terminal(100, *read, PYTHONIOENCODING="utf-8").splitlines()
    assert [cell_len(line) <= 100 for line in shown] == [True] * 3
    assert shown[1].split()[3] == "key"
    assert [line.count("\u2026") for line in shown] == [0, 2, 2]
    whole = cli(*read, env={"PYTHONIOENCODING": "utf-8"}).out
    assert "v" * 5000 in whole
    assert "\u2026" not in whole


@pytest.mark.more
def test_no_way_of_printing_a_record_lets_a_terminal_obey_it(tmp_path: Path) -> None:
    """Escapes, C1 controls and changes of direction in keys, values and headers, in each format."""
    odd = "\x1b[31m \x9b31m \u202e \u2028 \x7f"
    store = txnlog.open(str(tmp_path / "store"), create=True)
    store.topics.create("t")
    with store.producer() as producer:
        producer.send("t", odd, odd, headers=[(odd, odd.encode())])
    read = ("records", "read", "t", "--store", store.url)
    template = "%k %v %h %k{text} %h{text} %k{json} %h{json}\\n"
    for how in (("-o", "table"), ("-o", "json"), ("-o", "jsonl"), ("-f", template)):
        shown = run_on_terminal(200, *read, *how, PYTHONIOENCODING="utf-8")
        assert "[31m" in shown, how
        assert shown.replace("\n", "").isprintable(), (how, shown)
    (record,) = cli(*read, "-o", "json").json()
    assert [record["key"], record["value"], record["headers"][0]["key"]] == [odd] * 3


def test_no_message_lets_a_terminal_obey_a_name(tmp_path: Path, store_path: Path) -> None:
    """Messages repeat names of stores, topics, groups and transactional ids; on one line."""
    odd = "\x1b[31m\x9b\n\\x"
    for done in cli_each(
        ("topics", "ls", "--store", tmp_path / odd),
        ("topics", "describe", odd, "--store", store_path),
        ("txns", "describe", odd, "--store", store_path),
        ("groups", "delete-offsets", odd, "paid", "--store", store_path, "--yes"),
        ("segments", "dump", "--file", tmp_path / odd),
    ):
        assert "[31m" in done.err
        assert "\\x" in done.err
        assert done.err.removesuffix("\n").isprintable(), done


def test_sizes_are_for_people_on_a_terminal_alone(store_path: Path) -> None:
    """In units there, in bytes with -b before or behind the verb, in pipes, and in JSON."""
    size_bytes = sum(
        part.size_bytes for part in txnlog.open(str(store_path)).topics.segments("orders")
    )
    ls, at = ("topics", "ls", "orders"), ("--store", store_path)
    shown = run_on_terminal(80, *ls, *at)
    assert "SIZE" in shown
    assert show_size(size_bytes) in shown
    for exact in (
        run_on_terminal(80, *ls, *at, "-b"),
        run_on_terminal(80, "--bytes", *ls, *at),
        cli(*ls, *at).out,
    ):
        assert "BYTES" in exact
        assert f" {size_bytes} " in exact
    (found,) = cli(*ls, *at, "-o", "json").json()
    assert found["size_bytes"] == size_bytes
    assert show_size(size_bytes) in run_on_terminal(80, "topics", "describe", "orders", *at)


def test_sizes_have_two_digits_at_least_and_no_more_than_four() -> None:
    """Rounded, and never 1024 of a unit."""
    assert {size: show_size(size) for size in (None, 0, 1023, 1024, 1536, 10_137)} == {
        None: "-",
        0: "0 B",
        1023: "1023 B",
        1024: "1.0 KiB",
        1536: "1.5 KiB",
        10_137: "9.9 KiB",
    }
    assert [show_size(size) for size in (10_200, 1_048_000, 1_048_575, 5 << 30, 3 << 60)] == [
        *("10 KiB", "1023 KiB", "1.0 MiB", "5.0 GiB", "3072 PiB")
    ]


def test_long_names_fold_and_numbers_and_times_do_not(tmp_path: Path) -> None:
    """Nothing is longer than a line of 80, and each row's times and numbers stand in one piece."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    topic, group, name = "departures-by-airport-" * 2, "aggregator-of-" * 3, "nightly-load-" * 4
    store.topics.create(topic, partitions=2)
    producer = store.producer(transactional_id=name)
    producer.init_transactions()
    for offset in range(3):
        producer.begin_transaction()
        producer.send(topic, b"v", b"k", 0)
        producer.send_offsets_to_transaction({txnlog.TopicPartition(topic, 0): offset}, group)
        producer.commit_transaction()
    times = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
    for verb, rows in (
        (("groups", "describe", group), 1),
        (("groups", "log", group), 3),
        (("txns", "log", name), 1 + 3 * 3),
    ):
        shown = run_on_terminal(80, *verb, "--store", store.url)
        plain = re.sub(r"\x1b\[\d*m", "", shown)
        assert len(times.findall(plain)) == rows, (verb, plain)
        table = plain.partition("Offsets:")[2] or plain
        assert max(map(cell_len, table.splitlines())) <= 80, verb
    maintained = run_on_terminal(80, "maintain", "--dry-run", "--store", store.url)
    assert max(map(cell_len, re.sub(r"\x1b\[\d*m", "", maintained).splitlines())) <= 80


@pytest.mark.more
def test_a_dump_of_huge_records_does_not_flood_a_terminal(tmp_path: Path) -> None:
    """Each record is a line of the terminal's width, in a pipe all of it."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    store.topics.create("t")
    with store.producer() as producer:
        producer.send("t", b"\x1b[31m" * 100_000, "k")
    dump = ("segments", "dump", "t", "--records", "--store", store.url)
    lines = run_on_terminal(80, *dump, PYTHONIOENCODING="utf-8").splitlines()
    assert max(map(cell_len, lines)) <= 80
    assert lines[-1].endswith("\u2026")
    assert "\\x1b[31m" * 100_000 in cli(*dump).out


def test_what_is_cut_is_not_made_readable_first() -> None:
    """Of 10 MB a terminal's cell is made of what a terminal is wide; -b is about sizes alone."""
    record = Record(
        "t", 0, None, 0, Content(0, b"k", b"\x1b[31m" * 2_000_000, [("h", b"x" * 99_999)])
    )
    columns = {field.key: field for field in RECORD}
    for key in ("value", "headers"):
        glance = columns[key].glance
        assert glance is not None
        assert len(glance(record)) < 100_000
        assert glance(record).endswith("\u2026")
        assert len(columns[key].show(record)) >= 99_999
    key_glance = columns["key"].glance
    assert key_glance is not None
    assert key_glance(record) == "k"


def test_headers_take_no_width_where_no_record_has_any(tmp_path: Path) -> None:
    """At 80 columns, so that values have it; with one record that has some they are shown."""
    store = txnlog.open(str(tmp_path / "s"), create=True)
    store.topics.create("t")
    with store.producer() as producer:
        producer.send("t", "v" * 60, "k", 0, FIRST_MS)
    read = ("records", "read", "t", "--store", store.url)
    heading, record = run_on_terminal(80, *read).splitlines()
    assert "HEADERS" not in heading
    assert record.count("v") > 28
    with store.producer() as producer:
        producer.send("t", "x", headers=[("name", b"1")])
    heading, *_, last = run_on_terminal(80, *read).splitlines()
    assert ("HEADERS" in heading, "name=1" in last) == (True, True)
