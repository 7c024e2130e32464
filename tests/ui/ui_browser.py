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
