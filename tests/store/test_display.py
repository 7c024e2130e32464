"""What stores, topics, scans and results show of themselves: nothing read, everything escaped."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from txnlog import Store
from txnlog.display import table
from txnlog.storage import open_storage
from txnlog.storage.counting import CountingStorage
from txnlog.store import attach

HOSTILE = "<script>alert('&')</script>"


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Store:
    """A store with counted requests, three records and a group."""
    opened = attach(
        CountingStorage(open_storage(f"memory://display-{request.node.name}")),
        create=True,
        config={"offsets.retention.ms": 5},
    )
    opened.topics.create("orders", partitions=2)
    with opened.producer(transactional_id=HOSTILE) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(3):
            producer.send("orders", b"%d" % number, partition=0)
        producer.commit_transaction()
    with opened.consumer("orders", group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.poll()
        consumer.commit()
    return opened


def shown(store: Store) -> Mapping[str, tuple[object, str]]:
    """What is shown, and a part of its text."""
    where = pc.field("offset") > 0
    return {
        "store": (store, "offsets.retention.ms"),
        "snapshot": (store.snapshot("orders"), "read_committed"),
        "scan": (store.scan("orders", columns=["value"], filter=where), "orders"),
        "empty scan": (store.scan("orders", "latest"), "Scan"),
        "topic": (store.topics.describe("orders"), "orders"),
        "group": (store.groups.describe("g"), "orders"),
        "transaction": (store.transactions.describe(HOSTILE), "CompleteCommit"),
    }


def test_nothing_is_read_to_show_something_and_everything_is_escaped(store: Store) -> None:
    """A notebook shows what was asked for already; names are somebody else's text."""
    all_of_it = shown(store)
    counting = store.storage
    assert isinstance(counting, CountingStorage)
    counting.take()
    for name, (each, part) in all_of_it.items():
        html = each._repr_html_()  # type: ignore[attr-defined]
        assert part in html, name
        assert html.startswith("<table><caption>"), name
        assert "<script>" not in html, name
        assert html.count("<table>") == html.count("</table>") >= 1, name
        assert len(repr(each)) < 4_000, name
    assert counting.take() == {}
    assert "&lt;script&gt;alert(&#x27;&amp;&#x27;)" in all_of_it["transaction"][0]._repr_html_()  # type: ignore[attr-defined]


def test_reprs_say_what_it_is(store: Store) -> None:
    """One line: the topic, the offsets, how many records, the columns."""
    assert repr(store.scan("orders", {0: 1, 1: 0}, columns=["value"])) == (
        "Scan('orders', offsets {0: [1, 3), 1: [0, 0)}, 2 records at most, columns value)"
    )
    assert "filtered" in repr(store.scan("orders", filter=pc.field("offset") > 0))
    assert repr(store.scan("orders", "latest")).startswith("Scan(nothing, offsets {0: [3, 3)")
    assert repr(store.snapshot("orders")) == (
        "Snapshot(['orders'], isolation_level='read_committed', consistency='instant')"
    )


def test_reprs_do_not_grow_with_what_they_are_of(store: Store) -> None:
    """Wide schemas, many partitions, large records, many segments: a line, or a screen of them."""
    columns = pa.schema([(f"column_{number}", pa.int64()) for number in range(300)])
    store.topics.create("wide", schema=columns, key=["column_0"])
    store.topics.create("many", partitions=300)
    with store.producer() as producer:
        producer.send(
            "many", b"x" * 100_000, "k" * 100_000, partition=7, headers=[("h", b"y" * 9999)]
        )
    consumer = store.consumer("many", group_id="g", auto_offset_reset="earliest")
    [record] = consumer.poll()
    snapshot = store.snapshot(["wide", "many"])
    spec = store.logs.topic_spec("wide")
    for each, part in (
        (record, "offset=0"),
        (spec, "column_0 int64"),
        (spec.schema, "version=0"),
        (store.topics.describe("wide"), "column_0 int64"),
        (consumer, "many"),
        (consumer.group_metadata(), "300 partitions"),
        (snapshot, "wide"),
        (snapshot.scan("wide"), "column_0"),
        (snapshot.scan("many"), "7: [0, 1)"),
        (snapshot.view("many"), "300 partitions"),
    ):
        assert part in repr(each)
        assert len(repr(each)) < 2_000, type(each)
    consumer.close()


def test_credentials_show_nowhere(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Neither those among the options of a store nor those in its URL."""
    folder = tmp_path_factory.mktemp("store")
    made = attach(open_storage(f"file://{folder}"), create=True)
    made.topics.create("orders")
    scan = made.scan("orders")
    for each in (made, scan, made.snapshot("orders")):
        assert "hunter2" not in repr(each) + each._repr_html_()
    storage = open_storage("s3://bucket/store", {"key": "AKIA", "secret": "hunter2"})
    of_s3 = Store(storage, made._file, made.logs.clock)
    assert "hunter2" not in repr(of_s3) + of_s3._repr_html_()
    assert "AKIA" not in repr(of_s3) + of_s3._repr_html_()
    assert "s3://bucket/store" in of_s3._repr_html_()


def test_long_tables_are_cut() -> None:
    """A notebook is not to hold a million rows of a description."""
    html = table("many", ("n",), [(number,) for number in range(1_000)])
    assert html.count("<tr>") == 51
    assert html.endswith("<p>... and 950 more</p>")
