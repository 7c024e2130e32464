"""What the pages show."""

from __future__ import annotations

import json
import random
import re
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html import escape, unescape

import numpy as np
import pyarrow as pa
import pytest
from starlette.testclient import TestClient

from tests.ui.ui_browser import HOSTILE, PORT, browser_of, text_of
from txnlog import ConsumerConfig, TopicPartition
from txnlog.display import show_setting
from txnlog.inspect.describe import describe_segments_within
from txnlog.inspect.placed_indexes import dump_placed_indexes
from txnlog.log.segment_outline import SegmentOutline
from txnlog.names import LogFile, log_file, log_file_prefix
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage
from txnlog.ui.access import Access, loopback_hosts
from txnlog.ui.console import Console, GrowthRates
from txnlog.ui.lag_curves import Commit, EndOffsetCurve, draw_lags, follow_lag
from txnlog.ui.pages import groups, transactions
from txnlog.ui.pages.topics import Scale, draw_bars
from txnlog.ui.render import show_content, show_size
from txnlog.ui.server import make_console

OPEN_ID = f"open/{HOSTILE}"


def test_topics_are_listed_and_found(browser: TestClient, store: Store) -> None:
    """With what they hold; names are looked for in any case."""
    store.topics.create("paid")
    shown = text_of(browser, "/")
    assert "orders 2 3 \u2013 3" in shown
    assert "compression.type=zstd" in shown
    assert "paid" not in text_of(browser, "/?find=ORD")
    assert f"No topic has {HOSTILE}" in text_of(
        browser, "/?find=%3Cscript%3Ealert('x')%3C/script%3E"
    )


def test_long_lists_come_a_page_at_a_time(browser: TestClient, store: Store) -> None:
    """Only the topics of the page are read; a page that is not there is the nearest one."""
    for number in range(55):
        store.topics.create(f"t{number:02}")
    pages = [text_of(browser, f"/?page={page}") for page in ("1", "2", "99", "-1", "x", "9" * 30)]
    assert ["t48" in page for page in pages] == [True, False, False, True, True, True]
    assert ["t54" in page for page in pages] == [False, True, True, False, False, False]


def test_deleted_topics_hide_no_others(browser: TestClient, store: Store) -> None:
    """A page of which all are deleted leads to the others."""
    for number in range(55):
        store.topics.create(f"deleted-{number:02}")
        store.topics.delete(f"deleted-{number:02}")
    shown = browser.get("/?find=e").text
    assert "are deleted" in text_of(browser, "/?find=e")
    assert 'href="?page=2&amp;find=e"' in shown
    assert "orders" in text_of(browser, "/?find=e&page=2")
    assert "auto" in text_of(browser, "/?find=orders")  # the default of its format


def test_a_topic_says_who_holds_it_back(browser: TestClient) -> None:
    """And what ends that."""
    shown = text_of(browser, "/topics/orders")
    assert f"Transaction 1 of {OPEN_ID} is undecided from offset 2 on" in shown


def test_settings_are_in_words(browser: TestClient, store: Store) -> None:
    """With where each comes from, and the number for who rests on the words."""
    store.topics.create("set", config={"retention.ms": 604_800_000, "segment.bytes": 1 << 20})
    shown = text_of(browser, "/topics/set/settings")
    assert "retention.ms 7 days set" in shown
    assert "segment.bytes 1 MiB set" in shown
    assert "retention.bytes no limit default" in shown
    assert 'title="604800000"' in browser.get("/topics/set/settings").text
    assert "retention.ms=7 days" in text_of(browser, "/?find=set")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("retention.ms", "86400000", "1 day"),
        ("retention.ms", "90000000", "25 hours"),
        ("segment.ms", "90001", "90\u202f001 ms"),
        ("segment.ms", str((1 << 63) - 1), "no limit"),
        ("retention.bytes", "1000", "1\u202f000 bytes"),
        ("retention.bytes", "-1", "no limit"),
        ("delete.retention.ms", "0", "0"),
        ("cleanup.policy", "compact", "compact"),
        ("min.insync.replicas", "2", "2"),
        ("retention.ms", "\u0663", "\u0663"),
    ],
)
def test_numbers_of_settings_have_units(key: str, value: str, words: str) -> None:
    """Never a rounded one."""
    assert show_setting(value, key) == words


def test_a_topic_lists_who_reads_it(browser: TestClient, store: Store) -> None:
    """Its groups, those that lag most first, with their members; no group of another topic."""
    store.topics.create("paid")
    store.consumer("paid", group_id="elsewhere").commit({TopicPartition("paid", 0): 0})
    consumer = store.consumer(group_id="team", auto_offset_reset="earliest")
    consumer.subscribe(["orders"])
    assert consumer.poll(timeout_ms=5000)
    consumer.commit()
    shown = text_of(browser, "/topics/orders/groups")
    consumer.close()
    assert f"{HOSTILE} Empty 1 0 0: 1" in shown
    assert "team Stable 0 1 0: 2, 1: 0" in shown
    assert shown.index(HOSTILE) < shown.index("team")
    assert "elsewhere" not in shown
    store.topics.create("unread")
    assert "No group reads this topic" in text_of(browser, "/topics/unread/groups")


def test_a_topic_lists_who_writes_to_it(browser: TestClient, store: Store) -> None:
    """By transactional id where there is one; what is open is said to be."""
    with store.producer() as producer:
        producer.send("orders", "a", partition=1)
    page = browser.get("/topics/orders/writers").text
    rows = [re.sub(r"<[^>]*>", " ", row).split() for row in re.findall(r"<tr>.*?</tr>", page)]
    named = {unescape(row[0]): row for row in rows[1:]}
    assert {*named} == {"etl", "failing", OPEN_ID, "none"}
    assert ["open" in row for row in (named["etl"], named[OPEN_ID])] == [False, True]
    assert named["none"][-1] == "1"
    store.topics.create("silent")
    assert "No producer is remembered" in text_of(browser, "/topics/silent/writers")


def test_a_partition_is_a_picture_of_its_segments(browser: TestClient) -> None:
    """A bar for each outcome, and the offsets that count."""
    page = browser.get("/topics/orders/0").text
    assert re.findall(r'<rect class="(\w+)" x="([\d.]+)"', page) == [
        ("committed", "0.00"),
        ("aborted", "333.33"),
        ("undecided", "666.67"),
    ]
    shown = text_of(browser, "/topics/orders/0")
    assert "start 0 stable 2 end 3" in shown
    assert "undecided, offsets 2 to 2" in shown


def test_many_segments_are_few_bars() -> None:
    """Neighbours that fared alike are one; what fared differently is seen however small it is."""
    bases = np.arange(20_000)
    segments = SegmentOutline(
        base_offsets=bases,
        end_offsets=bases + 1,
        aborted=bases == 7777,
        undecided=bases >= 19_999,
        names=pa.chunked_array([[f"s{number}" for number in bases]]),
    )
    bars = draw_bars(segments, Scale(0, 20_000))
    assert len(bars) <= 403
    assert sum(bar.segment_count for bar in bars) == 20_000
    aborted, undecided = (bar for bar in bars if bar.outcome != "committed")
    assert aborted.width == undecided.width == 1
    assert aborted.title == "segment s7777, aborted, offsets 7777 to 7777"
    assert undecided.outcome == "undecided"


def test_a_transaction_is_walked_through(browser: TestClient) -> None:
    """Each step with the files that it put."""
    shown = text_of(browser, "/transactions/etl")
    steps = re.findall(r"(Begun|Announced|Placed|Decided to commit|Marked|Complete):", shown)
    assert steps == ["Begun", "Announced", "Placed", "Decided to commit", "Marked", "Complete"]
    assert "topics/orders/log/00000000000000000001.json" in shown
    assert "topics/orders/log/00000000000000000001.commit" in shown
    assert "Decided to abort" in text_of(browser, "/transactions/failing")
    listed = text_of(browser, "/transactions")
    assert listed.index(OPEN_ID) < listed.index("failing")
    assert "etl" not in text_of(browser, "/transactions?find=OPEN")


def test_long_histories_are_read_from_their_newest_on(
    console: Console, browser: TestClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a page costs does not grow with what lies further back; the list reads each id once."""
    producer = store.producer(transactional_id="many")
    producer.init_transactions()
    for number in range(20):
        producer.begin_transaction()
        producer.send_offsets_to_transaction({TopicPartition("orders", 0): number}, "long")
        producer.commit_transaction()
    monkeypatch.setattr(transactions, "_SHOWN_STATES", 3)
    monkeypatch.setattr(groups, "_SHOWN_ENTRIES", 2)
    assert _requests(browser, console, "/transactions/many") == {"get": 3, "list": 1}
    assert re.findall(r"many (\d+) commit", text_of(browser, "/groups/long")) == ["20", "19"]
    listed = _requests(browser, console, "/transactions")
    assert listed["list"] == listed["get"] == len([*store.transactions.list()])


def test_a_groups_page_lists_its_log_once(
    browser: TestClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And for its newest entries what follows the others alone, for the log may be long."""
    for number in range(20):
        store.consumer("orders", group_id="long").commit({TopicPartition("orders", 0): number})
    monkeypatch.setattr(groups, "_SHOWN_ENTRIES", 2)
    begun: list[str] = []
    list_names = CountingStorage.list_names

    def listing(storage: CountingStorage, folder: str, start_after: str = "") -> list[str]:
        if folder == "groups/long":
            begun.append(start_after)
        return list_names(storage, folder, start_after)

    monkeypatch.setattr(CountingStorage, "list_names", listing)
    assert browser.get("/groups/long").status_code == 200
    assert begun.count("") == 1
    assert begun[-1] == log_file_prefix(18)


def _requests(browser: TestClient, console: Console, path: str) -> dict[str, int]:
    """What a page asks for; it takes the counts itself, to show them."""
    asked: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(console.requests, "counts", asked)
        patched.setattr(console.requests, "take", lambda: dict(asked))
        assert browser.get(path).status_code == 200
    return dict(asked)


def test_a_group_shows_its_lag_over_time(browser: TestClient, store: Store) -> None:
    """Its lag, its commits, and a curve over them."""
    shown = text_of(browser, "/groups/" + "%3Cscript%3Ealert('x')%3C%2Fscript%3E")
    assert "Empty · lag 1" in shown
    assert "Lag over time" in shown
    assert "orders:0, now 1" in shown
    assert f"{HOSTILE} Empty 0 1 1" in text_of(browser, "/groups")


def test_a_group_shows_its_members(browser: TestClient, store: Store) -> None:
    """Who they are, and what each has."""
    consumer = store.consumer(
        group_id="team", config=ConsumerConfig(client_id=HOSTILE), auto_offset_reset="earliest"
    )
    consumer.subscribe(["orders"])
    assert consumer.poll(timeout_ms=5000)
    consumer.commit()
    shown = text_of(browser, "/groups/team")
    consumer.close()
    assert "Stable · lag 0 · 1 member · generation 1 · assignor" in shown
    assert f"{HOSTILE} {socket.gethostname()} orders orders:0, orders:1" in shown
    assert "Members" not in text_of(browser, "/groups/team")


def test_a_groups_page_tells_of_entries_that_cannot_be_read(
    browser: TestClient, store: Store
) -> None:
    """Its offsets are known from a checkpoint; what is missing of its log is named."""
    store.consumer("orders", group_id="torn").commit({TopicPartition("orders", 0): 1})
    store.logs.group("torn").checkpoint()
    first = f"groups/torn/{log_file(0, LogFile.ENTRY)}"
    store.storage.delete([first])
    store.storage.put(first, b"torn")
    shown = text_of(browser, "/groups/torn")
    assert "Empty · lag" in shown
    assert first in shown


def test_lag_grows_with_appends_and_falls_with_commits() -> None:
    """Of each commit the lag before it and after it; before the first nothing is known."""
    appended = EndOffsetCurve(np.array([100, 200, 300]), np.array([10, 20, 30]))
    assert [appended.end_at(at_ms, default=7) for at_ms in (99, 100, 250, 900)] == [7, 10, 20, 30]
    commits = [Commit(50, 0), Commit(150, 4), Commit(250, 20)]
    assert follow_lag(commits, appended, 400) == [
        *((50, 0), (150, 10), (150, 6), (250, 16), (250, 0), (400, 10))
    ]


def test_offsets_of_aborted_transactions_are_no_commits(store: Store) -> None:
    """They moved nothing, nor have those that are undecided."""
    (entry,) = store.groups.history(HOSTILE)
    offsets = store.groups.describe(HOSTILE).offsets
    later_ms = entry.at_ms + 1000
    others = [replace(entry, marker=marker, at_ms=later_ms) for marker in ("abort", None)]
    drawn = draw_lags(store.logs, offsets, [*others, entry], later_ms)
    assert drawn.first_ms == later_ms  # a clock that runs back is held where it was
    assert len(drawn.curves[0].points.split()) == 2
    assert draw_lags(store.logs, offsets, others, later_ms).curves == []


@pytest.mark.usefixtures("early_files")
def test_a_picture_shows_what_indexes_know(browser: TestClient, store: Store) -> None:
    """When it is asked to: it reads the index files of some segments."""
    store.topics.create("long", config={"index.interval.bytes": 0, "record.format": "columns"})
    with store.producer() as producer:
        for _ in range(3):
            producer.send_batch("long", pa.record_batch({"value": [b"x" * 1000] * 1000}))
    plain = browser.get("/topics/long/0").text
    assert ("show indexes" in plain, 'class="tick"' in plain) == (True, False)
    log = store.logs.fresh_topic("long")
    segments = describe_segments_within(log, 0, 0, 3000)
    known = [
        entry.offset
        for segment in segments
        for entry in dump_placed_indexes(store.storage, segment)
        if entry.kind == "offset"
    ]
    assert known
    ticks = re.findall(r'class="tick".*?offset (\d+) at', browser.get("/topics/long/0?index").text)
    assert [int(offset) for offset in ticks] == known


def test_what_is_damaged_is_not_said_to_be_missing() -> None:
    """A list that has an error in place of its only row is not empty."""
    storage = HeapStorage()
    made = attach(storage, create=True)
    made.topics.create("orders")
    made.consumer("orders", group_id="team").commit({TopicPartition("orders", 0): 0})
    producer = made.producer(transactional_id="etl")
    producer.init_transactions()
    for folder in ("topics/orders/log", "groups/team", "transactions/etl"):
        name = f"{folder}/{0:020}.json"
        storage.delete([name])
        storage.put(name, b"?")
    damaged, nothing = (
        browser_of(make_console(store, Access(loopback_hosts(PORT))))
        for store in (made, attach(HeapStorage(), create=True))
    )
    with damaged as browser, nothing as empty:
        for path, missing in (
            ("/", "There are no topics"),
            ("/groups", "There are no groups"),
            ("/transactions", "There are no transactional ids"),
        ):
            shown = text_of(browser, path)
            assert f"{0:020}.json is damaged" in shown, path
            assert missing not in shown, path
            assert missing in text_of(empty, path)


def test_what_is_not_there_is_said(browser: TestClient) -> None:
    """In our own words, with the page around it."""
    for path in ("/topics/none", "/topics/orders/9", "/transactions/none", "/groups/none"):
        answer = browser.get(path)
        assert (answer.status_code, "Not shown" in answer.text) == (400, True), path
    assert escape("'<b>'") in browser.get("/topics/%3Cb%3E").text.replace("&#39;", "&#x27;")


def test_a_page_says_what_it_has_cost(browser: TestClient) -> None:
    """Requests since the last one, behind a disclosure that is closed."""
    for path in ("/topics/orders", "/groups", "/store"):
        (words,) = re.findall(r"[^\n]*Requests since the last page.*", browser.get(path).text)
        assert words.startswith('<details class="costs"><summary>Requests since the last page:')
        assert words.endswith("</p></details>")
    browser.get("/")
    assert re.search(r"Requests since the last page: \d+ .*list_folders \d", text_of(browser, "/"))


def test_rates_are_those_between_two_looks() -> None:
    """The first one knows nothing; what was recreated has not shrunk."""
    rates = GrowthRates()
    assert rates.measure("a", 10.0, 100) is None
    assert rates.measure("a", 12.0, 160) == 30
    assert rates.measure("a", 14.0, 0) == 0


@pytest.mark.parametrize("seed", range(20))
def test_json_is_laid_out_as_python_does(seed: int) -> None:
    """Where Python knows the values as they are written."""
    some = random.Random(seed)

    def value(depth: int) -> object:
        names = ["", "a", '"[{', "\\", "é\n", "\ud800", "}]:,"]
        kinds: list[Callable[[], object]] = [
            lambda: some.choice([None, True, False, -1, 1 << 70, 0.5, 1e-9]),
            lambda: some.choice(names),
            lambda: [value(depth + 1) for _ in range(some.randrange(3))],
            lambda: {some.choice(names): value(depth + 1) for _ in range(some.randrange(3))},
        ]
        return some.choice(kinds[: 2 if depth > 4 else 4])()

    for _ in range(50):
        written = [value(0)]
        dense = some.choice([(",", ":"), None, (" ,\n", " :\t")])
        given = json.dumps(written, separators=dense)
        assert show_content(given.encode()) == json.dumps(written, indent=2, ensure_ascii=False)


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (None, "null"),
        (b"", ""),
        (b"\xff\x00", "ff 00"),
        (b"[1,2]", "[\n  1,\n  2\n]"),
        (b"[1,", "[1,"),
        (b'{"a": 12345678901234.123456789}', '{\n  "a": 12345678901234.123456789\n}'),
        (b'{"a": 1, "a": 2}', '{\n  "a": 1,\n  "a": 2\n}'),
        (b"[1e400, 1.10, -0, NaN]", "[\n  1e400,\n  1.10,\n  -0,\n  NaN\n]"),
        (b"[" * 50_000, "[" * 20_000 + "\n… 48.8 KiB in all"),
        ("é".encode() * 10_001, "é" * 10_000 + "\n… 19.5 KiB in all"),
        (b"x" + "é".encode() * 10_001, "x" + "é" * 9_999 + "\n… 19.5 KiB in all"),
    ],
)
def test_content_is_text_json_or_hex(data: bytes | None, shown: str) -> None:
    """Cut where a page would get too long, never inside of a character."""
    assert show_content(data) == shown


def test_sizes_have_units() -> None:
    """From bytes to tebibytes."""
    assert [show_size(size) for size in (0, 1023, 1536, 5 << 30, 3 << 40)] == [
        *("0 B", "1023 B", "1.5 KiB", "5.0 GiB", "3.0 TiB")
    ]
