"""Access to the console: granted and refused."""

from __future__ import annotations

from urllib.parse import unquote, urljoin, urlsplit

import pytest
from starlette.testclient import TestClient

from tests.ui.ui_browser import ADDRESS, PORT, browser_of, seal_of, send
from txnlog.errors import InvalidOption
from txnlog.store import Store
from txnlog.ui.access import (
    MOST_CLIENTS,
    MOST_WRONG_TRIES,
    TRIES_WITHIN_S,
    Access,
    TooManyTries,
    WrongTries,
    loopback_hosts,
    public_host,
)
from txnlog.ui.addresses import is_loopback, listen, listen_alone
from txnlog.ui.app import make_app
from txnlog.ui.console import Console
from txnlog.ui.server import make_console, serve

OPEN_ID = "/transactions/open%2F%3Cscript%3Ealert%28%27x%27%29%3C%2Fscript%3E"
ABORT_OPEN = OPEN_ID.replace("/transactions/", "/abort/")


def test_only_who_has_the_token_is_let_in(console: Console) -> None:
    """It is exchanged for a cookie that scripts cannot read and other sites do not send."""
    browser = browser_of(console, shows_token=False)
    for path in ("/", "/topics/orders", "/static/style.css", "/nothing", "/?token=", "/?token=x"):
        refused = browser.get(path)
        assert (refused.status_code, "orders" in refused.text) == (403, False), path
    admitted = browser.get(f"/topics/orders?token={console.access.token}")
    assert (admitted.status_code, admitted.headers["location"]) == (303, "/topics/orders")
    cookie = admitted.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert console.access.token not in cookie
    assert browser.get("/topics/orders").status_code == 200
    browser.cookies.set(f"txnlog_session_{PORT}", "guessed")
    assert browser_of(console, shows_token=False).get("/").status_code == 403


@pytest.mark.parametrize("host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1:1", ""])
def test_other_names_of_this_machine_are_refused(browser: TestClient, host: str) -> None:
    """A site whose name was made to resolve here has our cookie's host, and is told by its own."""
    assert browser.get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("10.0.0.5:8080", "http://10.0.0.5:8080", 303),
        ("10.0.0.5", "https://10.0.0.5", 303),
        ("10.0.0.5:8443", "https://10.0.0.5:8443", 303),
        ("console.example.com", "https://console.example.com", 303),
        ("Console.Example.com", "https://console.example.com", 303),
        ("console.example.com", "http://console.example.com", 303),
        ("console.example.com:443", "https://console.example.com", 303),
        ("console.example.com:80", "https://console.example.com", 303),
        ("other.example.com", "https://other.example.com:8443", 303),
        ("other.example.com:8443", "https://other.example.com:8443", 303),
        ("other.example.com", "https://other.example.com:8444", 403),
        ("console.example.com:443:443", "https://console.example.com", 421),
        (f"127.0.0.1:{PORT}", "https://console.example.com", 303),
        (f"127.0.0.1:{PORT}", "https://console.example.com.evil.example", 403),
        (f"127.0.0.1:{PORT}", "https://console.example.com:444", 403),
        (f"127.0.0.1:{PORT}", "ftp://console.example.com", 403),
        (f"127.0.0.1:{PORT}", "https://evil.example", 403),
        ("console.example.com", "null", 403),
        ("console.example.com", "", 403),
        ("evil.example", "https://evil.example", 421),
    ],
)
def test_a_proxy_with_tls(store: Store, host: str, origin: str, status: int) -> None:
    """Whether it passes on the name that browsers use, with a port or not, or gives its own for us.

    The cookie goes where the password went: not over the network in the clear.
    """
    names = ("Console.example.com:443", "other.example.com:8443")
    public = frozenset(map(public_host, names))
    access = Access(loopback_hosts(PORT), "s3cret", public_hosts=public)
    console = make_console(store, access)
    with TestClient(make_app(console), base_url=ADDRESS, follow_redirects=False) as browser:
        headers = {"host": host, "origin": origin}
        done = browser.post("/login", data={"password": "s3cret"}, headers=headers)
        assert done.status_code == status
        if status == 303:
            cookie, *attributes = done.headers["set-cookie"].split("; ")
            assert ("Secure" in attributes) == origin.startswith("https:")
            assert browser.get("/", headers={"host": host, "cookie": cookie}).status_code == 200


@pytest.mark.parametrize("name", ["", "https://a", "a/b", "a b", "a:b", "a:123456"])
def test_a_public_name_is_one(store: Store, name: str) -> None:
    with pytest.raises(InvalidOption, match="what a browser calls"):
        serve(store, announce=print, password="x", public_names=[name])
    with pytest.raises(InvalidOption, match="set a password"):
        serve(store, announce=print, public_names=["a"])


def test_nothing_is_framed_run_or_kept(browser: TestClient) -> None:
    """Every answer says so, also a refusal; no page has a script of its own in it."""
    for path in ("/", "/topics/orders/0/records", "/nothing", "/static/live.js"):
        answer = browser.get(path)
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cache-control"] == "no-store"
    for path in ("/", "/topics/orders", "/topics/orders/0", OPEN_ID, "/store"):
        page = browser.get(path).text
        assert page.count("<script") == 1, path
        assert " style=" not in page
        assert " onclick=" not in page


def test_without_leave_nothing_can_be_changed(browser: TestClient, console: Console) -> None:
    """There is neither a form nor an address that takes one."""
    assert "/abort/" not in browser.get(OPEN_ID).text
    form = {"form_token": console.access.form_token, "reason": "x"}
    answer = browser.post(ABORT_OPEN, data=form, headers={"origin": ADDRESS})
    assert answer.status_code == 404
    assert console.store.topics.describe("orders").open_transactions


def test_with_leave_a_transaction_is_aborted_by_our_own_form_alone(store: Store) -> None:
    """Neither another site's form nor one without the page's token does anything."""
    console = make_console(store, Access(loopback_hosts(PORT)), allow_changes=True)
    typed = {"reason": "its host is gone"}
    with browser_of(console) as browser:
        seen = seal_of(send(console, browser, ABORT_OPEN, **typed))
        form = {"form_token": console.access.form_token, "seen": seen, **typed}
        for headers, data, status in (
            ({}, form, 403),
            ({"origin": "https://evil.example"}, form, 403),
            ({"origin": "null"}, form, 403),
            ({"origin": ADDRESS}, {**form, "form_token": "x"}, 403),
            ({"origin": ADDRESS}, {**form, "reason": "x" * 300_000}, 413),
            ({"origin": ADDRESS}, {**form, "reason": "x" * 2001}, 400),
            ({"origin": ADDRESS}, {**form, **{f"f{n}": "" for n in range(100)}}, 413),
        ):
            answer = browser.post(ABORT_OPEN, data=data, headers=headers)
            assert answer.status_code == status, answer.text
        assert store.topics.describe("orders").open_transactions
        done = browser.post(ABORT_OPEN, data=form, headers={"origin": ADDRESS})
        assert (done.status_code, unquote(done.headers["location"])) == (303, unquote(OPEN_ID))
        assert "its host is gone" in browser.get(OPEN_ID).text
    assert not store.topics.describe("orders").open_transactions


def test_beyond_this_machine_a_password_is_asked_for(store: Store) -> None:
    """The token of a URL opens nothing then; a wrong password does not either."""
    hosts = frozenset({f"127.0.0.1:{PORT}"})
    console = make_console(store, Access(hosts, password="s3cret"))
    with browser_of(console, shows_token=False) as browser:
        for path in ("/", f"/?token={console.access.token}", "/static/live.js"):
            answer = browser.get(path)
            assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        assert browser.get("/login").status_code == 200
        assert browser.get("/static/style.css").status_code == 200
        origin = {"origin": ADDRESS}
        assert browser.post("/login", data={"password": "s3cret"}).status_code == 403
        wrong = browser.post("/login", data={"password": "secret"}, headers=origin)
        assert (wrong.status_code, "not the password" in wrong.text) == (403, True)
        right = browser.post("/login", data={"password": "s3cret"}, headers=origin)
        assert right.status_code == 303
        assert "orders" in browser.get("/").text


def test_passwords_cannot_be_tried_one_after_the_other(store: Store) -> None:
    """After ten wrong ones within a minute not even the right one is looked at, from there."""
    access = Access(frozenset({f"127.0.0.1:{PORT}"}), password="s3cret")
    console = make_console(store, access)
    with browser_of(console, shows_token=False) as browser:
        tries = [
            browser.post("/login", data={"password": given}, headers={"origin": ADDRESS})
            for given in (*["wrong"] * MOST_WRONG_TRIES, "s3cret")
        ]
    assert [answer.status_code for answer in tries] == [*[403] * MOST_WRONG_TRIES, 429]
    assert "again in a minute" in tries[-1].text
    owners = TestClient(make_app(console), ADDRESS, client=("10.0.0.2", 1), follow_redirects=False)
    given = owners.post("/login", data={"password": "s3cret"}, headers={"origin": ADDRESS})
    assert given.status_code == 303, "others' wrong passwords lock nobody out"
    access = Access(frozenset(), password="s3cret")
    wrong = [access.opens_by_password("no", "::1", float(at_s)) for at_s in range(MOST_WRONG_TRIES)]
    with pytest.raises(TooManyTries):
        access.opens_by_password("s3cret", "::1", TRIES_WITHIN_S - 0.1)
    assert not any(wrong)
    assert access.opens_by_password("s3cret", "::1", TRIES_WITHIN_S)


def test_who_has_many_addresses_takes_no_memory(store: Store) -> None:
    """Those who tried longest ago are forgotten; of IPv6 each client has 64 bits of addresses."""
    tries = WrongTries()
    for number in range(MOST_CLIENTS + 5):
        tries.add(f"10.{number >> 8}.{number & 255}.1", 0.0)
    assert len(tries) == MOST_CLIENTS
    for number in range(MOST_WRONG_TRIES):
        tries.add(f"2001:db8:0:1::{number:x}", 1.0)
        tries.add(f"::ffff:10.9.9.{number}", 1.0)
    assert tries.are_too_many("2001:db8:0:1:ffff::", 1.0)
    assert not tries.are_too_many("2001:db8:0:2::", 1.0)
    assert not tries.are_too_many("10.9.9.1", 1.0)
    assert len(tries) == MOST_CLIENTS


@pytest.mark.parametrize(
    "path", ["//evil.example/x", "/%2Fevil.example/x", "///evil.example/x", "/%5Cevil.example/x"]
)
def test_nobody_is_led_to_another_site(console: Console, path: str) -> None:
    """Two slashes begin a host's name; what browsers take for a slash is written out."""
    browser = browser_of(console, shows_token=False)
    admitted = browser.get(f"{ADDRESS}{path}?token={console.access.token}")
    assert admitted.status_code == 303
    where = urljoin(ADDRESS, admitted.headers["location"].replace("\\", "/"))
    assert urlsplit(where).netloc == urlsplit(ADDRESS).netloc


@pytest.mark.parametrize("host", [None, "127.0.0.1", "0.0.0.0"])
def test_an_empty_password_is_refused(store: Store, host: str | None) -> None:
    """It would let everybody in, who need only press a button."""

    def announce(url: str) -> None:
        pytest.fail(f"it is served at {url}")

    for password in ("", "  "):
        with pytest.raises(InvalidOption, match="password is empty"):
            serve(store, announce=announce, host=host, password=password)


def test_other_addresses_are_not_listened_at_without_a_password(store: Store) -> None:
    """Nor is an address that another program has."""
    told: list[str] = []
    for host in ("0.0.0.0", "192.0.2.1", "::", "example.com"):
        assert not is_loopback(host)
        with pytest.raises(InvalidOption, match="password"):
            serve(store, announce=told.append, host=host)
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost")] == [True] * 3
    for host, port in (("192.0.2.1", 0), ("a..b", 0), ("127.0.0.1", 65_536), ("127.0.0.1", -1)):
        with pytest.raises(InvalidOption, match="cannot listen at"):
            listen(host, port)
    with pytest.raises(InvalidOption, match="cannot listen at"):
        listen_alone(65_536)
    with pytest.raises(InvalidOption, match="cannot listen at"):
        serve(store, announce=told.append, host="192.0.2.1", password="x")
    assert told == []
