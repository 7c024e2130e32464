"""``txnlog ui``: the real server, in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import txnlog

COMMAND = [sys.executable, "-m", "txnlog.cli", "ui"]


def test_it_prints_its_url_when_it_is_ready_and_ends_when_interrupted(tmp_path: Path) -> None:
    """The token opens it; a change is a line on stderr; Ctrl-C ends it like other commands."""
    txnlog.open(str(tmp_path / "store"), create=True).topics.create("orders")
    package = str(Path(txnlog.__file__).parent.parent)
    process = subprocess.Popen(
        [*COMMAND, "--allow-changes", "--store", str(tmp_path / "store")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": package},
        # A shell that runs the tests in the background has its children ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    try:
        assert process.stdout is not None
        url = urlsplit(process.stdout.readline().strip())
        connection = HTTPConnection(str(url.hostname), url.port, timeout=30)
        connection.request("GET", "/")
        refused = connection.getresponse()
        assert (refused.status, b"orders" in refused.read()) == (403, False)
        connection.request("GET", f"/?{url.query}")
        admitted = connection.getresponse()
        admitted.read()
        cookie = re.match("[^;]+", admitted.headers["set-cookie"])
        assert cookie is not None
        connection.request("GET", "/", headers={"cookie": cookie[0]})
        shown = connection.getresponse()
        assert (shown.status, b"/topics/orders" in shown.read()) == (200, True)
        assert "uvicorn" not in str(shown.headers)
        form = {"kind": "text", "value": "v"}
        headers = {
            "cookie": cookie[0],
            "origin": f"http://{url.netloc}",
            "content-type": "application/x-www-form-urlencoded",
        }
        for method, name in (("GET", "form_token"), ("POST", "seen"), ("POST", "")):
            connection.request(method, "/topics/orders/produce", urlencode(form), headers)
            page = connection.getresponse().read().decode()
            form |= re.findall(rf'name="({name})" value="(\w+)"', page)
        connection.close()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (130, "")
        assert re.fullmatch(
            r"txnlog: \S+ \S+ UTC [\d.]+: wrote a record to orders:0 at offset 0\n", err
        )
    finally:
        process.kill()
        process.wait()
