"""``txnlog groups`` on a group with members: who has what, why, and what is refused meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import txnlog
from tests.support.cli.cli_command import cli
from txnlog import ConsumerConfig


def show(store: Path, *arguments: str) -> Any:
    """What a verb of ``groups`` says in JSON."""
    return cli("groups", *arguments, "--store", store, "-o", "json").json()


@pytest.mark.condition(56)
def test_members_are_shown_and_removed(own_store: Path) -> None:
    """They are shown with what they have; the group is moved with force, or without them."""
    store = txnlog.open(str(own_store))
    consumer = store.consumer("orders", group_id="etl", config=ConsumerConfig(client_id="worker"))
    consumer.poll()
    (member,) = store.groups.describe("etl").members
    (listed,) = [found for found in show(own_store, "ls") if found["group_id"] == "etl"]
    assert (listed["state"], listed["member_count"]) == ("Stable", 1)
    state = show(own_store, "describe", "etl", "--state")
    assert state == {
        "group_id": "etl",
        "state": "Stable",
        "member_count": 1,
        "assignor": "cooperative-sticky",
        "generation": 1,
    }
    (shown,) = show(own_store, "describe", "etl", "--members")["members"]
    assert (shown["client_id"], shown["partition_count"]) == ("worker", 2)
    (shown,) = show(own_store, "describe", "etl", "--members", "--verbose")["members"]
    assert shown["partitions"] == ["orders:0", "orders:1"]
    assert (shown["topics"], shown["revoking"]) == (["orders"], [])
    wrong = cli("groups", "describe", "etl", "--verbose", "--store", own_store)
    assert (wrong.code, "--verbose needs --members" in wrong.err) == (2, True)
    seek = ("groups", "seek", "etl", "--to", "earliest", "--yes", "--store", own_store)
    refused = cli(*seek)
    assert refused.code == 1
    assert "1 live member(s)" in refused.err
    assert cli(*seek, "--force").code == 0
    assert store.groups.describe("etl").offsets[0].offset == 0
    assert cli("groups", "delete", "etl", "--yes", "--store", own_store).code == 1
    removed = show(own_store, "remove-members", "etl", member.member_id, "--yes")
    assert [one["member_id"] for one in removed] == [member.member_id]
    assert cli("groups", "delete", "etl", "--yes", "--store", own_store).code == 0
    log = show(own_store, "log", "etl")
    kinds = ["members-joined", "partitions-assigned", "offsets", "members-left", "deleted"]
    assert [entry["kind"] for entry in log][-5:] == kinds
    assert log[-5]["detail"].startswith("worker on ")
    assert (log[-4]["generation"], log[-4]["detail"]) == (1, "cooperative-sticky: 2")
    assert log[-3]["detail"] == "forced"
    assert log[-2]["detail"] == "removed by an operator"
    consumer.close()
