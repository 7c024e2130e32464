"""``txnlog txns producers``: the producers that a topic remembers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnlog.cli.input.options import TargetArgument
from txnlog.cli.input.places import parse_target
from txnlog.cli.output.fields import Field, number, text, time
from txnlog.cli.output.transaction_fields import transaction_ref
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.inspect.descriptions import ProducerDescription


FIELDS: list[Field[ProducerDescription]] = [
    text("topic", None, lambda producer: producer.topic),
    number("partition", "PART", lambda producer: producer.partition),
    number("producer_id", "PRODUCER", lambda producer: producer.producer_id),
    number("producer_epoch", "EPOCH", lambda producer: producer.producer_epoch),
    number("last_sequence", "LAST SEQ", lambda producer: producer.last_sequence),
    time("last_at_ms", "LAST WRITE", lambda producer: producer.last_at_ms, wide=True),
    transaction_ref("transaction", "OPEN TXN", lambda producer: producer.transaction),
    number("transaction_start_offset", "FROM", lambda known: known.transaction_start_offset),
]


def list_producers(
    session: Session,
    target: TargetArgument,
) -> None:
    """List the producers that a topic remembers, by partition.

    FROM is the first offset of the producer's open transaction. A producer is forgotten when
    it was idle for producer.id.expiration.ms.

    \b
    Example:
      txnlog txns producers orders:0
    """
    where = parse_target(target)
    found = session.open_to_read().transactions.producers(where.topic, where.partition)
    session.output.rows(FIELDS, found)
