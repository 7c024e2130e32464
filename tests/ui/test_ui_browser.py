"""The pages in a real browser: Chromium by Playwright, which ``make test-ui`` sees to."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import uvicorn

import txnlog
from tests.ui.ui_browser import HOSTILE
from txnlog import ConsumerConfig, TopicPartition
from txnlog.replication import Follower, Replicas, open_replicas
from txnlog.store import Store
from txnlog.ui import look
from txnlog.ui.access import Access, loopback_hosts
from txnlog.ui.app import make_app
from txnlog.ui.server import make_console

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.browser

LONG = "x" * 100
PAGES = {
    "topics": "/",
    "topic": "/topics/orders",
    "partition": "/topics/orders/0",
    "records": "/topics/orders/records?level=read_uncommitted",
    "wrong": "/topics/orders/records?where=value&find=(&partitions=9",
    "readers": "/topics/payments/groups",
    "writers": "/topics/orders/writers",
    "settings": "/topics/orders/settings",
    "indexed": "/topics/payments/0?index",
    "typed": "/topics/flights/records",
    "produce": "/topics/orders/produce",
    "alter": "/topics/orders/alter",
    "trim": "/topics/orders/trim",
    "reset": "/reset/billing",
    "create": "/create",
    "delete": "/topics/orders/delete",
    "abort": f"/abort/{LONG}",
    "transactions": "/transactions",
    "transaction": "/transactions/etl",
    "open": f"/transactions/{LONG}",
    "groups": "/groups",
    "group": "/groups/%3Cscript%3Ealert('x')%3C%2Fscript%3E",
    "members": "/groups/billing",
    "store": "/store?examine",
    "maintenance": "/store/maintenance?plan",
    "failure": "/topics/none",
}
FAINT_TEXTS = """() => {
  const light = (color) => {
    const parts = color.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
    const linear = parts.map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if (!/, 0\\)$/.test(color)) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const faint = [];
  for (const node of document.querySelectorAll("body *")) {
    const text = [...node.childNodes].filter((child) => child.nodeType === 3);
    const said = text.map((child) => child.data.trim()).join("");
    if (!said || !node.checkVisibility() || node.closest(".skip")) continue;
    const style = getComputedStyle(node);
    const both = [node.closest("svg") ? style.fill : style.color, behind(node)].map(light);
    const contrast = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
    if (contrast < 4.5) faint.push(`${said}: ${contrast.toFixed(1)}`);
  }
  return faint;
}"""
"""Texts that are less than WCAG's 4.5 to 1 apart from what is behind them."""
TAB_LINES = """() =>
  new Set([...document.querySelectorAll(".tabs a")].map((tab) => tab.offsetTop)).size"""
"""In how many lines the tabs of a topic are."""
CUT_TABLES = """() => [...document.querySelectorAll(".wide")]
  .filter((box) => box.scrollWidth > box.clientWidth)
  .map((box) => box.innerText)"""
"""Tables that are wider than the page, so that one has to scroll them."""
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"


@contextmanager
def served(store: Store) -> Iterator[str]:
    """Where a server with changes allowed listens, with its token."""
    config = uvicorn.Config(lambda: None, port=0, log_level="warning", lifespan="off")
    listener = config.bind_socket()
    listener.listen()  # so that a browser waits for the server to begin
    port = listener.getsockname()[1]
    console = make_console(store, Access(loopback_hosts(port)), allow_changes=True)
    config.app = make_app(console)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}/?token={console.access.token}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture
def address(store: Store) -> Iterator[str]:
    """The address of a console over the store of all tests."""
    with served(store) as found:
        yield found


@pytest.fixture
def lived_in(store: Store) -> Iterator[str]:
    """The same with a typed topic, one that has some segments, and a group that reads it."""
    flights = pa.schema([("carrier", pa.string()), ("late", pa.list_(pa.int32()))])
    store.topics.create("flights", schema=flights, key=["carrier"])
    store.topics.create("payments", config={"index.interval.bytes": 0})
    consumer = store.consumer(
        "payments",
        group_id="billing",
        config=ConsumerConfig(client_id="host-7"),
        auto_offset_reset="earliest",
    )
    with store.producer() as producer:
        rows = {"carrier": ["AA", "DL"], "late": [[3, 4], None], "_deleted": [False, True]}
        producer.send_batch("flights", pa.record_batch(rows))
        for number in range(6):
            values = [b"%d " % n + b"x" * 1000 for n in range(500 * (number % 3 + 1))]
            for _ in range(3):  # three batches, so that there is something to index
                producer.send_batch("payments", pa.record_batch({"value": values}))
            producer.flush()
            if number % 2:
                consumer.poll(timeout_ms=5000)
                consumer.commit()
    hanging = store.producer(transactional_id=LONG, transaction_timeout_ms=900_000)
    hanging.init_transactions()
    hanging.begin_transaction()
    hanging.send("payments", "x")
    hanging.send_offsets_to_transaction({TopicPartition("payments", 0): 1}, LONG)
    hanging.flush()
    with served(store) as found:
        yield found
    consumer.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser")
    assert path is not None, "no chromium is installed: apt-get install chromium, or the like"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def open_page(chromium: Browser, address: str, width: int, scheme: Any = "light") -> Page:
    """A page of so many pixels that was let in; whatever it complains of fails its test."""
    page = chromium.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme
    ).new_page()
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    page.on("pageerror", lambda error: pytest.fail(str(error)))
    page.goto(address)
    return page


@pytest.mark.parametrize("width", [360, 768, 1280, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits(chromium: Browser, lived_in: str, width: int, scheme: str) -> None:
    """Nothing hangs out at the sides, nothing is refused by the page's own rules."""
    check_that_pages_fit(chromium, lived_in, PAGES, width, scheme)


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1600, "light")])
def test_pages_of_replicas_and_standbys_fit(
    chromium: Browser, tmp_path: Path, width: int, scheme: str
) -> None:
    """With a root that is out, and URLs that are long."""
    roots = [str(tmp_path / f"root-with-a-long-name-{number}") for number in range(3)]
    store = open_replicas(
        [roots[0], *roots[1:]], create=True, controller=f"{tmp_path}/control"
    ).store
    Replicas(store).remove("r2")
    store.topics.create("orders")
    Follower(store, tmp_path / "standby").follow()
    pages = {"replicated": "/store", "replicas": "/store/replicas?lag"}
    with served(store) as address:
        check_that_pages_fit(chromium, address, pages, width, scheme)
    with served(txnlog.open(tmp_path / "standby")) as address:
        check_that_pages_fit(chromium, address, {"standby": "/store"}, width, scheme)


def check_that_pages_fit(
    chromium: Browser, address: str, pages: Mapping[str, str], width: int, scheme: str
) -> None:
    """A picture of each lies in SCREENSHOTS."""
    page = open_page(chromium, address, width, scheme)
    said: Queue[str] = Queue()
    page.on("console", lambda message: said.put(message.text))
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    base = address.partition("/?")[0]
    for name, path in pages.items():
        page.goto(base + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.evaluate(FAINT_TEXTS) == [], name
        assert page.evaluate(TAB_LINES) <= 1, name
        assert page.evaluate(CUT_TABLES) == [], name
        page.screenshot(path=str(SCREENSHOTS / f"{name}-{width}-{scheme}.png"), full_page=True)
    complaints = [said.get() for _ in range(said.qsize())]
    assert [text for text in complaints if "400 (Bad Request)" not in text] == []


def test_a_page_follows_what_happens(chromium: Browser, address: str, store: Store) -> None:
    """With "live" on it shows what was made since, without being loaded by hand."""
    page = open_page(chromium, address, 1200)
    page.get_by_label("live").check()
    store.topics.create("made-since")
    page.get_by_role("link", name="made-since").wait_for(timeout=20_000)
    page.reload()
    assert page.get_by_label("live").is_checked()


def test_what_is_read_or_typed_is_not_taken_away(
    chromium: Browser, address: str, store: Store
) -> None:
    """While it is, "live" waits: details stay open, a form keeps what it would do."""
    page = open_page(chromium, address, 1200)
    page.clock.install()
    base = address.partition("/?")[0]
    page.goto(f"{base}/topics/orders/records")
    page.get_by_label("live").check()
    page.locator(".record .of-value").first.click()
    with store.producer() as producer:
        producer.send("orders", "made since", partition=1)
    page.clock.run_for(30_000)
    page.wait_for_load_state("networkidle")
    assert page.locator(".more").first.is_visible()
    assert page.get_by_text("made since").count() == 0
    page.locator(".record .of-value").first.click()
    page.clock.run_for(30_000)
    page.get_by_text("made since").first.wait_for()
    page.goto(f"{base}/topics/orders/trim")
    page.get_by_label("Before").fill("latest")
    page.get_by_role("button", name="Preview").click()
    page.get_by_text("Partition 0: 2 offsets are deleted").wait_for()
    page.clock.run_for(30_000)
    page.wait_for_load_state("networkidle")
    assert page.get_by_text("Partition 0: 2 offsets are deleted").is_visible()


def test_the_keyboard_reaches_everything(chromium: Browser, address: str) -> None:
    """First a way past the navigation, then links and fields in the order in which they stand."""
    page = open_page(chromium, address, 1200)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.name") == "find"


def test_a_transaction_is_aborted_by_hand(chromium: Browser, address: str, store: Store) -> None:
    """The form of its page does it, with all that browsers send along."""
    page = open_page(chromium, address, 1200)
    page.get_by_role("link", name="Transactions").click()
    page.get_by_role("link", name=f"open/{HOSTILE}").click()
    page.get_by_role("link", name="Abort transaction 1").click()
    page.get_by_label("Reason").fill("tried by hand")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Do it").click()
    page.get_by_text("CompleteAbort").first.wait_for()
    assert store.topics.describe("orders").open_transactions == ()


def test_times_are_those_of_the_browser(chromium: Browser, address: str, store: Store) -> None:
    """Until UTC is ticked, which is remembered; the form sends the zone that is shown."""
    context = chromium.new_context(timezone_id="Asia/Kolkata")
    page = context.new_page()
    page.goto(address)
    store.topics.create("times")
    with store.producer() as producer:
        producer.send("times", "x", timestamp_ms=1_700_000_000_123)
    records = f"{address.partition('/?')[0]}/topics/times/records"
    page.goto(records)
    shown = page.locator(".record .when")
    assert shown.inner_text() == "2023-11-15 03:43:20.123 +05:30"
    page.get_by_text("Time, partitions, order").click()
    page.get_by_label("Since").fill("2023-11-15T03:43")
    page.get_by_label("Until").fill("2023-11-15T03:44")
    page.get_by_role("button", name="Show").click()
    # The new page comes with times in UTC, until its script runs.
    shown.filter(has_text="2023-11-15 03:43:20.123 +05:30").wait_for()
    page.get_by_label("UTC").check()
    assert shown.inner_text() == "2023-11-14 22:13:20.123 UTC"
    page.goto(records)
    assert shown.inner_text() == "2023-11-14 22:13:20.123 UTC"
    context.close()


@pytest.fixture
def stepwise(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A topic of 30 small segments, of which each look reads one."""
    monkeypatch.setattr(look, "_MOST_CPU_S", -1.0)
    store.topics.create("steps", config={"record.format": "columns"})
    with store.producer() as producer:
        for number in range(30):
            producer.send("steps", f"{number} {'even' if number % 2 == 0 else 'odd'}")
            producer.flush()
    monkeypatch.setattr(look, "_FIRST_SEARCHED", 1)
    return store


def test_a_search_fills_its_page_by_itself(chromium: Browser, stepwise: Store) -> None:
    """Step after step, until all is looked at; then all that is shown can be downloaded."""
    with served(stepwise) as address:
        page = open_page(chromium, address, 1200)
        page.goto(f"{address.partition('/?')[0]}/topics/steps/records?find=even")
        page.get_by_text("which is all").wait_for()
        values = page.locator(".record .of-value").all_inner_texts()
        assert values == [f"{number} even" for number in range(28, -1, -2)]
        assert page.get_by_role("button", name="Stop").count() == 0
        with page.expect_download() as downloading:
            page.get_by_role("link", name="Download these").first.click()
        rows = Path(downloading.value.path()).read_text().splitlines()
        assert [json.loads(row)["value"] for row in rows] == values


def test_a_search_can_be_stopped(chromium: Browser, stepwise: Store) -> None:
    """And goes on from there by its link."""
    with served(stepwise) as address:
        page = open_page(chromium, address, 1200)
        held: Queue[Route] = Queue()
        page.route("**/*before=*", held.put)
        page.goto(f"{address.partition('/?')[0]}/topics/steps/records?find=even")
        stop = page.get_by_role("button", name="Stop")
        stop.click()
        page.wait_for_function("document.getElementById('stop').hidden")
        held.get(timeout=20).continue_()
        page.get_by_text("2 of 30 offsets looked at").wait_for()
        page.unroute("**/*before=*")
        page.wait_for_load_state("networkidle")
        assert held.empty()
        page.get_by_role("link", name="keep looking").first.click()
        page.get_by_text("which is all").wait_for()


def test_details_of_a_record_open_by_key_and_by_mouse(chromium: Browser, address: str) -> None:
    """The keyboard reaches them; a click anywhere in the line does, too."""
    page = open_page(chromium, address, 1200)
    page.goto(f"{address.partition('/?')[0]}/topics/orders/records")
    more = page.locator(".more").first
    assert not more.is_visible()
    page.locator(".record summary").first.focus()
    page.keyboard.press("Enter")
    assert more.is_visible()
    page.locator(".record .of-value").first.click()
    assert not more.is_visible()


@pytest.mark.parametrize(("width", "comes_first"), [(360, True), (1280, False)])
def test_on_a_phone_the_value_comes_first(
    chromium: Browser, address: str, width: int, comes_first: bool
) -> None:
    """Over all of the width, above what else is told of a record; a wide page has columns."""
    page = open_page(chromium, address, width)
    page.goto(f"{address.partition('/?')[0]}/topics/orders/records")
    record = page.locator(".record").first
    value = record.locator(".of-value").bounding_box()
    others = [record.locator(cell).bounding_box() for cell in ("summary", ".when", ".of-key")]
    assert value is not None
    assert value["height"] > 0
    assert all(
        other is not None and (value["y"] + value["height"] <= other["y"]) is comes_first
        for other in others
    )
    assert (value["width"] > 0.9 * width) is comes_first


def test_records_are_read_without_scripts(chromium: Browser, address: str) -> None:
    """Details open, times say that they are UTC, and what needs a script is not there."""
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    page.goto(f"{address.partition('/?')[0]}/topics/orders/records?find=etl")
    page.locator(".record summary").first.click()
    assert page.locator(".more").first.is_visible()
    assert page.locator(".record .when").first.inner_text().endswith(" UTC")
    assert not page.locator("header input").first.is_visible()
    context.close()


def test_records_are_deleted_by_hand(chromium: Browser, address: str, store: Store) -> None:
    """From the topic's page: what would go is shown first, then it goes."""
    page = open_page(chromium, address, 1200)
    page.get_by_role("link", name="orders").click()
    page.get_by_role("link", name="Delete the oldest records").click()
    page.get_by_label("Before").fill("1")
    page.get_by_role("button", name="Preview").click()
    page.get_by_text("an offset is one of a single partition").wait_for()
    page.get_by_label("Partitions").fill("0")
    page.keyboard.press("Enter")
    page.get_by_text("Partition 0: 1 offset is deleted").wait_for()
    assert store.snapshot(["orders"]).beginning_offsets("orders")[0] == 0
    page.get_by_role("button", name="Delete them").click()
    page.get_by_role("heading", name="orders").wait_for()
    assert store.snapshot(["orders"]).beginning_offsets("orders")[0] == 1
    page.get_by_role("link", name="Store").click()
    page.get_by_text("trimmed orders: 1 offset of 1 partition").wait_for()
