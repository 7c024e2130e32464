"""The page of records: all partitions together, searches that go on, what can be taken along."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape, unescape
from typing import Any

import pyarrow as pa
import pytest
from starlette.testclient import TestClient

from tests.ui.ui_browser import HOSTILE, text_of
from txnlog.read.conditions import key_and_text_filter
from txnlog.schemas import SchemaAdmin
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage
from txnlog.ui import look as look_module
from txnlog.ui.console import Console
from txnlog.ui.look import Look, SoughtRecords, look_at
from txnlog.ui.record_query import find_zone
from txnlog.ui.render import show_cell, show_line, show_time
from txnlog.values import RegisteredSchema, ValueWriter

AT = "/topics/orders/records"


def send(store: Store, topic: str, partition: int, times_ms: list[int], value: str = "{}") -> None:
    """Records in one segment; ``value`` gets the number of each."""
    count = len(times_ms)
    batch = {
        "value": [value.format(number).encode() for number in range(count)],
        "timestamp": pa.array(times_ms, pa.timestamp("ms", tz="UTC")),
        "partition": pa.array([partition] * count, pa.int32()),
    }
    with store.producer() as producer:
        producer.send_batch(topic, pa.record_batch(batch))


def look_through(
    store: Store, topic: str, wanted: SoughtRecords, *, older: bool, count: int
) -> list[Look]:
    """One look after the other, each from where the one before it has come to."""
    view = store.snapshot([topic]).view(topic)
    begin: Mapping[int, int] = view.end_offsets if older else view.beginning_offsets
    looks: list[Look] = []
    while not looks or not looks[-1].is_complete:
        looks.append(
            look_at(store.storage, store.logs.clock, view, begin, wanted, count=count, older=older)
        )
        assert looks[-1].end != begin, "a look has come nowhere"
        begin = looks[-1].end
    return looks


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(n, marks=pytest.mark.more) for n in range(4, 40))]
)
@pytest.mark.parametrize("older", [True, False])
def test_every_record_is_met_once(seed: int, older: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of offsets; by time, too, if times ascend. Searches find what matches."""
    rng = random.Random(seed)
    if seed % 3 == 0:  # each look ends as soon as it may
        monkeypatch.setattr(look_module, "_MOST_CPU_S", -1.0)
    monkeypatch.setattr(look_module, "_FIRST_SEARCHED", rng.choice([1, 5, 2000]))
    monkeypatch.setattr(look_module, "_PIECE_BYTES", rng.choice([20, 500, 4 << 20]))
    store = attach(HeapStorage(), create=True)
    partitions = rng.choice([1, 2, 3, 5])
    store.topics.create("t", partitions=partitions, config={"record.format": "columns"})
    ascends, now_ms = seed % 2 == 0, 1000
    for _ in range(rng.randrange(1, 12)):
        partition, count = rng.randrange(partitions), rng.choice([1, 3, 40])
        times = [*range(now_ms, now_ms + count)] if ascends else rng.choices(range(500), k=count)
        now_ms += count
        send(store, "t", partition, times)
    for wanted in (SoughtRecords(), SoughtRecords(key_and_text_filter(None, "[37]$"))):
        looks = look_through(store, "t", wanted, older=older, count=rng.choice([1, 7, 50]))
        found = [record for look in looks for record in look.found]
        scan = store.snapshot(["t"]).scan("t", filter=wanted.expression)
        assert len(found) == len({(r.partition, r.offset) for r in found})
        assert len(found) == sum(scan.count().values())
        for partition in range(partitions):
            offsets = [r.offset for r in found if r.partition == partition]
            assert offsets == sorted(offsets, reverse=older)
        if ascends and not wanted and seed % 3:
            assert [r.timestamp for r in found] == sorted(
                (r.timestamp for r in found), reverse=older
            )


def test_a_look_reads_the_segments_that_count(store: Store) -> None:
    """The log tells the times of segments: the others are not read, however many there are."""
    store.topics.create("wide", partitions=40)
    for number in range(40):
        send(store, "wide", number, [1000 * number + n for n in range(60)])
    view = store.snapshot(["wide"]).view("wide")
    counting = CountingStorage(store.storage)
    begin = view.end_offsets
    look = look_at(counting, store.logs.clock, view, begin, SoughtRecords(), count=50, older=True)
    assert [record.timestamp for record in look.found] == [*range(39_059, 39_009, -1)]
    assert counting.take() == {"get_range": 1}


def test_a_search_reads_each_segment_once(store: Store) -> None:
    """Its batches are decoded as wholes, so pieces of it would be read again and again."""
    store.topics.create("long")
    send(store, "long", 0, [*range(20_000)], "v{}")
    view = store.snapshot(["long"]).view("long")
    counting = CountingStorage(store.storage)
    wanted, begin = SoughtRecords(key_and_text_filter(None, "^v7$")), view.end_offsets
    look = look_at(counting, store.logs.clock, view, begin, wanted, count=50, older=True)
    assert [record.offset for record in look.found] == [7]
    assert look.is_complete
    assert counting.take() == {"get_range": 1}


def test_damage_hides_nothing_else(store: Store, browser: TestClient) -> None:
    """Of a segment that cannot be read the page says which, and shows what lies around it."""
    store.topics.create("worn", config={"record.format": "columns"})
    for number in range(3):
        send(store, "worn", 0, [number], f"v{number}")
    assert isinstance(store.storage, HeapStorage)
    damaged = store.topics.segments("worn")[1].paths.log
    store.storage.delete([damaged])
    shown = text_of(browser, "/topics/worn/records")
    assert "Cannot be read, and is left out" in shown
    assert damaged in shown
    assert [f"v{number}" in shown for number in range(3)] == [True, False, True]


def offsets_of(page: str) -> list[tuple[str, str]]:
    """The places of the records of a page, in its order: partition and offset."""
    return re.findall(r'<summary><span class="narrow">(\d+):</span>(\d+)</summary>', page)


def links_of(page: str, topic: str = "many") -> dict[str, str]:
    """Where a page leads to: prev, next."""
    found = re.findall(r'<a rel="(prev|next)" href="([^"]*)"', page)
    return {rel: f"/topics/{topic}/records{unescape(href)}" for rel, href in found}


@pytest.fixture
def many(store: Store) -> Store:
    """A topic of three partitions with 150 records, one every second, in turn."""
    store.topics.create("many", partitions=3)
    for number in range(15):
        times = [1_700_000_000_000 + 1000 * (10 * number + n) for n in range(10)]
        send(store, "many", number % 3, times, f'{{{{"batch": {number}, "n": {{}}}}}}')
    return store


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_pages_lead_to_all_records_and_back(browser: TestClient, many: Store, order: str) -> None:
    """Over all partitions, by time; back are the same pages."""
    at = f"/topics/many/records?order={order}"
    pages = [browser.get(at).text]
    while "next" in links_of(pages[-1]):
        pages.append(browser.get(links_of(pages[-1])["next"]).text)
    assert [len(offsets_of(page)) for page in pages] == [50, 50, 50]
    times = [time for page in pages for time in re.findall(r'when"><time datetime="(.*?)"', page)]
    assert (times, len({*times})) == (sorted(times, reverse=order == "newest"), 150)
    for number in (1, 0):
        back = browser.get(links_of(pages[number + 1])["prev"]).text
        assert offsets_of(back) == offsets_of(pages[number])
    assert "prev" not in links_of(pages[0])


def test_what_is_written_meanwhile_moves_no_page(browser: TestClient, many: Store) -> None:
    """The next page goes on behind this one, also with partitions that were not there then."""
    first = browser.get("/topics/many/records").text
    send(many, "many", 0, [1_700_000_200_000])
    many.topics.alter("many", partitions=4)
    send(many, "many", 3, [1_700_000_000_000])
    second = browser.get(links_of(first)["next"]).text
    assert not {*offsets_of(first)} & {*offsets_of(second)}
    third = browser.get(links_of(second)["next"]).text
    last = browser.get(links_of(third)["next"]).text
    assert ("3", "0") in offsets_of(third) + offsets_of(last)
    newer = links_of(second)["prev"]
    assert offsets_of(browser.get(newer).text) == offsets_of(first)


def test_records_are_searched_for(browser: TestClient, store: Store) -> None:
    """By key, content, JSON, time and partition; at each level."""
    assert "etl" in text_of(browser, AT)
    assert "failing" not in text_of(browser, AT)
    every = f"{AT}?level=read_uncommitted"
    assert [name in text_of(browser, every) for name in ("etl", "failing", "open/")] == [True] * 3
    for query, matches in (
        (f"key={HOSTILE}".replace("/", "%2F"), True),
        ("key=nobody", False),
        ("find=e.l", True),
        ("find=^x", False),
        ("where=value.by=etl", True),
        ("where=value.by!=etl", False),
        ("since=1h", True),
        ("until=1h", False),
        ("since=2999-01-01", False),
        ("until=2999-01-01&since=1970-01-01", True),
        ("partitions=0", True),
        ("partitions=1", False),
        ("partitions=0&offset=0", True),
    ):
        shown = text_of(browser, f"{AT}?{query}")
        assert ('"by": "etl"' in shown) is matches, query
        assert ("no record" in shown) is not matches, query


def test_a_time_is_one_of_the_zone_that_is_shown(browser: TestClient, store: Store) -> None:
    """The browser sends its name; a time that names its own is that."""
    store.topics.create("times")
    noon = datetime(2024, 5, 1, 12, tzinfo=UTC)
    send(store, "times", 0, [int(noon.timestamp() * 1000)], "noon")
    for since, zone, matches in (
        ("2024-05-01T12:00", "", True),
        ("2024-05-01T12:01", "", False),
        ("2024-05-01T14:00", "Europe/Berlin", True),
        ("2024-05-01T14:01", "Europe/Berlin", False),
        ("2024-05-01T12:01", "Europe/Berlin", True),
        ("2024-05-01T12:01Z", "Europe/Berlin", False),
        (str(int(noon.timestamp() * 1000) + 1), "", False),
    ):
        asked = {"since": since, "zone": zone}
        page = browser.get("/topics/times/records", params=asked).text
        assert (">noon<" in page) is matches, (since, zone)
        assert f'<small class="zone">{zone or "UTC"}</small>' in page
    assert '<time datetime="2024-05-01T12:00:00.000Z">2024-05-01 12:00:00.000 <small>UTC' in (
        browser.get("/topics/times/records").text
    )


def test_an_offset_is_where_a_page_begins(browser: TestClient, many: Store) -> None:
    """In the order that is shown; of one partition, or it is none."""
    at = "/topics/many/records?partitions=1&offset=20"
    assert offsets_of(browser.get(at).text) == [("1", str(n)) for n in range(20, -1, -1)]
    oldest = offsets_of(browser.get(f"{at}&order=oldest").text)
    assert oldest == [("1", str(n)) for n in range(20, 50)]
    alone = browser.get("/topics/many/records?offset=20")
    assert (alone.status_code, "of a single partition" in alone.text) == (400, True)


def test_a_search_goes_on_where_it_stopped(
    browser: TestClient, many: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a page has taken long enough it says how far it has looked; the next ones find all."""
    monkeypatch.setattr(look_module, "_MOST_CPU_S", -1.0)
    page = browser.get("/topics/many/records?where=value.n=7").text
    found, far = offsets_of(page), []
    assert 'data-running="search"' in page
    assert "keep looking →" in page
    while "next" in links_of(page):
        page = browser.get(links_of(page)["next"]).text
        found += offsets_of(page)
        far += [int(n) for n in re.findall(r"</progress> (\d+) of 150 offsets looked at", page)]
    assert (len(found), len({*found})) == (15, 15)
    assert far == sorted({*far})
    assert far[-1] == 150
    assert 'data-running=""' in page
    assert "150 of 150 offsets looked at, which is all" in page


def test_what_was_aborted_is_passed(
    browser: TestClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much of it there is: a page that has not come to a record says so, and goes on."""
    monkeypatch.setattr(look_module, "_MOST_CPU_S", -1.0)
    store.topics.create("aborted")
    send(store, "aborted", 0, [1], "committed")
    producer = store.producer(transactional_id="vain")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send_batch("aborted", pa.record_batch({"value": [b"aborted"] * 500}))
    producer.flush()
    producer.abort_transaction()
    page = browser.get("/topics/aborted/records").text
    assert 'data-running="search"' in page
    assert "no record is there so far" in page
    while "next" in links_of(page, "aborted"):
        page = browser.get(links_of(page, "aborted")["next"]).text
    assert ">committed<" in page
    assert 'data-running=""' in page


def test_what_is_shown_can_be_downloaded(browser: TestClient, many: Store) -> None:
    """The same records in the same order, as lines of JSON that the command reads again."""
    with many.producer() as producer:
        producer.send("many", b"\xff\x00", None, 0, headers=[("h", b"\xfe"), ("none", None)])
    page = browser.get("/topics/many/records").text
    (href,) = {unescape(found) for found in re.findall(r'download href="([^"]*)"', page)}
    answer = browser.get(href)
    assert answer.headers["content-disposition"] == 'attachment; filename="many.jsonl"'
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [(str(row["partition"]), str(row["offset"])) for row in lines] == offsets_of(page)
    assert lines[0] | {"timestamp_ms": 0} == {
        "topic": "many",
        "partition": 0,
        "timestamp_type": "CreateTime",
        "offset": 50,
        "timestamp_ms": 0,
        "key": None,
        "value": {"base64": "/wA="},
        "headers": [{"key": "h", "value": {"base64": "/g=="}}, {"key": "none", "value": None}],
    }
    gone = browser.get(href.replace("rows=", "rows=0%3A999%2C"))
    assert (gone.status_code, "1 of the 51 records are not there" in gone.text) == (400, True)


def test_a_page_costs_what_it_shows(browser: TestClient, console: Console, many: Store) -> None:
    """The segments that its records are in, whatever the topic holds besides; so its download."""
    browser.get("/topics/many/records")
    page = browser.get("/topics/many/records")
    costs = re.findall(r"(\w+)&nbsp;(\d+)", page.text.partition("Requests since")[2])
    assert dict(costs) == {"get_range": "5", "list": "1"}
    (href, *_) = re.findall(r'download href="([^"]*)"', page.text)
    console.requests.take()
    assert browser.get(unescape(href)).status_code == 200
    assert console.requests.take() == {"get_range": 5, "list": 1}


def test_of_very_many_partitions_some_are_shown(browser: TestClient, store: Store) -> None:
    """And it says so; others can be chosen, as many at a time."""
    store.topics.create("broad", partitions=300)
    send(store, "broad", 299, [5], "last")
    assert "0 offsets in 256 of 300 partitions" in text_of(browser, "/topics/broad/records")
    assert "last" in text_of(browser, "/topics/broad/records?partitions=7,290-299")
    assert browser.get("/topics/broad/records?partitions=0-299").status_code == 400


def test_records_of_typed_topics_are_tables(browser: TestClient, store: Store) -> None:
    """Their columns are those of the topic's page; a record that deletes has none."""
    columns = pa.schema([("carrier", pa.string()), ("late", pa.list_(pa.int32()))])
    store.topics.create("flights", schema=columns, key=["carrier"])
    rows = {"carrier": ["AA", HOSTILE, "DL"], "late": [[3, 4], None, None]}
    with store.producer() as producer:
        producer.send_batch("flights", pa.record_batch(rows, schema=columns))
        deleting = {**rows, "_deleted": [False, False, True]}
        producer.send_batch("flights", pa.record_batch(deleting))
    assert "carrier string no key" in text_of(browser, "/topics/flights")
    page = browser.get("/topics/flights/records").text
    assert re.findall(r"<th>(carrier|late|Value)</th>", page) == ["carrier", "late"]
    assert '<td class="cell">[3, 4]</td>' in page
    assert f'<td class="cell">{escape(HOSTILE)}</td>'.replace("&#x27;", "&#39;") in page
    assert page.count('<td class="null cell" colspan="2">deleted</td>') == 1
    assert "AA" not in text_of(browser, "/topics/flights/records?where=value.carrier=DL")


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (None, "null"),
        (b"", ""),
        (b" a\n\t b\r\n", "a b"),
        (b"\xff\x00", "ff 00"),
        (b"x" * 500, "x" * 240 + " \u2026"),
        (b"x" + "\u00e9".encode() * 300, "x" + "\u00e9" * 119 + " \u2026"),
        (b"\xff" * 500, " ".join(["ff"] * 60) + " \u2026"),
    ],
)
def test_a_record_is_one_line(data: bytes | None, line: str) -> None:
    """Its begin, with what is white as single spaces; nothing cut inside of a character."""
    assert show_line(data) == line


def test_cells_of_lists_are_laid_out_if_long() -> None:
    """In the details of a record of a typed topic."""
    assert show_cell(b"[3, 4]") == "[3, 4]"
    assert show_cell(f"[{'1, ' * 30}1]".encode()).count("\n") == 32


def test_times_say_their_zone() -> None:
    """Or are plain numbers, where no calendar reaches."""
    assert show_time(0) == "1970-01-01 00:00:00.000 UTC"
    assert (show_time(None), show_time(-1), show_time(1 << 62)) == ("\u2013", "-1", str(1 << 62))
    assert str(find_zone("Europe/Berlin")) == "Europe/Berlin"
    assert (find_zone(""), find_zone("No/Where")) == (UTC, UTC)


def test_values_that_carry_the_id_of_a_schema_show_their_fields(
    store: Store, browser: TestClient
) -> None:
    """By the store's own schemas; what only looks so, or is damaged, is shown as it is."""
    order = {
        "type": "record",
        "name": "O",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": "string"},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
        ],
    }
    store.topics.create("bought")
    store.schemas.add("bought-value", json.dumps(order))
    writer = ValueWriter(store.schemas, "avro", subject="bought-value")
    value = writer({"id": 7, "note": "<b>bold</b>", "tags": ["t"]})
    with store.producer() as producer:
        for sent in (value, value[:-1], b"\0\0\0\0\x63xyz", b"\0text", b"plain", None):
            producer.send("bought", sent)
    shown = browser.get("/topics/bought/records")
    assert shown.status_code == 200
    assert shown.text.count("Fields <small>schema 1</small>") == 1
    assert "<b>bold" not in shown.text
    text = text_of(browser, "/topics/bought/records")
    assert '"id":7' in text.replace(" ", "")
    assert "plain" in text
    assert "\\x00\\x00\\x00\\x00cxyz" in text


def test_fields_are_looked_for_for_a_while(
    store: Store, browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of many schemas that take long is shown without the fields of the last."""
    asked: list[int] = []

    def by_id(_: SchemaAdmin, schema_id: int) -> RegisteredSchema:
        asked.append(schema_id)
        return RegisteredSchema(schema_id, "JSON" if schema_id % 2 else "AVRO", '"int"')

    monkeypatch.setattr(SchemaAdmin, "by_id", by_id)
    monkeypatch.setattr(type(store.logs.clock), "monotonic_s", lambda _: 0.6 * len(asked))
    store.topics.create("slow")
    with store.producer() as producer:
        for number in range(50):
            producer.send("slow", b"\0\0\0\0" + bytes([number, 2]))
    shown = browser.get("/topics/slow/records").text
    assert asked == [0, 1, 2, 3]
    assert re.findall("Fields <small>schema ([0-9]+)</small>", shown) == ["2", "0"]


def test_values_of_each_message_of_a_proto_show_their_fields(
    store: Store, browser: TestClient
) -> None:
    """Nested ones too. One that contains itself has no columns, and hides no other."""
    text = """
        syntax = "proto3";
        message Loop { Loop next = 1; }
        message Order { int64 id = 1; message Line { string item = 1; } }
        message Paid { double amount = 1; }
    """
    store.topics.create("events")
    store.schemas.add("events-value", text, schema_type="PROTOBUF")
    rows: dict[str, dict[str, Any]] = {
        "Order": {"id": 7},
        "Paid": {"amount": 9.5},
        "Order.Line": {"item": "cup"},
    }
    with store.producer() as producer:
        for message, row in rows.items():
            writer = ValueWriter(store.schemas, "protobuf", subject="events-value", message=message)
            producer.send("events", writer(row))
        producer.send("events", b"\0\0\0\0\1\0")  # an empty Loop
        producer.send("events", b"\0\0\0\0\1\x40")  # of no message
    shown = text_of(browser, "/topics/events/records").replace(" ", "")
    for fields in ('"id":7', '"amount":9.5', '"item":"cup"'):
        assert fields in shown
    assert shown.count("Fieldsschema1") == len(rows)
