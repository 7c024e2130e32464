"""The phases of a producer: what it may do next, and the errors of calls out of order."""

from __future__ import annotations

from enum import Enum

from txnlog.errors import IllegalState, InvalidTxnState, TxnlogError


class Phase(Enum):
    """A producer's phase. The values are for messages."""

    NEW = "not initialised"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    FAILED = "in a transaction that can only be aborted"
    UNKNOWN = "in a transaction whose outcome is unknown"
    FENCED = "fenced"
    BROKEN = "broken: what was sent since the last flush is lost"
    CLOSED = "closed"

    def refusal(self, call: str) -> TxnlogError:
        """The error of a call that does not fit this phase."""
        if self is Phase.CLOSED:
            return IllegalState(f"{call}(): the producer is closed")
        return InvalidTxnState(f"{call}(): the producer is {self.value}; {_HINTS[self]}")


_HINTS = {
    Phase.NEW: "call init_transactions() first",
    Phase.READY: "call begin_transaction() first",
    Phase.IN_TRANSACTION: "commit or abort it first",
    Phase.FAILED: "call abort_transaction()",
    Phase.UNKNOWN: "call commit_transaction() or abort_transaction() again",
    Phase.FENCED: "close it; a newer instance has its transactional id",
    Phase.BROKEN: "make a new producer, and send again what was not flushed",
}
