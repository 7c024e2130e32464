"""What servers of S3's protocol do now and then, and a store over it: nothing is lost or doubled.

A job copies records in transactions through a server that misbehaves at every few requests; the
judge reads through one that does not. botocore and s3fs repeat what they know to be repeatable, the
rest is the store's own.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest

from tests.support.simulation.copy_job import PREPARED, check_whole_transactions, copy_all, judge
from txnlog.clock import SystemClock
from txnlog.errors import CommitStateUnknown, StorageError, TxnlogError
from txnlog.storage import open_storage
from txnlog.storage.base import Storage
from txnlog.store import attach
from txnlog.testing.conformance.fault_proxy import ProxyFaults
from txnlog.testing.conformance.lost_responses import through_proxy
from txnlog.testing.conformance.ways import Way

pytestmark = [pytest.mark.s3, pytest.mark.more]

_COUNTER = itertools.count()
Answer = tuple[str, list[tuple[str, str]], bytes]
Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


def error(status: str, code: str) -> Answer:
    body = f"<Error><Code>{code}</Code><Message>told so</Message></Error>".encode()
    return status, [("Content-Length", str(len(body))), ("Content-Type", "application/xml")], body


CONFLICT = error("409 Conflict", "ConditionalRequestConflict")
TAKEN = error("412 Precondition Failed", "PreconditionFailed")
SLOW_DOWN = error("503 Slow Down", "SlowDown")
INTERNAL = error("500 Internal Server Error", "InternalError")
SKEWED = error("403 Forbidden", "RequestTimeTooSkewed")


class Faulty:
    """A server's application of which every ``every``-th request of a kind goes wrong.

    ``before`` answers in its place, without effect; ``after`` once it took effect; ``truncate``
    breaks the connection within the answer's body.
    """

    def __init__(
        self,
        every: int,
        *,
        method: str,
        before: Answer | None = None,
        after: Answer | None = None,
        truncate: bool = False,
        conditional: bool | None = None,
    ) -> None:
        self.every = every
        self.method = method
        self.before, self.after, self.truncate = before, after, truncate
        self.conditional = conditional
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._application: Application | None = None

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with self._lock:
            if not self._is_due(environ):
                return self._pass_on(environ, start_response)
            self.counts["faults"] += 1
            if self.before is not None:
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                return self._say(self.before, start_response)
            if self.after is not None:
                list(self._pass_on(environ, lambda *_: None))
                return self._say(self.after, start_response)
            body = b"".join(self._pass_on(environ, start_response))
            return [body[: len(body) // 2]]

    def _is_due(self, environ: dict[str, Any]) -> bool:
        is_conditional = "HTTP_IF_NONE_MATCH" in environ
        if environ["REQUEST_METHOD"] != self.method:
            return False
        if self.conditional is not None and is_conditional != self.conditional:
            return False
        if self.truncate and environ.get("QUERY_STRING"):
            return False  # a listing, which is read otherwise
        self.counts["requests"] += 1
        return self.counts["requests"] % self.every == 0

    def _pass_on(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        if self._application is None:
            from moto.moto_server.werkzeug_app import create_backend_app

            self._application = create_backend_app("s3")
        return list(self._application(environ, start_response))

    @staticmethod
    def _say(answer: Answer, start_response: Any) -> list[bytes]:
        status, headers, body = answer
        start_response(status, headers)
        return [body]


@contextmanager
def serving(faulty: Faulty, s3_options: dict[str, Any]) -> Iterator[tuple[Storage, Storage]]:
    """A prepared storage through a server that misbehaves, and through one that does not."""
    from werkzeug.serving import make_server

    path = f"s3://test/faults-{next(_COUNTER)}"
    plain = open_storage(path, s3_options)
    plain.gather(
        [partial(plain.put, name, PREPARED.get(name)) for name, _ in PREPARED.list_all("")]
    )
    server = make_server("127.0.0.1", 0, faulty, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        # Repeated by s3fs, and not by botocore beneath it as well: its pauses add up.
        quick = {"retries": {"total_max_attempts": 1}}
        disturbed = open_storage(
            path, {**s3_options, "endpoint_url": endpoint, "config_kwargs": quick}
        )
        disturbed.trust()
        yield disturbed, plain
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def run_job(disturbed: Storage, plain: Storage, context: str) -> None:
    """Run the job until it is done; errors are reported and it is run again, as people do."""
    for _ in range(12):
        try:
            copy_all(attach(disturbed, clock=SystemClock()), abort_once=True)
        except TxnlogError:
            check_whole_transactions(plain, context)
        else:
            break
    else:
        copy_all(attach(plain, clock=SystemClock()))
    judge(plain, context)


@pytest.mark.parametrize(
    ("name", "faulty"),
    [
        ("409", partial(Faulty, 2, method="PUT", before=CONFLICT, conditional=True)),
        ("412 of our own", partial(Faulty, 3, method="PUT", after=TAKEN, conditional=True)),
        pytest.param(
            "503 before", partial(Faulty, 5, method="PUT", before=SLOW_DOWN), marks=pytest.mark.more
        ),
        pytest.param(
            "503 after", partial(Faulty, 5, method="PUT", after=SLOW_DOWN), marks=pytest.mark.more
        ),
        pytest.param(
            "500 after", partial(Faulty, 4, method="PUT", after=INTERNAL), marks=pytest.mark.more
        ),
        pytest.param(
            "503 for reads",
            partial(Faulty, 5, method="GET", before=SLOW_DOWN),
            marks=pytest.mark.more,
        ),
        ("a truncated body", partial(Faulty, 2, method="GET", truncate=True)),
        pytest.param(
            "403 skewed", partial(Faulty, 9, method="PUT", before=SKEWED), marks=pytest.mark.more
        ),
    ],
)
def test_a_job_survives(name: str, faulty: Callable[[], Faulty], s3_options: Any) -> None:
    """Each in turn, before or after the request took effect."""
    server = faulty()
    with serving(server, s3_options) as (disturbed, plain):
        run_job(disturbed, plain, name)
    assert server.counts["faults"] >= 3, server.counts


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(ProxyFaults(refuse=0.05), id="before", marks=pytest.mark.more),
        pytest.param(ProxyFaults(lose=0.05), id="after"),
        pytest.param(ProxyFaults(truncate=0.05), id="within", marks=pytest.mark.more),
    ],
)
def test_a_job_survives_connections_that_are_reset(faults: ProxyFaults, s3_options: Any) -> None:
    """Before the request arrived, after it took effect, and within its answer."""
    plain = open_storage(f"s3://test/faults-{next(_COUNTER)}", s3_options)
    for name, _ in PREPARED.list_all(""):
        plain.put(name, PREPARED.get(name))
    quick = {"retries": {"total_max_attempts": 1}}
    with through_proxy(Way(plain.url, s3_options), faults, seed=5) as found:
        assert found is not None
        way, proxy = found
        disturbed = open_storage(plain.url, {**way.options, "config_kwargs": quick})
        disturbed.trust()
        run_job(disturbed, plain, str(faults))
        cuts = proxy.counts["refused"] + proxy.counts["lost"] + proxy.counts["truncated"]
    assert cuts >= 3, proxy.counts


def test_a_skewed_clock_is_told_and_not_waited_for(s3_options: Any) -> None:
    """Nothing else helps than setting it."""
    faulty = Faulty(1, method="PUT", before=SKEWED)
    with serving(faulty, s3_options) as (disturbed, _):
        with pytest.raises(StorageError, match="clock of this machine") as caught:
            disturbed.put_if_absent("a", b"x")
        assert not caught.value.retriable
        assert faulty.counts["requests"] == 1


def test_an_append_whose_creates_all_seem_to_fail_is_made_once(s3_options: Any) -> None:
    """Every create takes effect and is said to have failed: it is found out by reading."""
    faulty = Faulty(1, method="PUT", after=INTERNAL, conditional=True)
    with serving(faulty, s3_options) as (disturbed, plain):
        store = attach(disturbed, clock=SystemClock())
        with suppress(StorageError, CommitStateUnknown), store.producer() as producer:
            producer.send("b", b"once")
            producer.flush()
        found = attach(plain, clock=SystemClock()).scan("b").to_arrow().column("value").to_pylist()
    assert found == [b"once"]
