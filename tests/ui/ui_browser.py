"""A browser at the address of a console."""

from __future__ import annotations

import re
from html import unescape

from starlette.testclient import TestClient

from txnlog.ui.app import make_app
from txnlog.ui.console import Console

PORT = 8080
ADDRESS = f"http://127.0.0.1:{PORT}"
LONG_S = 60.0
HOSTILE = "<script>alert('x')</script>"


def browser_of(console: Console, *, shows_token: bool = True) -> TestClient:
    """A browser at the console's address, with its cookie."""
    browser = TestClient(make_app(console), base_url=ADDRESS, follow_redirects=False)
    if shows_token:
        assert browser.get(f"/?token={console.access.token}").status_code == 303
    return browser


def text_of(browser: TestClient, path: str) -> str:
    """What a reader sees of a page, on one line."""
    answer = browser.get(path)
    assert answer.status_code == 200, answer.text
    assert HOSTILE not in answer.text
    main = answer.text.partition("<main")[2]
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", main)).split())


def ended(console: Console, browser: TestClient, path: str) -> str:
    """A page of a job, when that has ended."""
    browser.get(path)
    job = console.jobs.newest(path.partition("?")[2].partition("=")[0])
    assert job is not None
    assert job.wait(LONG_S)
    return text_of(browser, path)


def send(console: Console, browser: TestClient, path: str, **typed: str) -> str:
    """A form as a browser sends it; the page that is the answer."""
    form = {"form_token": console.access.form_token, **typed}
    answer = browser.post(path, data=form, headers={"origin": ADDRESS})
    assert answer.status_code in (200, 303, 400), answer.text
    return answer.text if answer.status_code != 303 else answer.headers["location"]


def seal_of(page: str) -> str:
    """What the button of a plan sends; empty without a plan."""
    found: list[str] = re.findall(r'name="seen" value="(\w+)"', page)
    return found[0] if found else ""


def confirm(console: Console, browser: TestClient, path: str, **typed: str) -> str:
    """Send a form twice, the second time with what the first answer has shown."""
    seal = seal_of(send(console, browser, path, **typed))
    assert seal
    return send(console, browser, path, **typed, seen=seal)
