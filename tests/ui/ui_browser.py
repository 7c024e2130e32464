"""A browser at the address of a console."""

from __future__ import annotations

import re
from html import unescape

from starlette.testclient import TestClient

from txnlog.ui.app import make_app
from txnlog.ui.console import Console

PORT = 8080
ADDRESS = f"http://127.0.0.1:{PORT}"
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
