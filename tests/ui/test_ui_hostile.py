"""What comes over the wire, or stands in a store, breaks no page."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient
from ui_browser import ADDRESS, PORT, browser_of

from txnlog import TopicPartition
from txnlog.store import Store
from txnlog.ui.access import Access, cookie_name, loopback_hosts, named_hosts
from txnlog.ui.console import Console
from txnlog.ui.rendering import address_of, show_content
from txnlog.ui.server import make_console

ORIGIN = {"origin": ADDRESS}


def test_half_a_surrogate_in_json_is_shown(store: Store, browser: TestClient) -> None:
    """JSON may hold what no text in UTF-8 can."""
    with store.producer() as producer:
        producer.send("orders", b'["\\ud800"]', b"surrogate", 1)
    page = browser.get("/topics/orders/1/records")
    assert (page.status_code, "\\ud800" in page.text) == (200, True)


def test_deep_json_is_not_laid_out_as_indentation_alone() -> None:
    """Eighteen kilobytes would become sixteen megabytes."""
    deep = b"[" * 450 + b",".join([b"1"] * 9000) + b"]" * 450
    assert show_content(deep) == deep.decode()
    assert show_content(b'{"a": [1]}') == '{\n  "a": [\n    1\n  ]\n}'


def test_of_very_many_headers_some_are_shown(store: Store, browser: TestClient) -> None:
    """And of a long name its begin."""
    with store.producer() as producer:
        producer.send("orders", b"x", b"k", 1, headers=[("h" * 1000, b"1")] * 500)
    page = browser.get("/topics/orders/1/records").text
    assert (page.count("<code>"), "h" * 201 in page, "500 in all" in page) == (50, False, True)


@pytest.mark.parametrize("place", ["--5", "-", "-%C2%B2", "9" * 5000])
def test_what_is_no_offset_is_said_to_be_none(browser: TestClient, place: str) -> None:
    """Whatever it is."""
    answer = browser.get(f"/topics/orders/0/records?from={place}")
    assert (answer.status_code, "InvalidOption" in answer.text) == (400, True)


def test_a_partition_of_many_digits_is_not_there(browser: TestClient) -> None:
    """More of them than Python makes a number of."""
    for path in ("", "/records"):
        answer = browser.get(f"/topics/orders/{'1' * 5000}{path}")
        assert answer.status_code == 404
        assert "content-security-policy" in answer.headers


def test_broken_origins_and_forms_are_refused(store: Store) -> None:
    """They end in no error of ours; an origin is ours only if it is the host that is asked."""
    console = make_console(store, Access(loopback_hosts(PORT)), allow_changes=True)
    token = console.access.form_token
    with browser_of(console) as browser:
        for origin in ("http://[", "http://[::1", f"http://localhost:{PORT}", "null", ""):
            answer = browser.post(
                "/transactions/etl/abort",
                headers={"origin": origin},
                data={"form_token": token, "number": "1", "reason": "x"},
            )
            assert "another site" in answer.text, origin
        for form, status in (
            ({"form_token": "\u00e9"}, 403),
            ({"form_token": token, "number": "9" * 5000}, 400),
        ):
            answer = browser.post("/transactions/etl/abort", headers=ORIGIN, data=form)
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
    form = {"form_token": console.access.form_token, "number": "1", "reason": "x"}
    with browser_of(console) as browser:
        # The client takes one layer of quoting away that a server leaves.
        done = browser.post(
            "/transactions/a%2541/b%3Fc/abort".replace("%25", "%2525"), headers=ORIGIN, data=form
        )
        assert done.headers["location"] == "/transactions/a%2541%2Fb%3Fc"


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
        (action,) = re.findall(r'action="([^"]*)"', page)
        form = {"form_token": console.access.form_token, "number": "0", "reason": "hand"}
        form["number"] = re.findall(r'name="number" value="(\d+)"', page)[0]
        done = browser.post(action, data=form, headers={"origin": ADDRESS})
        assert (done.status_code, done.headers["location"]) == (303, f"/transactions/-?id={name}")
    assert store.describe_transaction(name).status == "CompleteAbort"


@pytest.mark.parametrize("name", ["a\r\nb\tc\x00d", "end\n", "\u2028x\u2029", "a/b"])
def test_ids_of_several_lines_can_be_opened(store: Store, name: str) -> None:
    """From the lists of their pages, and so can the form be sent that aborts."""
    producer = store.producer(transactional_id=name)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", "a", partition=1)
    producer.flush()
    store.reset_group_offsets(name, ["orders"], to="latest")
    console = make_console(store, Access(loopback_hosts(PORT)), allow_changes=True)
    with browser_of(console) as browser:
        for kind in ("groups", "transactions"):
            hrefs = re.findall(f'href="(/{kind}/[^"]*)"', browser.get(f"/{kind}").text)
            (address,) = [found for found in hrefs if unquote(found) == f"/{kind}/{name}"]
            answer = browser.get(address)
            assert answer.status_code == 200
        (action,) = re.findall(r'action="([^"]*)"', answer.text)
        form = {"form_token": console.access.form_token, "number": "1", "reason": "hand"}
        done = browser.post(action, data=form, headers={"origin": ADDRESS})
        assert (done.status_code, done.headers["location"]) == (303, address)
    assert store.describe_transaction(name).status == "CompleteAbort"


def test_what_is_not_seen_is_written_out(store: Store) -> None:
    """An id that turns the text behind it round does not; what a form sends back is as it was."""
    name = "\u202eliam\x1b[31m\x85\U0001f469\u200d\U0001f469"
    store.reset_group_offsets(name, ["orders"], to="latest")
    with store.producer() as producer:
        producer.send("orders", f"{name}\r\n\tnext\rlast", name, 1, headers=[(name, name.encode())])
    with browser_of(make_console(store, Access(loopback_hosts(PORT)))) as browser:
        paths = ["/groups", address_of("groups", name), "/topics/orders/1/records"]
        pages = [browser.get(path).text for path in paths]
        searched = browser.get("/topics/orders/1/records", params={"key": "\u202e\x1b"}).text
    shown = "\\u202eliam\\x1b[31m\\u0085\U0001f469\u200d\U0001f469"
    for page in pages:
        assert shown in page
        assert not {"\u202e", "\x1b", "\x85"} & {*page}
    assert f"<pre>{shown}\r\n\tnext\\x0dlast</pre>" in pages[2]
    assert 'name="key" value="\u202e\x1b"' in searched
