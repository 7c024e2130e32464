"""``txnlog demo``: a small store to look at, with the two isolation levels side by side."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from txnlog.cli.output.escape import bytes_to_json, escape_bytes
from txnlog.cli.output.fields import Field, flag, number, text
from txnlog.cli.output.streams import flush
from txnlog.cli.session import Session
from txnlog.errors import StoreExists

if TYPE_CHECKING:
    from txnlog.producer import Producer
    from txnlog.store import Store


_TOPICS: Final = ("orders", "payments")
_COMMITTED: Final = "checkout-1"
_ABORTED: Final = "checkout-2"
_OPEN: Final = "checkout-3"
_TIMEOUT_MS: Final = 900_000
_NEXT: Final = """
Look around:
  export TXNLOG_STORE={url}
  txnlog topics ls
  txnlog txns ls
  txnlog txns why orders
  txnlog groups describe billing
  txnlog records tail payments"""


@dataclass(frozen=True, slots=True)
class DemoRecord:
    """A record, its transaction, and whether read_committed shows it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    transactional_id: str
    outcome: str
    read_committed: bool


@dataclass(frozen=True, slots=True)
class Demo:
    """A store that was filled."""

    url: str
    records: list[DemoRecord]


DEMO: list[Field[Demo]] = [text("store", "STORE", lambda demo: demo.url)]
RECORDS: list[Field[DemoRecord]] = [
    text("topic", "TOPIC", lambda record: record.topic),
    number("partition", None, lambda record: record.partition),
    number("offset", "OFFSET", lambda record: record.offset),
    Field("key", "KEY", lambda at: bytes_to_json(at.key), lambda at: escape_bytes(at.key)),
    text("transactional_id", "TXN ID", lambda record: record.transactional_id),
    text("outcome", "OUTCOME", lambda record: record.outcome),
    Field(
        "value",
        "READ_UNCOMMITTED",
        lambda at: bytes_to_json(at.value),
        lambda at: _show_value(at, True),
    ),
    flag("read_committed", None, lambda record: record.read_committed, "yes", "no"),
    Field(
        "committed_value",
        "READ_COMMITTED",
        lambda at: bytes_to_json(at.value) if at.read_committed else None,
        lambda at: _show_value(at, at.read_committed),
    ),
]


def _show_value(record: DemoRecord, shows: bool) -> str:
    return escape_bytes(record.value) if shows else "-"


def make_demo(
    session: Session,
    directory: Annotated[
        str | None,
        typer.Argument(metavar="[DIR]", help="A new or empty folder, or a URL."),
    ] = None,
) -> None:
    """Make a small store to look at. Shows what readers see of its transactions.

    One transaction over two topics and a group commits, one aborts, and one is left open as by
    a crash. Without DIR it is in a new temporary folder; nothing is ever overwritten, and
    TXNLOG_STORE is not touched.

    \b
    Example:
      txnlog demo
      txnlog demo ./demo-store
    """
    named = directory or session.explicit_url
    with _find_place(named) as url:
        made = _fill(url, {} if named is None else session.storage_options_of(named))
    with session.output.document() as document:
        document.fields(DEMO, made)
        document.rows("records", "What readers see", RECORDS, made.records)
    flush()
    print(_NEXT.format(url=shlex.quote(made.url)), file=sys.stderr)


@contextmanager
def _find_place(named: str | None) -> Iterator[str]:
    """The store's folder: a temporary one, deleted again if anything fails."""
    if named is not None:
        yield named
        return
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="txnlog-demo-"))
    try:
        yield str(folder / "store")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _fill(url: str, storage_options: dict[str, object]) -> Demo:
    """Raises StoreExists if the store has topics already; nothing is changed then."""
    import txnlog
    from txnlog.names import TopicPartition

    store = txnlog.open(url, create=True, storage_options=storage_options)
    if store.topics.list():
        raise StoreExists(f"{store.url} has topics already; the demo needs a folder of its own")
    for topic in _TOPICS:
        store.topics.create(topic)
    with _begin(store, _COMMITTED) as producer:
        producer.send("orders", "2 teapots", "alice")
        producer.send("orders", "1 kettle", "bob")
        producer.send("payments", "40 EUR", "alice")
        producer.send("payments", "25 EUR", "bob")
        producer.send_offsets_to_transaction({TopicPartition("orders", 0): 1}, "billing")
        producer.commit_transaction()
    with _begin(store, _ABORTED) as producer:
        producer.send("orders", "9 samovars", "carol")
        producer.send("payments", "450 EUR", "carol")
        producer.flush()
        producer.abort_transaction()
    # Not closed, which would abort it: this is what a crash leaves.
    producer = _begin(store, _OPEN)
    producer.send("orders", "1 teacup", "dave")
    producer.flush()
    return Demo(store.url, _list_records(store))


def _begin(store: Store, transactional_id: str) -> Producer:
    producer = store.producer(transactional_id=transactional_id, transaction_timeout_ms=_TIMEOUT_MS)
    producer.init_transactions()
    producer.begin_transaction()
    return producer


def _list_records(store: Store) -> list[DemoRecord]:
    ids = {
        store.transactions.describe(name).producer_id: name
        for name in (_COMMITTED, _ABORTED, _OPEN)
    }
    everything = store.snapshot(_TOPICS, isolation_level="read_uncommitted")
    committed = store.snapshot(_TOPICS)
    found = []
    for topic in _TOPICS:
        visible = {*committed.scan(topic).to_arrow().column("offset").to_pylist()}
        placed = {
            offset: segment
            for segment in store.topics.segments(topic)
            for offset in range(segment.base_offset, segment.end_offset)
        }
        for row in everything.scan(topic).to_arrow().to_pylist():
            segment = placed[row["offset"]]
            found.append(
                DemoRecord(
                    topic=topic,
                    partition=row["partition"],
                    offset=row["offset"],
                    key=row["key"],
                    value=row["value"],
                    transactional_id=ids[segment.producer_id],
                    outcome=segment.outcome,
                    read_committed=row["offset"] in visible,
                )
            )
    return found
