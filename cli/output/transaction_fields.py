"""How verbs show transactions, and the transaction that something belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from txnlog.cli.output.escape import Json, escape_text
from txnlog.cli.output.fields import Field, names, number, text, time, to_json

if TYPE_CHECKING:
    from txnlog.cli.output.output import Output
    from txnlog.inspect.descriptions import TransactionDescription
    from txnlog.state.transaction import EntryRef, TransactionRef

T = TypeVar("T")

REF: list[Field[TransactionRef]] = [
    text("transactional_id", "TRANSACTIONAL ID", lambda ref: ref.transactional_id),
    number("number", "NUMBER", lambda ref: ref.number),
    number("producer_id", "PRODUCER", lambda ref: ref.producer_id),
    number("producer_epoch", "EPOCH", lambda ref: ref.producer_epoch),
]
"""The identity of a transaction."""

SUMMARY: list[Field[TransactionDescription]] = [
    text("transactional_id", "TRANSACTIONAL ID", lambda txn: txn.transactional_id),
    text("state", "STATE", lambda txn: txn.status),
    number("number", "NUMBER", lambda txn: txn.number),
    number("producer_id", "PRODUCER", lambda txn: txn.producer_id, wide=True),
    number("producer_epoch", "EPOCH", lambda txn: txn.producer_epoch, wide=True),
    time("started_at_ms", "STARTED", lambda txn: txn.started_at_ms, wide=True),
    time("updated_at_ms", "UPDATED", lambda txn: txn.updated_at_ms),
    number("timeout_ms", "TIMEOUT MS", lambda txn: txn.timeout_ms, wide=True),
    names("topics", "TOPICS", lambda txn: txn.topics),
    names("groups", "GROUPS", lambda txn: txn.groups, wide=True),
]


def _show_versions(txn: TransactionDescription) -> str:
    shown = (f"{escape_text(name)}={version}" for name, version in sorted(txn.versions.items()))
    return ", ".join(shown) or "-"


DETAILS: list[Field[TransactionDescription]] = [
    *SUMMARY,
    number("log_entry", "LOG ENTRY", lambda txn: txn.log_entry),
    text("reason", "REASON", lambda txn: txn.reason or None),
    Field("versions", "VERSIONS", lambda txn: dict(txn.versions), _show_versions),
]
ENTRIES: list[Field[EntryRef]] = [
    text("log", "LOG", lambda entry: entry.log),
    text("name", "NAME", lambda entry: entry.name),
    number("entry", "ENTRY", lambda entry: entry.number),
]


def transaction_ref(
    title: str,
    get: Callable[[T], TransactionRef | None],
    *,
    wide: bool = False,
    elastic: int = 0,
) -> Field[T]:
    """A field for a transaction: all of its reference in JSON, id and number in a table."""

    def get_json(item: T) -> Json:
        ref = get(item)
        return None if ref is None else to_json(REF, ref)

    def show(item: T) -> str:
        ref = get(item)
        return "-" if ref is None else f"{escape_text(ref.transactional_id)} {ref.number}"

    return Field("transaction", title, get_json, show, wide=wide, elastic=elastic)


def print_transaction(output: Output, txn: TransactionDescription) -> None:
    """A transaction, and the entries that its commit covers."""
    with output.document() as document:
        document.fields(DETAILS, txn)
        document.rows("entries", "Entries of the commit", ENTRIES, txn.entries)
