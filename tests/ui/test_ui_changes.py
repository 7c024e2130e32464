"""Changes from pages: what they would do is shown first, and what was done is logged."""

from __future__ import annotations

import datetime as dt
import re
import threading
from decimal import Decimal
from html import unescape
from unittest.mock import patch

import pyarrow as pa
import pytest
from starlette.testclient import TestClient

from tests.ui.ui_browser import (
    ADDRESS,
    HOSTILE,
    LONG_S,
    PORT,
    browser_of,
    confirm,
    seal_of,
    send,
    text_of,
)
from txnlog import TopicPartition
from txnlog.clock import SystemClock
from txnlog.display import parse_setting, show_setting
from txnlog.errors import StorageError
from txnlog.store import Store
from txnlog.ui import changes
from txnlog.ui.access import Access, loopback_hosts
from txnlog.ui.changes import MOST_REMEMBERED, Confirmed
from txnlog.ui.console import Console
from txnlog.ui.render import address_of
from txnlog.ui.server import make_console

ORIGIN = {"origin": ADDRESS}
ABORT = f"/abort/open/{HOSTILE}"
FORMS = {
    "/topics/paid/produce": {"kind": "text", "value": "v"},
    "/topics/paid/alter": {"config": "retention.ms=60000"},
    "/topics/paid/trim": {"below": "latest"},
    "/reset/team": {"to": "earliest"},
    "/create": {"topic": "made", "config": "retention.ms=7 days"},
    "/topics/paid/delete": {"topic": "paid"},
    ABORT: {"reason": "its host is gone"},
}
"""A form of each kind that changes something."""


@pytest.fixture
def lines() -> list[str]:
    """What is told of changes."""
    return []


@pytest.fixture
def console(store: Store, lines: list[str]) -> Console:
    """A console with which the store can be changed."""
    access = Access(loopback_hosts(PORT))
    return make_console(store, access, allow_changes=True, log=lines.append)


@pytest.fixture
def paid(store: Store) -> Store:
    """A topic with five records in each of two partitions, and a group that has read two."""
    store.topics.create("paid", partitions=2)
    with store.producer() as producer:
        for number in range(10):
            producer.send("paid", f"p{number}", partition=number % 2, timestamp_ms=1000 * number)
    store.consumer("paid", group_id="team").commit({TopicPartition("paid", 0): 2})
    return store


def wrong_of(page: str) -> dict[str, str]:
    """What is said beside which field."""
    found = re.findall(r'id="wrong-(\w+)">(.*?)</span>', page, re.DOTALL)
    return {name: unescape(said) for name, said in found}


@pytest.mark.parametrize("path", FORMS)
def test_nothing_changes_before_it_is_confirmed(
    console: Console, browser: TestClient, paid: Store, lines: list[str], path: str
) -> None:
    """Nor with another plan's seal, nor if something else was typed than what was shown."""

    def look() -> object:
        """All that the forms change."""
        open_ = [*paid.transactions.list(states="Ongoing")]
        return [*paid.topics.describe_all()], [*paid.groups.describe("team").offsets], open_

    before, typed = look(), FORMS[path]
    page = send(console, browser, path, **typed)
    assert "What it does" in page
    for seen in ("", "0" * 64, "\u00e9"):
        send(console, browser, path, **typed, seen=seen)
    changed = {name: text.replace("latest", "5s") + " " for name, text in typed.items()}
    changed |= {"kind": typed["kind"]} if "kind" in typed else {}
    send(console, browser, path, **changed, seen=seal_of(page))
    assert (look(), lines) == (before, [])
    send(console, browser, path, **typed, seen=seal_of(page))
    assert look() != before
    assert len(lines) == 1


@pytest.mark.parametrize("path", FORMS)
def test_forms_are_not_there_unless_changes_are_allowed(
    console: Console, store: Store, paid: Store, path: str
) -> None:
    """Nor are links to them; other sites have no token for them."""
    with browser_of(make_console(store, Access(loopback_hosts(PORT)))) as browser:
        assert browser.get(path).status_code == 404
        assert browser.post(path, headers=ORIGIN).status_code in (404, 405)
        assert "/produce" not in browser.get("/topics/paid").text
        assert browser.post("/store/maintenance", headers=ORIGIN).status_code == 405
    with browser_of(console) as browser:
        assert browser.get(path).status_code == 200
        assert browser.post(path, data=FORMS[path], headers=ORIGIN).status_code == 403
        token = {"form_token": console.access.form_token}
        foreign = {"origin": "http://evil.example"}
        assert browser.post(path, data=FORMS[path] | token, headers=foreign).status_code == 403


def test_a_record_is_written(
    console: Console, browser: TestClient, paid: Store, lines: list[str]
) -> None:
    """With a key, headers and a partition; or a null, which deletes its key."""
    path = "/topics/paid/produce"
    typed = {
        "kind": "text",
        "key": "k",
        "value": "caf\u00e9\r\nau lait",
        "headers": "a=1\nb==",
        "partition": "1",
    }
    assert confirm(console, browser, path, **typed) == "/topics/paid/records"
    confirm(console, browser, path, **typed | {"kind": "null"})
    written = paid.scan("paid", {1: 5}).to_arrow().to_pylist()[-2:]
    assert [row["value"] for row in written] == ["caf\u00e9\nau lait".encode(), None]
    assert written[0]["key"] == b"k"
    assert written[0]["headers"] == [{"key": "a", "value": b"1"}, {"key": "b", "value": b"="}]
    assert "127.0.0.1" in lines[0] or "testclient" in lines[0]
    assert lines[0].endswith("wrote a record to paid:1 at offset 5")
    page = text_of(browser, "/store")
    assert "wrote a record to paid:1 at offset 6" in page
    for field, text, said in (
        ("partition", "2", "the topic has 2 partitions"),
        ("partition", "-1", "not a number"),
        ("headers", "x", "is not a header"),
        ("kind", "other", "none of text, null"),
        ("value", "x" * 32_001, "more than 32000 characters"),
    ):
        wrong = wrong_of(send(console, browser, path, **typed | {field: text}))
        assert [*wrong] == [field]
        assert said in wrong[field]


def test_a_record_with_columns_is_written_as_json(
    console: Console, browser: TestClient, store: Store
) -> None:
    """What does not fit its columns is said beside it, and nothing is written."""
    columns = pa.schema([pa.field("carrier", pa.string(), nullable=False), ("late", pa.int32())])
    store.topics.create("flights", schema=columns, key=["carrier"])
    path = "/topics/flights/produce"
    confirm(console, browser, path, kind="text", value='{"carrier": "AA", "late": 3}')
    assert store.scan("flights").to_arrow().to_pylist() == [{"carrier": "AA", "late": 3}]
    for value in ("{", "[1]", "1", "[" * 30_000):
        assert [*wrong_of(send(console, browser, path, kind="text", value=value))] == ["value"]
    typed = {"kind": "text", "value": '{"carrier": "AA", "late": "x"}'}
    assert [*wrong_of(send(console, browser, path, **typed))] == ["value"]
    assert store.scan("flights").count() == {0: 1}

    for value in ('{"_deleted": true, "carrier": "AA"}', '{"key": "AA", "value": null}'):
        page = send(console, browser, path, kind="text", value=value)
        assert "Its value: null, which deletes its key." in page


@pytest.mark.parametrize("path", FORMS)
def test_a_confirmed_change_is_made_once(
    console: Console, browser: TestClient, paid: Store, lines: list[str], path: str
) -> None:
    """However often it is sent: by a second click, or by a proxy that tries again."""
    typed = FORMS[path]
    seal = seal_of(send(console, browser, path, **typed))
    done = send(console, browser, path, **typed, seen=seal)
    assert done.startswith("/")
    for _ in range(2):
        assert send(console, browser, path, **typed, seen=seal) == done
    assert len(lines) == 1
    changed = {name: f"{text} " for name, text in typed.items() if name != "kind"}
    assert "<main" in send(console, browser, path, **typed | changed, seen=seal)


@pytest.mark.parametrize("error", [StorageError, RuntimeError])
def test_a_change_that_has_failed_is_not_done(
    console: Console, browser: TestClient, paid: Store, error: type[Exception]
) -> None:
    path, typed = "/topics/paid/produce", FORMS["/topics/paid/produce"] | {"partition": "1"}
    before = paid.scan("paid").count()[1]
    typed |= {"seen": seal_of(send(console, browser, path, **typed))}
    form = typed | {"form_token": console.access.form_token}
    for _ in range(2):
        with patch("txnlog.producer.Producer.send", side_effect=error("no room")):
            answer = browser.post(path, data=form, headers=ORIGIN)
        assert answer.status_code in (400, 500)
        assert "no room" in answer.text
    assert send(console, browser, path, **typed) == "/topics/paid/records"
    assert paid.scan("paid").count()[1] == before + 1


def test_a_change_that_is_still_being_made_is_not_done(
    console: Console, browser: TestClient, paid: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who sends it again waits for what comes of it, but not for ever."""
    monkeypatch.setattr(changes, "_PATIENCE_S", 0.0)
    path, typed = "/topics/paid/produce", FORMS["/topics/paid/produce"]
    seal = seal_of(send(console, browser, path, **typed))
    second: list[dict[str, str]] = []

    def slow(*_args: object, **_more: object) -> None:
        second.append(wrong_of(send(console, browser, path, **typed, seen=seal)))
        raise StorageError("no room")

    with patch("txnlog.producer.Producer.send", slow):
        assert "no room" in send(console, browser, path, **typed, seen=seal)
    assert second == [{"value": "it is still being done: look before you send it again"}]


@pytest.mark.parametrize("done", [False, True], ids=["failed", "done"])
def test_the_same_form_waits_for_what_comes_of_the_first(*, done: bool) -> None:
    confirmed, began, found = Confirmed(), threading.Event(), []

    def again() -> None:
        began.set()
        with confirmed.alone("a") as was_done:
            found.append(was_done)

    with confirmed.alone("a") as was_done, confirmed.alone("b"):
        assert not was_done
        second = threading.Thread(target=again)
        second.start()
        assert began.wait(LONG_S)
        if done:
            confirmed.add("a")
    second.join(LONG_S)
    assert found == [done]


def test_few_confirmed_changes_are_remembered() -> None:
    confirmed = Confirmed()
    for number in range(MOST_REMEMBERED + 1):
        confirmed.add(str(number))
    with confirmed.alone("1") as newer, confirmed.alone("0") as oldest:
        assert (newer, oldest) == (True, False)


COLUMNS = {
    "b": (pa.binary(), '"AAEC"', b"\0\1\2"),
    "t": (
        pa.timestamp("us", "UTC"),
        '"2024-05-01T12:00:00.000007Z"',
        dt.datetime(2024, 5, 1, 12, 0, 0, 7, dt.UTC),
    ),
    "l": (pa.timestamp("ms"), '"2024-05-01T12:00:00"', dt.datetime(2024, 5, 1, 12)),  # noqa: DTZ001
    "d": (pa.date32(), '"2024-05-01"', dt.date(2024, 5, 1)),
    "m": (pa.decimal128(12, 2), '"1.25"', Decimal("1.25")),
    "p": (pa.map_(pa.string(), pa.date32()), '[["a", null]]', [("a", None)]),
    "s": (pa.struct([("x", pa.binary())]), '{"x": "AA=="}', {"x": b"\0"}),
    "f": (pa.float64(), "1", 1.0),
    "i": (pa.int64(), "9007199254740993", 9007199254740993),
}


def test_a_record_is_written_as_it_is_shown(
    console: Console, browser: TestClient, store: Store
) -> None:
    """Each column in the form that pages and ``records read`` have for it, on several lines."""
    kinds = pa.schema([(name, kind) for name, (kind, _, _) in COLUMNS.items()])
    store.topics.create("every", schema=kinds)
    text = ",\r\n".join(f'"{name}": {shown}' for name, (_, shown, _) in COLUMNS.items())
    confirm(console, browser, "/topics/every/produce", kind="text", value=f"{{{text}}}")
    wanted = {name: value for name, (_, _, value) in COLUMNS.items()}
    assert store.scan("every").to_arrow().to_pylist() == [wanted]
    for wrong in (
        '{"_partition": 0}',
        '{"d": "2024-13-01"}',
        '{"i": 1, "i": 2}',
        '{"x": 1}',
        '{"m": "1.255"}',
    ):
        page = send(console, browser, "/topics/every/produce", kind="text", value=wrong)
        assert [*wrong_of(page)] == ["value"]


def test_settings_are_changed(
    console: Console, browser: TestClient, paid: Store, lines: list[str]
) -> None:
    """In words before and after; a key alone goes back to its default."""
    path = "/topics/paid/alter"
    typed = {"config": "retention.ms = 604800000\r\n\r\nsegment.bytes=1048576", "partitions": "3"}
    page = send(console, browser, path, **typed)
    assert "retention.ms: no limit becomes 7 days" in page
    assert "2 partitions become 3: keys go to other partitions than before" in page
    assert send(console, browser, path, **typed, seen=seal_of(page)) == "/topics/paid/settings"
    described = paid.topics.describe("paid")
    assert described.config == {"retention.ms": "604800000", "segment.bytes": "1048576"}
    assert len(described.partitions) == 3
    confirm(console, browser, path, config="retention.ms")
    assert paid.topics.describe("paid").config == {"segment.bytes": "1048576"}
    assert "retention.ms: 7 days becomes no limit" in lines[1]
    for config in ("retention.ms=soon", "no.such.key=1", "", "segment.bytes=1048576"):
        assert [*wrong_of(send(console, browser, path, config=config))] == ["config"], config


def test_a_topic_is_created(
    console: Console, browser: TestClient, store: Store, lines: list[str]
) -> None:
    """Of keys and values, with settings in words; what is wrong is said beside its field."""
    assert 'href="/create"' in browser.get("/").text
    typed = {"topic": " new ", "partitions": "3", "config": "retention.ms = 7 days\r\n"}
    page = send(console, browser, "/create", **typed)
    assert "Topic new is created, with 3 partitions." in page
    assert "retention.ms: 7 days" in page
    assert "new" not in store.topics.list()
    assert send(console, browser, "/create", **typed, seen=seal_of(page)) == "/topics/new"
    made = store.topics.describe("new")
    assert (len(made.partitions), made.config) == (3, {"retention.ms": "604800000"})
    assert "created topic new: Its records have a key and a value. retention.ms" in lines[0]
    for field, text in (
        ("topic", ""),
        ("topic", "a/b"),
        ("topic", "orders"),
        ("partitions", "0"),
        ("partitions", "many"),
        ("config", "retention.ms=soon"),
        ("config", "retention.ms"),
        ("config", "no.such.key=1"),
        ("config", "retention.ms=1 day\nretention.ms=1 day"),
        ("columns", "carrier strin"),
        ("columns", '{"fields": '),
        ("columns", "/etc/passwd"),
        ("key", "carrier"),
    ):
        page = send(console, browser, "/create", **{"topic": "other", field: text})
        assert [*wrong_of(page)] == [field], text
        assert not seal_of(page)
    wrong = send(console, browser, "/create", topic="x", columns="a int", key="b")
    assert "there are a" in wrong_of(wrong)["key"]
    assert "other" not in store.topics.list()


@pytest.mark.parametrize(
    "columns",
    [
        "carrier string not null, flight int default 7",
        (
            '{"type": "record", "name": "F", "fields": [{"name": "carrier", "type": "string"}, '
            '{"name": "flight", "type": ["null", "int"], "default": 7}]}'
        ),
    ],
)
def test_a_topic_with_columns_is_created(
    console: Console, browser: TestClient, store: Store, columns: str
) -> None:
    """In the words, or the JSON, that the command takes; with what a column has by default."""
    typed = {"topic": "flights", "columns": columns, "key": "carrier"}
    page = unescape(send(console, browser, "/create", **typed))
    assert "carrier: string, not null, of the key" in page
    assert "default 7" in page
    confirm(console, browser, "/create", **typed)
    with store.producer() as producer:
        producer.send("flights", {"carrier": "AA"})
    assert store.scan("flights").to_arrow().to_pylist() == [{"carrier": "AA", "flight": 7}]


def test_a_topic_that_was_made_meanwhile_is_left(
    console: Console, browser: TestClient, store: Store
) -> None:
    """The form says so, and keeps what was typed."""
    seal = seal_of(send(console, browser, "/create", topic="new", partitions="3"))
    store.topics.create("new")
    page = send(console, browser, "/create", topic="new", partitions="3", seen=seal)
    assert "exists already" in wrong_of(page)["topic"]
    assert 'name="partitions" value="3"' in page
    assert len(store.topics.describe("new").partitions) == 1


def test_a_topic_is_deleted(
    console: Console, browser: TestClient, paid: Store, lines: list[str]
) -> None:
    """If its name is typed; one that was made again under it is another one."""
    path = "/topics/paid/delete"
    assert f'href="{path}"' in browser.get("/topics/paid").text
    for topic in ("", "Paid", "orders"):
        assert [*wrong_of(send(console, browser, path, topic=topic))] == ["topic"]
    page = send(console, browser, path, topic="paid")
    assert "all its records: 10 offsets as of now" in page
    paid.topics.delete("paid")
    paid.topics.create("paid")
    again = send(console, browser, path, topic="paid", seen=seal_of(page))
    assert "has changed since you saw it" in again
    with paid.producer() as producer:
        producer.send("paid", "written since")  # is no other plan
    assert send(console, browser, path, topic="paid", seen=seal_of(again)) == "/"
    assert "paid" not in paid.topics.list()
    assert len(lines) == 1
    assert lines[0].endswith("deleted topic paid: 1 offset")


def test_what_is_open_in_a_deleted_topic_is_named(console: Console, browser: TestClient) -> None:
    """It is lost with it."""
    page = send(console, browser, "/topics/orders/delete", topic="orders")
    assert "What open transactions have written to it is lost, too" in page


def test_a_transaction_is_aborted_as_it_was_shown(
    console: Console, browser: TestClient, store: Store, lines: list[str]
) -> None:
    """A later one of the id is not; nothing is done without a reason."""
    producer = store.producer(transactional_id="etl")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", "a")
    producer.flush()
    assert 'href="/abort/etl"' in browser.get("/transactions/etl").text
    assert [*wrong_of(send(console, browser, "/abort/etl", reason=" "))] == ["reason"]
    assert [*wrong_of(send(console, browser, "/abort/etl", reason="x" * 2001))] == ["reason"]
    page = send(console, browser, "/abort/etl", reason="stuck")
    assert "Its producer" in page
    assert "to orders is never shown as committed" in page
    producer.commit_transaction()
    producer.begin_transaction()
    producer.send("orders", "b")
    producer.flush()
    again = send(console, browser, "/abort/etl", reason="stuck", seen=seal_of(page))
    assert "has changed since you saw it" in again
    assert store.transactions.describe("etl").status == "Ongoing"
    done = send(console, browser, "/abort/etl", reason="stuck", seen=seal_of(again))
    assert done == "/transactions/etl"
    found = store.transactions.describe("etl")
    assert (found.status, found.reason) == ("CompleteAbort", "stuck")
    assert len(lines) == 1
    assert 'href="/abort/etl"' not in browser.get("/transactions/etl").text
    for name in ("etl", "none"):
        wrong = wrong_of(send(console, browser, f"/abort/{name}", reason="x"))
        assert [*wrong] == ["reason"]


@pytest.mark.parametrize(
    ("key", "typed", "value"),
    [
        ("retention.ms", "7d", "604800000"),
        ("retention.ms", "7 Days", "604800000"),
        ("retention.ms", "90 minutes", "5400000"),
        ("retention.ms", "604 800 000 ms", "604800000"),
        ("retention.ms", "no limit", "-1"),
        ("segment.ms", "no limit", str((1 << 63) - 1)),
        ("segment.bytes", "1 GiB", "1073741824"),
        ("segment.bytes", "5 bytes", "5"),
        ("segment.bytes", "7d", "7d"),
        ("retention.ms", "-1", "-1"),
        ("compression.type", "no limit", "no limit"),
    ],
)
def test_settings_are_typed_in_words(key: str, typed: str, value: str) -> None:
    """In those in which they are shown, and shorter."""
    assert parse_setting(typed, key) == value
    if value != typed:
        assert parse_setting(show_setting(value, key), key) == value


def test_what_has_changed_since_is_shown_again(
    console: Console, browser: TestClient, paid: Store
) -> None:
    """The plan that was seen rested on something else."""
    path = "/topics/paid/alter"
    seal = seal_of(send(console, browser, path, config="retention.ms=1000"))
    paid.topics.alter("paid", config={"retention.ms": 5000})
    page = send(console, browser, path, config="retention.ms=1000", seen=seal)
    assert "has changed since you saw it" in page
    assert "retention.ms: 5 seconds becomes 1 second" in page
    assert paid.topics.describe("paid").config == {"retention.ms": "5000"}
    assert send(console, browser, path, config="retention.ms=1000", seen=seal_of(page)).startswith(
        "/"
    )


def test_a_topic_that_was_made_again_keeps_its_records(
    console: Console, browser: TestClient, paid: Store
) -> None:
    """What was confirmed was about another one."""
    typed = {"below": "latest"}
    seal = seal_of(send(console, browser, "/topics/paid/trim", **typed))
    paid.topics.delete("paid")
    paid.topics.create("paid", partitions=2)
    with paid.producer() as producer:
        for number in range(10):
            producer.send("paid", f"p{number}", partition=number % 2)
    assert "has changed since" in send(console, browser, "/topics/paid/trim", **typed, seen=seal)
    assert sum(paid.scan("paid").count().values()) == 10


@pytest.mark.parametrize(
    ("typed", "starts"),
    [
        ({"below": "latest"}, {0: 5, 1: 5}),
        ({"below": "latest", "partitions": "1"}, {0: 0, 1: 5}),
        ({"below": "3", "partitions": "1"}, {0: 0, 1: 3}),
        ({"below": "1970-01-01T00:00:04"}, {0: 2, 1: 2}),
        ({"below": "1970-01-01T01:00:04", "zone": "Africa/Lagos"}, {0: 2, 1: 2}),
    ],
)
def test_the_oldest_records_are_deleted(
    console: Console,
    browser: TestClient,
    paid: Store,
    typed: dict[str, str],
    starts: dict[int, int],
) -> None:
    """Before an offset, a time, or all."""
    confirm(console, browser, "/topics/paid/trim", **typed)
    assert paid.snapshot(["paid"]).beginning_offsets("paid") == starts


@pytest.mark.parametrize(
    ("below", "is_asked_again", "start"),
    [
        ("latest", False, 7),
        ("2999-01-01", False, 7),
        ("1970-01-01T00:16:00", True, 5),
        ("1970-01-01T00:00:04", False, 2),
        ("3", False, 3),
    ],
)
def test_the_oldest_records_of_a_topic_that_grows_are_deleted(
    console: Console,
    browser: TestClient,
    paid: Store,
    below: str,
    is_asked_again: bool,
    start: int,
) -> None:
    """Up to the end, wherever that is; asked again only if that is no longer what is meant."""
    path, typed = "/topics/paid/trim", {"below": below, "partitions": "0"}
    page = send(console, browser, path, **typed)
    assert ("the end, now 5" in page) is (start == 7 or is_asked_again)
    with paid.producer() as producer:
        for _ in range(2):
            producer.send("paid", b"new", partition=0, timestamp_ms=1_000_000)
    done = send(console, browser, path, **typed, seen=seal_of(page))
    if is_asked_again:
        assert "has changed since you saw it" in done
        done = send(console, browser, path, **typed, seen=seal_of(done))
    assert done == "/topics/paid"
    assert paid.snapshot(["paid"]).beginning_offsets("paid") == {0: start, 1: 0}


def test_one_of_something_is_not_many(console: Console, browser: TestClient, store: Store) -> None:
    """Neither what a page counts nor what a change would do, and has done."""
    store.topics.create("one")
    with store.producer() as producer:
        producer.send("one", "x")
    assert "in 1 segment<" in browser.get("/topics/one").text
    assert "1 offset in 1 partition" in browser.get("/topics/one/records").text
    typed = {"below": "latest", "partitions": ""}
    shown = send(console, browser, "/topics/one/trim", **typed)
    assert "Partition 0: 1 offset is deleted, and it begins at the end, now 1." in shown
    confirm(console, browser, "/topics/one/trim", **typed)
    assert "trimmed one: 1 offset of 1 partition" in browser.get("/store").text


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        ({"below": "3"}, "below"),
        ({"below": "99", "partitions": "0"}, "below"),
        ({"below": "0", "partitions": "0"}, "below"),
        ({"below": ""}, "below"),
        ({"below": "\u0663", "partitions": "0"}, "below"),
        ({"below": "latest", "partitions": "2"}, "partitions"),
    ],
)
def test_what_cannot_be_deleted_is_said(
    console: Console, browser: TestClient, paid: Store, typed: dict[str, str], field: str
) -> None:
    """Beside the field that is to blame."""
    assert [*wrong_of(send(console, browser, "/topics/paid/trim", **typed))] == [field]


@pytest.mark.parametrize(
    ("typed", "offsets"),
    [
        ({"to": "earliest"}, {0: 0}),
        ({"to": "latest"}, {0: 5}),
        ({"to": "+1"}, {0: 3}),
        ({"to": "-1"}, {0: 1}),
        ({"to": "4"}, {0: 4}),
        ({"to": "1970-01-01T00:00:06"}, {0: 3}),
        ({"to": "1", "topics": "paid"}, {0: 1, 1: 1}),
        ({"to": "1", "topics": "paid:1"}, {0: 2, 1: 1}),
    ],
)
def test_offsets_are_moved(
    console: Console,
    browser: TestClient,
    paid: Store,
    typed: dict[str, str],
    offsets: dict[int, int],
) -> None:
    """Of all that the group reads, or of what is named."""
    assert confirm(console, browser, "/reset/team", **typed) == "/groups/team"
    found = {at.partition: at.offset for at in paid.groups.describe("team").offsets}
    assert found == offsets


@pytest.mark.parametrize("to", ["latest", "earliest"])
def test_offsets_are_moved_to_what_was_shown(
    console: Console, browser: TestClient, paid: Store, to: str
) -> None:
    """To the end, which moves, if that is what was said; else it is shown again."""
    page = send(console, browser, "/reset/team", to=to)
    with paid.producer() as producer:
        producer.send("paid", b"new", partition=0)
    paid.topics.delete_records({TopicPartition("paid", 0): 1})
    again = send(console, browser, "/reset/team", to=to, seen=seal_of(page))
    if to == "earliest":
        assert "has changed since you saw it" in again
        assert send(console, browser, "/reset/team", to=to, seen=seal_of(again)) == "/groups/team"
    else:
        assert "to the end, now 5" in page
        assert again == "/groups/team"
    found = {at.partition: at.offset for at in paid.groups.describe("team").offsets}
    assert found[0] == (1 if to == "earliest" else 6)


@pytest.mark.parametrize(
    ("to", "is_asked_again", "after"),
    [
        ("latest", False, 7),
        ("+1000", False, 7),
        ("1000", False, 7),
        ("2999-01-01", False, 7),
        ("+4", True, 6),
        ("6", True, 6),
        ("1970-01-01T00:16:00", True, 5),
        ("+1", False, 3),
        ("4", False, 4),
        ("1970-01-01T00:00:06", False, 3),
    ],
)
def test_offsets_are_moved_in_a_topic_that_grows(
    console: Console,
    browser: TestClient,
    paid: Store,
    to: str,
    is_asked_again: bool,
    after: int,
) -> None:
    """To the end, wherever that is; asked again only if the target is no longer the end."""
    page = send(console, browser, "/reset/team", to=to)
    with paid.producer() as producer:
        for _ in range(2):
            producer.send("paid", b"new", partition=0, timestamp_ms=1_000_000)
    done = send(console, browser, "/reset/team", to=to, seen=seal_of(page))
    if is_asked_again:
        assert "to the end, now 5" in page
        assert "has changed since you saw it" in done
        done = send(console, browser, "/reset/team", to=to, seen=seal_of(done))
    assert done == "/groups/team"
    assert [at.offset for at in paid.groups.describe("team").offsets] == [after]


@pytest.mark.parametrize("path", ["/reset/team", "/topics/paid/trim"])
def test_a_time_ago_is_the_one_that_was_shown(
    console: Console,
    browser: TestClient,
    paid: Store,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long it takes to confirm it; another one is shown again."""
    now_ms = paid.logs.clock.now_ms()
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: now_ms)
    with paid.producer() as producer:
        for ago_s in (3_700, 3_590, 3_580):
            producer.send("paid", b"new", partition=0, timestamp_ms=now_ms - ago_s * 1000)
    typed = {"to" if path == "/reset/team" else "below": "1h"}
    seal = seal_of(send(console, browser, path, **typed))
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: now_ms + 15_000)
    other = seal.replace(str(now_ms), str(now_ms + 15_000))
    assert "has changed since" in send(console, browser, path, **typed, seen=other)
    send(console, browser, path, **typed, seen=seal)
    if path == "/reset/team":
        assert [at.offset for at in paid.groups.describe("team").offsets] == [6]
    else:
        assert paid.snapshot(["paid"]).beginning_offsets("paid") == {0: 6, 1: 5}


def test_offsets_of_hostile_groups_are_moved(
    console: Console, browser: TestClient, store: Store, lines: list[str]
) -> None:
    """Whatever is in their names; the log has no controls."""
    for group_id in (HOSTILE, "..", "a/b", "\x1b[31m\u202e"):
        store.groups.reset_offsets(group_id, ["orders"], to="latest")
        path = address_of("reset", group_id)
        assert path in unescape(browser.get(address_of("groups", group_id)).text)
        assert confirm(console, browser, path.replace("%2F", "/"), to="earliest") == address_of(
            "groups", group_id
        )
        assert {at.offset for at in store.groups.describe(group_id).offsets} == {0}
    assert "\\x1b[31m\\u202e" in lines[-1]
    wrong = [
        send(console, browser, "/reset/none", to=to) for to in ("earliest", "x", "", "+", "9" * 20)
    ]
    assert [[*wrong_of(page)] for page in wrong] == [["to"]] * 5
    assert [*wrong_of(send(console, browser, "/reset/x", to="1", topics="a:b"))] == ["topics"]


def test_a_change_that_fails_says_so(
    console: Console,
    browser: TestClient,
    paid: Store,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On its page, and in the log if it was begun: a group with members keeps its offsets."""
    consumer = paid.consumer(group_id="busy", auto_offset_reset="earliest")
    consumer.subscribe(["paid"])
    assert consumer.poll(timeout_ms=5000)
    consumer.commit()
    refused = send(console, browser, "/reset/busy", to="earliest")
    assert (seal_of(refused), lines) == ("", [])
    assert "members" in wrong_of(refused)["to"]
    # As if it had joined after the look.
    monkeypatch.setattr("txnlog.log.group_log.GroupLog.check_commit", lambda *_, **__: None)
    page = confirm(console, browser, "/reset/busy", to="earliest")
    consumer.close()
    assert "members" in wrong_of(page)["to"]
    assert "Move offsets of busy failed" in lines[0]


def test_the_store_is_maintained(
    console: Console, browser: TestClient, store: Store, lines: list[str]
) -> None:
    """When what would be done was seen; a form that is sent twice begins one run."""
    store.topics.create("small")
    for _ in range(12):
        with store.producer() as producer:
            producer.send("small", "a")
    assert "Do it now" not in browser.get("/store/maintenance").text
    browser.get("/store/maintenance?plan")
    planned = console.jobs.newest("plan")
    assert planned is not None
    assert planned.wait(LONG_S)
    page = browser.get("/store/maintenance").text
    (number,) = re.findall(r'name="number" value="(\d+)"', page)
    browser.get(f"/store/maintenance?maintain={number}")
    assert console.jobs.newest("maintain") is None
    for _ in range(2):
        assert send(console, browser, "/store/maintenance", number=number) == "/store/maintenance"
    done = console.jobs.newest("maintain")
    assert done is not None
    assert done.wait(LONG_S)
    assert (done.number, len(lines)) == (1, 1)
    assert len(store.topics.segments("small")) == 1
    assert "Merge topic small" in text_of(browser, "/store/maintenance")
