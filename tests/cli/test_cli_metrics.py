"""``txnlog metrics``."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

import txnlog
from tests.support.cli.cli_command import cli
from txnlog.admin.metrics import MEANINGS, to_prometheus
from txnlog.metric import Metric


def read_samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Values by name and labels, as Prometheus' own parser reads them."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_are_what_prometheus_reads(store_path: Path) -> None:
    """Offsets, lag and what is open; each name has its meaning, and JSON has the same numbers."""
    found = read_samples(cli("metrics", "--store", store_path).out)
    paid = (("partition", "0"), ("topic", "paid"))
    assert found["txnlog_partition_end_offset", paid] == 3
    assert found["txnlog_partition_last_stable_offset", paid] == 2
    assert found["txnlog_topic_open_transactions", (("topic", "paid"),)] == 1
    of_group = (("group", "etl"), ("partition", "0"), ("topic", "orders"))
    assert found["txnlog_group_committed_offset", of_group] == 4
    assert found["txnlog_group_lag_records", of_group] == 6
    assert found["txnlog_group_trimmed_records", of_group] == 0
    assert found["txnlog_transactional_ids", (("state", "Ongoing"),)] == 1
    of_open = (("state", "Ongoing"), ("transactional_id", "open"))
    assert found["txnlog_transaction_open_seconds", of_open] >= 0
    assert found["txnlog_transaction_overdue_seconds", of_open] == 0
    assert {name for name, _ in found} == set(MEANINGS)
    rows = cli("metrics", "--store", store_path, "-o", "json").json()
    assert {(row["name"], tuple(sorted(row["labels"].items()))) for row in rows} == set(found)


def test_hostile_names_stay_labels() -> None:
    """Quotes, backslashes and new lines are escaped; offsets keep what floats hold."""
    hostile = 'a"} 1\n# \\'
    lines = to_prometheus([Metric("txnlog_group_lag_records", {"group": hostile}, 1 << 53)])
    assert read_samples("\n".join([*lines, ""])) == {
        ("txnlog_group_lag_records", (("group", hostile),)): float(1 << 53)
    }


def test_damage_is_counted_and_reported(own_store: Path) -> None:
    """Sound parts are printed; the exit code tells that not everything is sound."""
    for entry in (own_store / "topics" / "paid" / "log").iterdir():
        entry.write_bytes(b"{}")
    done = cli("metrics", "--store", own_store)
    assert done.code == 3
    assert "paid" in done.err
    found = read_samples(done.out)
    assert found["txnlog_unreadable", (("kind", "topic"),)] == 1
    assert found["txnlog_topic_log_entries", (("topic", "orders"),)] == 3
    assert txnlog.open(str(own_store)).topics.describe("orders").entries == 3
