"""What the pages of a replicated store, and of a standby, say of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import txnlog
from tests.ui.ui_browser import PORT, browser_of, ended, seal_of, send, text_of
from txnlog.replication import Follower, Replicas, open_replicas
from txnlog.store import Store
from txnlog.ui.access import Access, loopback_hosts
from txnlog.ui.console import Console
from txnlog.ui.render import show_ago
from txnlog.ui.server import make_console


def console_over(store: Store) -> Console:
    """A console over the store."""
    return make_console(store, Access(loopback_hosts(PORT)))


def look_at(store: Store) -> TestClient:
    """A browser that was let in to one."""
    return browser_of(console_over(store))


@pytest.fixture
def replicated(tmp_path: Path) -> Store:
    """A store on two roots, both in sync."""
    return open_replicas(
        [tmp_path / "a", str(tmp_path / "b")], create=True, controller=str(tmp_path / "controller")
    ).store


def test_the_roots_of_a_replicated_store(replicated: Store) -> None:
    """Who leads, who is in sync, who is out, and what that one lacks if that is asked for."""
    with look_at(replicated) as browser:
        assert "This store is replicated" in text_of(browser, "/store")
        both = text_of(browser, "/store/replicas")
        assert "In sync r0-0 , r1-0 ; at least 1 must be" in both
        assert "r0 leader answers r0-0" in both
        assert "r1 in sync answers r1-0" in both
        Replicas(replicated).remove("r1")
        replicated.topics.create("orders")
        out = text_of(browser, "/store/replicas")
        assert "In sync r0-0 ; at least 1 must be" in out
        url = Replicas(replicated).describe().replicas[1].url
        assert f"r1 out answers an operator took it out \u2013 {url} unknown unknown" in out
        assert "Count what is missing" in out
        assert "min.insync.replicas" in out


def test_what_roots_lack_is_counted_when_asked(replicated: Store) -> None:
    """Behind the page; a later look shows it again, and says when it was counted."""
    Replicas(replicated).remove("r1")
    replicated.topics.create("orders")
    lacking = Replicas(replicated).describe(with_lag=True).replicas[1]
    assert lacking.objects_behind
    console = console_over(replicated)
    with browser_of(console) as browser:
        told = ended(console, browser, "/store/replicas?lag")
        assert f"{lacking.url} {lacking.objects_behind} " in told
        assert re.search(r"Compared 0 s ago, in .*Requests made: .*list_all.3", told)
        assert f"{lacking.url} {lacking.objects_behind} " in text_of(browser, "/store/replicas")


def test_requests_to_roots_are_counted(replicated: Store) -> None:
    """Those of the controller, and of each root: both are asked for their folders."""
    Replicas(replicated).remove("r1")
    with look_at(replicated) as browser:
        browser.get("/store")
        shown = text_of(browser, "/store/replicas")
        costs = dict(re.findall(r"(\w+)\s(\d+)", shown.partition("since the last page: ")[2]))
        assert (costs["list_folders"], costs["list"], costs["list_all"]) == ("4", "5", "1")


@pytest.mark.few(4)
@pytest.mark.parametrize("away", [None, "controller", "a", "b"])
@pytest.mark.parametrize("opened_by", ["a", "b", "controller"])
def test_the_page_says_what_describe_does(
    replicated: Store, tmp_path: Path, opened_by: str, away: str | None
) -> None:
    """Whatever is away, since before or after the store was opened."""
    replicated.topics.create("orders")
    if away is not None and away != opened_by:
        (tmp_path / away).rename(tmp_path / "away")
    store = txnlog.open(str(tmp_path / opened_by))
    if away == opened_by:
        (tmp_path / away).rename(tmp_path / "away")
    told = Replicas(txnlog.open(str(tmp_path / "b")) if away == "a" else store).describe()
    assert told.condition == {None: "whole", "controller": "no controller"}.get(away, "degraded")
    with look_at(store) as browser:
        shown = text_of(browser, "/store/replicas")
        assert told.condition in shown
        for one in told.replicas:
            assert f"{one.root} {one.state} {one.answer}" in shown


def test_a_topic_is_created_with_its_factor(replicated: Store) -> None:
    """The form asks for it where there are replicas; what cannot be is said beside the field."""
    console = make_console(replicated, Access(loopback_hosts(PORT)), allow_changes=True)
    with browser_of(console) as browser:
        assert 'name="factor"' in browser.get("/create").text
        for factor, said in (("3", "there are 2 roots"), ("0", "at least 1"), ("x", "not a num")):
            wrong = send(console, browser, "/create", topic="orders", factor=factor)
            assert said in wrong.partition('id="wrong-factor">')[2].partition("<")[0]
        typed = {"topic": "orders", "factor": "1"}
        page = send(console, browser, "/create", **typed)
        assert "Its data is placed at 1 root." in page
        assert replicated.topics.list() == []
        assert send(console, browser, "/create", **typed, seen=seal_of(page)) == "/topics/orders"
    factors = {one.key: one.value for one in Replicas(replicated).alter({})}
    assert factors["replication.factor.orders"] == "1"


def test_a_store_on_one_root_asks_for_no_factor(tmp_path: Path) -> None:
    """Nothing could be said in its field."""
    store = txnlog.open(tmp_path, create=True)
    console = make_console(store, Access(loopback_hosts(PORT)), allow_changes=True)
    with browser_of(console) as browser:
        page = browser.get("/create").text
        assert 'name="partitions"' in page
        assert 'name="factor"' not in page


def test_a_standby_says_what_it_is(replicated: Store, tmp_path: Path) -> None:
    """On every page that it is one; on the store's, of what, and how old it is."""
    Follower(replicated, str(tmp_path / "standby")).follow()
    with look_at(txnlog.open(tmp_path / "standby")) as browser:
        shown = text_of(browser, "/store")
        assert f"A standby of {replicated.url} : it shows round 0" in shown
        assert " s ago. It cannot be written to." in shown
        assert "This store is replicated" not in shown
        assert "Maintenance" not in shown
        assert '<span class="state">standby</span>' in browser.get("/").text


def test_other_stores_say_nothing_of_it(browser: TestClient) -> None:
    """There are no roots to show, and no round."""
    shown = text_of(browser, "/store")
    assert "replicated" not in shown
    assert "standby" not in browser.get("/store").text.lower()
    assert browser.get("/store/replicas").status_code == 400


@pytest.mark.parametrize(
    ("elapsed_ms", "shown"),
    [
        (-1, "1 s ahead of this machine's clock"),
        (0, "0 s ago"),
        (59_999, "59 s ago"),
        (60_000, "1 minute ago"),
        (7_200_000, "2 hours ago"),
        (86_400_000, "1 day ago"),
    ],
)
def test_ages(elapsed_ms: int, shown: str) -> None:
    """In the largest unit that is full."""
    assert show_ago(elapsed_ms) == shown
