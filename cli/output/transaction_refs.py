"""How verbs show which transaction something belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnlog.cli.output.fields import Field, number, text

if TYPE_CHECKING:
    from txnlog.state.transaction import TransactionRef


def owner_fields() -> list[Field[TransactionRef]]:
    """What identifies a transaction."""
    return [
        text("transactional_id", "TRANSACTIONAL ID", lambda ref: ref.transactional_id),
        number("number", "NUMBER", lambda ref: ref.number),
        number("producer_id", "PRODUCER", lambda ref: ref.producer_id),
        number("producer_epoch", "EPOCH", lambda ref: ref.producer_epoch),
    ]
