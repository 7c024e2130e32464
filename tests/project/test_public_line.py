"""What users may rely on: the names of a few modules, and nothing behind them."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import typing
from functools import cached_property

import pandas as pd
import pyarrow.dataset
import pytest
from pyiceberg.catalog import Catalog

import txnlog
from txnlog import (
    Consumer,
    GroupAdmin,
    KafkaAdmin,
    MaintenanceAdmin,
    Producer,
    SchemaAdmin,
    Snapshot,
    Store,
    TableAdmin,
    TopicAdmin,
    TransactionAdmin,
    replication,
    results,
    values,
)
from txnlog.admin.maintenance import MaintenanceStep
from txnlog.kafka.folders import Progress
from txnlog.replication import Follower, Replicas, Standby

ADMINS = (
    TopicAdmin,
    GroupAdmin,
    TransactionAdmin,
    MaintenanceAdmin,
    TableAdmin,
    KafkaAdmin,
    SchemaAdmin,
)
PUBLIC = (
    "txnlog",
    "txnlog.bridge",
    "txnlog.errors",
    "txnlog.replication",
    "txnlog.results",
    "txnlog.spark",
    "txnlog.storage",
    "txnlog.testing",
    "txnlog.values",
)
INTERNAL = {
    "Committer": "a part of GroupMetadata that is for the producer alone",
    "Logs": "Store.logs is for the parts of txnlog that build on a store, and says so",
    "Storage": "Store.storage is one of the storages, whose interface is txnlog.storage's",
    "TopicView": "Snapshot.view is for Spark's planning",
    "PartitionView": "the same",
    "PartitionHead": "the same",
    "Segment": "the same",
    "StoredSegment": "the same",
    "KafkaFile": "the same",
    "RewrittenFile": "the same",
    "Rewrite": "the same",
    "Manifests": "the same: where a view looks its older segments up",
    "Settled": "the same",
}
"""Types that public methods return and that are no part of the line, and why."""


def returned_types(owner: type) -> dict[str, type]:
    """The classes of txnlog that the public methods and properties of a class return."""
    found: dict[str, type] = {}

    def collect(kind: object) -> None:
        if isinstance(kind, type) and kind.__module__.startswith("txnlog"):
            if kind.__name__ in found:
                return
            found[kind.__name__] = kind
            if dataclasses.is_dataclass(kind) or hasattr(kind, "__struct_fields__"):
                for name, field in typing.get_type_hints(kind).items():
                    if not name.startswith("_"):
                        collect(field)
        for part in typing.get_args(kind):
            collect(part)
        if isinstance(origin := typing.get_origin(kind), type):
            collect(origin)

    homes = (txnlog, results, replication, values)
    known = {name: getattr(home, name) for home in homes for name in home.__all__}
    known["MaintenanceStep"] = MaintenanceStep
    for name, member in inspect.getmembers(owner):
        function = member.fget if isinstance(member, property) else member
        function = function.func if isinstance(function, cached_property) else function
        if not name.startswith("_") and callable(function):
            names = {**known, "pd": pd, "pyarrow": pyarrow, "pa": pyarrow, "Progress": Progress}
            names["Catalog"] = Catalog
            collect(typing.get_type_hints(function, localns=names).get("return"))
    return found


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_there(module: str) -> None:
    """``__all__`` names what can be imported, sorted and once."""
    found = importlib.import_module(module)
    assert found.__all__ == sorted(set(found.__all__))
    assert all(getattr(found, name) is not None for name in found.__all__)


@pytest.mark.parametrize(
    "owner", [Store, *ADMINS, Producer, Consumer, Snapshot, Replicas, Standby, Follower]
)
def test_what_is_returned_has_a_public_name(owner: type) -> None:
    """The class of every result can be imported from one of the public modules."""
    line = {*txnlog.__all__, *txnlog.errors.__all__, *results.__all__}
    line |= {*replication.__all__, *values.__all__, *INTERNAL}
    assert returned_types(owner)
    assert returned_types(owner).keys() - line == set()


def test_a_store_has_few_names() -> None:
    """What is about topics, groups, transactions, tables has a place of its own."""
    names = [name for name in dir(Store) if not name.startswith("_")]
    assert len(names) <= 30, names


def test_results_are_what_is_returned() -> None:
    """And no classes that nobody meets."""
    owners = [Store, *ADMINS, Producer, Consumer, Snapshot, Replicas, Standby, Follower]
    met = {name for owner in owners for name in returned_types(owner)}
    # What a callback of ``Producer.send`` gets.
    assert {*results.__all__} - met == {"RecordMetadata"}


def test_results_are_the_classes_themselves() -> None:
    """A result's public name is its own name, so that messages and reprs say the same."""
    assert [
        name
        for of in (results, replication)
        for name in of.__all__
        if getattr(of, name).__name__ != name
    ] == []
