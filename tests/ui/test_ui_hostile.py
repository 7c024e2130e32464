"""What comes over the wire, or stands in a store, breaks no page."""

from __future__ import annotations

import json
import re
from unittest.mock import patch
from urllib.parse import unquote

import pyarrow as pa
import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from tests.ui.ui_browser import ADDRESS, PORT, browser_of, confirm
from txnlog import TopicPartition
from txnlog.store import Store
from txnlog.ui.access import Access, cookie_name, loopback_hosts, named_hosts
from txnlog.ui.console import Console
from txnlog.ui.render import address_of, show_content
from txnlog.ui.server import make_console

ORIGIN = {"origin": ADDRESS}


def test_half_a_surrogate_in_json_is_shown(store: Store, browser: TestClient) -> None:
    """JSON may hold what no text in UTF-8 can."""
    with store.producer() as producer:
        producer.send("orders", b'["\\ud800"]', b"surrogate", 1)
    page = browser.get("/topics/orders/records")
    assert (page.status_code, "\\ud800" in page.text) == (200, True)


def test_deep_json_is_not_laid_out_as_indentation_alone() -> None:
    """Eighteen kilobytes would become sixteen megabytes."""
    deep = b"[" * 450 + b",".join([b"1"] * 9000) + b"]" * 450
    assert show_content(deep) == deep.decode()
    assert show_content(b'{"a": [1]}') == '{\n  "a": [\n    1\n  ]\n}'


def test_of_json_only_what_is_escaped_is_decoded_singly() -> None:
    """A page may have many cells of very many texts."""
    words = ["a", "\u202e", "é", "\\"]
    data = json.dumps(words * 500, ensure_ascii=False).encode()
    with patch.object(json, "loads", wraps=json.loads) as loads:
        shown = show_content(data)
    assert loads.call_count == 1 + 500
    assert shown == json.dumps(words * 500, ensure_ascii=False, indent=2)


def test_of_very_many_headers_some_are_shown(store: Store, browser: TestClient) -> None:
    """And of a long name its begin."""
    with store.producer() as producer:
        producer.send("orders", b"x", b"k", 1, headers=[("h" * 1000, b"1")] * 500)
    page = browser.get("/topics/orders/records?partitions=1").text
    assert (page.count("<code>"), "h" * 201 in page, "500 in all" in page) == (50, False, True)


@pytest.mark.parametrize("kind", ["values", "columns", "many columns", "headers"])
def test_a_page_of_records_has_an_end(store: Store, browser: TestClient, kind: str) -> None:
    """Whatever is large in them: a browser has to lay it out."""
    long = "x" * 19_000
    count = {"columns": 50, "many columns": 300}.get(kind, 0)
    names = [f"c{number}" for number in range(count)]
    schema = pa.schema([(name, pa.string()) for name in names]) if names else None
    store.topics.create("large", schema=schema)
    value = dict.fromkeys(names, long if count < 100 else "x" * 60) or long.encode() * 20
    headers = [(f"h{n}", long.encode()) for n in range(30)] if kind == "headers" else None
    with store.producer() as producer:
        for _ in range(50):
            producer.send("large", value, headers=headers)
    page = browser.get("/topics/large/records").text
    assert page.count('<tr class="record">') == 50
    assert len(page) < 5_000_000, len(page)
    assert ("the first 100 of 300 columns" in page) is (kind == "many columns")


def test_a_page_of_a_topic_has_some_of_its_partitions(store: Store, browser: TestClient) -> None:
    store.topics.create("many", partitions=250)
    found = [browser.get(f"/topics/many?page={number}").text for number in (1, 2, 3)]
    assert [page.count("records?partitions=") for page in found] == [100, 100, 50]
    assert 'href="/topics/many/249"' in found[2]


@pytest.mark.parametrize(
    ("field", "typed"),
    [
        *(("offset", place) for place in ("--5", "-1", "\u00b2", "9" * 19, "9" * 5000)),
        *(
            ("partitions", some)
            for some in ("x", "-", "0-", "1-0", "2", "9" * 5000, "0,,1", "\u0661")
        ),
        *(
            ("since", time)
            for time in (
                "yesterday",
                "9" * 5000,
                "9" * 400 + "d",
                "999999999d",
                "2024-13-01",
                "\u0661h",
            )
        ),
        ("until", "("),
        ("find", "("),
        ("find", "a{1000}{1000}"),
        ("where", "value"),
        ("where", "value ~ ("),
        ("level", "none"),
        ("order", "random"),
        ("key", "k" * 2001),
    ],
)
def test_a_wrong_field_keeps_the_form(browser: TestClient, field: str, typed: str) -> None:
    """It says so beside the field, and what else was typed is still there."""
    asked = {"key": "kept <b>", "partitions": "0", field: typed}
    answer = browser.get("/topics/orders/records", params=asked)
    assert answer.status_code == 400
    page = answer.text
    assert re.findall(r'name="(\w+)"[^>]*aria-invalid="true"', page) == [field]
    assert re.findall(r'id="wrong-(\w+)"', page) == [field]
    if field != "key":
        assert 'name="key" value="kept &lt;b&gt;"' in page


@pytest.mark.parametrize("place", ["x", "1.2.3", "", "-1.0", "9" * 5000, "1.."])
def test_a_place_that_is_none_is_refused(browser: TestClient, place: str) -> None:
    """One beyond the ends is the nearest one."""
    answer = browser.get(f"/topics/orders/records?before={place or '.'}")
    assert (answer.status_code, "InvalidOption" in answer.text) == (400, True)
    beyond = browser.get(
        f"/topics/orders/records?before={'9' * 18}.{'9' * 18}&level=read_committed"
    )
    assert (beyond.status_code, "etl" in beyond.text) == (200, True)


@pytest.mark.parametrize(
    "rows",
    ["", "x", "0", "0:", "0:x", "0:-1", "\u0660:1", "0:0," * 201, f"0:{'9' * 30}", "9:0", "0:99"],
)
def test_what_names_no_records_is_not_downloaded(browser: TestClient, rows: str) -> None:
    """Also partitions and offsets that are not there."""
    answer = browser.get("/topics/orders/records/download", params={"rows": rows})
    assert (answer.status_code, "Not shown" in answer.text) == (400, True)


@pytest.mark.parametrize("time", ["0001-01-01T00:00+23:59", "99999d"])
@pytest.mark.parametrize("zone", ["", "Asia/Tokyo", "America/New_York"])
def test_any_time_of_a_calendar_will_do(browser: TestClient, time: str, zone: str) -> None:
    """Also what another zone has in the year before the first one, and before the epoch."""
    asked = {"since": time, "zone": zone}
    assert "etl" in browser.get("/topics/orders/records", params=asked).text


@pytest.mark.parametrize("zone", ["../../etc/passwd", "/etc/passwd", "\0", "x" * 1999, "No/Where"])
def test_an_unknown_zone_is_utc(browser: TestClient, zone: str) -> None:
    """It comes from the browser, and names a file of the zones' folder."""
    asked = {"since": "2000-01-01", "zone": zone}
    assert "etl" in browser.get("/topics/orders/records", params=asked).text


def test_a_partition_of_many_digits_is_not_there(browser: TestClient) -> None:
    """More of them than Python makes a number of."""
    answer = browser.get(f"/topics/orders/{'1' * 5000}")
    assert answer.status_code == 404
    assert "content-security-policy" in answer.headers


def test_broken_origins_and_forms_are_refused(store: Store) -> None:
    """They end in no error of ours; an origin is ours only if it is the host that is asked."""
    console = make_console(store, Access(loopback_hosts(PORT)), allow_changes=True)
    token = console.access.form_token
    with browser_of(console) as browser:
        for origin in ("http://[", "http://[::1", f"http://localhost:{PORT}", "null", ""):
            answer = browser.post(
                "/abort/etl",
                headers={"origin": origin},
                data={"form_token": token, "reason": "x"},
            )
            assert "another site" in answer.text, origin
        for form, status in (
            ({"form_token": "\u00e9"}, 403),
            ({"form_token": token, "reason": "9" * 5000}, 400),
        ):
            answer = browser.post("/abort/etl", headers=ORIGIN, data=form)
            assert answer.status_code == status


def test_two_consoles_on_one_host_have_cookies_of_their_own(console: Console) -> None:
    """A browser sends the cookie of 127.0.0.1 to all of its ports."""
    names = {
        cookie_name(Request({"type": "http", "headers": [(b"host", host)], "path": "/"}))
        for host in (b"127.0.0.1:8080", b"127.0.0.1:8081", b"127.0.0.1")
    }
    assert len(names) == 3
    with browser_of(console) as browser:
        assert [*browser.cookies] == [f"txnlog_session_{PORT}"]


def test_hosts_are_what_browsers_send() -> None:
    """In lower case, and without port 80."""
    assert named_hosts(["Desk.local"], 8080) == {"desk.local:8080"}
    assert "localhost" in loopback_hosts(80)
    assert "localhost:8080" in loopback_hosts(8080)


def test_behind_a_password_any_address_but_no_other_name_will_do(store: Store) -> None:
    """A server at 0.0.0.0 is reached by addresses that cannot be listed."""
    access = Access(named_hosts(["0.0.0.0"], PORT), password="s3cret")
    with browser_of(make_console(store, access), shows_token=False) as browser:
        for host, status in (
            (f"192.0.2.7:{PORT}", 200),
            (f"[2001:db8::1]:{PORT}", 200),
            (f"evil.example:{PORT}", 421),
            ("[", 421),
            ("", 421),
        ):
            assert browser.get("/login", headers={"host": host}).status_code == status, host
        foreign = {"host": f"192.0.2.7:{PORT}", "origin": "http://192.0.2.7:9"}
        sent = browser.post("/login", data={"password": "s3cret"}, headers=foreign)
        assert sent.status_code == 403
        ours = {"host": f"192.0.2.7:{PORT}", "origin": f"http://192.0.2.7:{PORT}"}
        assert browser.post("/login", data={"password": "s3cret"}, headers=ours).status_code == 303


def test_an_aborted_id_is_shown_whatever_is_in_its_name(store: Store) -> None:
    """The way back to its page is quoted."""
    console = make_console(store, Access(loopback_hosts(PORT)), allow_changes=True)
    name = "a%41/b?c"
    producer = store.producer(transactional_id=name)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", b"x", b"k", 1)
    producer.flush()
    with browser_of(console) as browser:
        # The client takes one layer of quoting away that a server leaves.
        path = "/abort/a%2541/b%3Fc".replace("%25", "%2525")
        assert confirm(console, browser, path, reason="x") == "/transactions/a%2541%2Fb%3Fc"


@pytest.mark.parametrize("name", [".", ".."])
def test_ids_that_browsers_take_for_folders_can_be_opened(store: Store, name: str) -> None:
    """Their addresses name them behind the path; so do those of their forms."""
    for transactional_id in ("other", name):
        producer = store.producer(transactional_id=transactional_id)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", "a", partition=1)
        producer.flush()
        if transactional_id == "other":
            producer.send_offsets_to_transaction({TopicPartition("orders", 0): 1}, name)
            producer.commit_transaction()
    console = make_console(store, Access(loopback_hosts(PORT)), allow_changes=True)
    with browser_of(console) as browser:
        for kind in ("transactions", "groups"):
            (address,) = re.findall(f'href="(/{kind}/-[^"]*)"', browser.get(f"/{kind}").text)
            assert f"<title>{name} · txnlog</title>" in browser.get(address).text
        page = browser.get(f"/transactions/-?id={name}").text
        (form,) = re.findall(r'href="(/abort/[^"]*)"', page)
        assert confirm(console, browser, form, reason="hand") == f"/transactions/-?id={name}"
    assert store.transactions.describe(name).status == "CompleteAbort"


@pytest.mark.parametrize("name", ["a\r\nb\tc\x00d", "end\n", "\u2028x\u2029", "a/b"])
def test_ids_of_several_lines_can_be_opened(store: Store, name: str) -> None:
    """From the lists of their pages, and so can the form be sent that aborts."""
    producer = store.producer(transactional_id=name)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", "a", partition=1)
    producer.flush()
    store.groups.reset_offsets(name, ["orders"], to="latest")
    console = make_console(store, Access(loopback_hosts(PORT)), allow_changes=True)
    with browser_of(console) as browser:
        for kind in ("groups", "transactions"):
            hrefs = re.findall(f'href="(/{kind}/[^"]*)"', browser.get(f"/{kind}").text)
            (address,) = [found for found in hrefs if unquote(found) == f"/{kind}/{name}"]
            answer = browser.get(address)
            assert answer.status_code == 200
        (form,) = re.findall(r'href="(/abort/[^"]*)"', answer.text)
        assert confirm(console, browser, form, reason="hand") == address
    assert store.transactions.describe(name).status == "CompleteAbort"


def test_what_is_not_seen_is_written_out(store: Store) -> None:
    """An id that turns the text behind it round does not; what a form sends back is as it was."""
    name = "\u202eliam\x1b[31m\x85\U0001f469\u200d\U0001f469"
    store.groups.reset_offsets(name, ["orders"], to="latest")
    with store.producer() as producer:
        producer.send("orders", f"{name}\r\n\tnext\rlast", name, 1, headers=[(name, name.encode())])
    with browser_of(make_console(store, Access(loopback_hosts(PORT)))) as browser:
        paths = ["/groups", address_of("groups", name), "/topics/orders/records?partitions=1"]
        pages = [browser.get(path).text for path in paths]
        searched = browser.get("/topics/orders/records", params={"key": "\u202e\x1b"}).text
    shown = "\\u202eliam\\x1b[31m\\u0085\U0001f469\u200d\U0001f469"
    for page in pages:
        assert shown in page
        assert not {"\u202e", "\x1b", "\x85"} & {*page}
    assert f"<pre>{shown}\r\n\tnext\\x0dlast</pre>" in pages[2]
    assert 'name="key" value="\u202e\x1b"' in searched
