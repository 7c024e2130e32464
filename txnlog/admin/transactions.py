"""``Store.transactions``: look at transactions and their producers, and end them.

Listing and describing read the logs of transactional ids and change nothing. Methods that look at a
topic do as every reader does: they end transactions past their timeout.
"""

from __future__ import annotations

import builtins
import logging
import shlex
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from txnlog.admin.dry_run import logs_for, writes
from txnlog.admin.found import Found
from txnlog.arguments import names_wrong_arguments
from txnlog.config import check_whole_number
from txnlog.errors import (
    CommitStateUnknown,
    CorruptEntry,
    CorruptTransactionState,
    InvalidOption,
    InvalidTxnState,
    StorageError,
    TransactionalIdNotFound,
    TxnlogError,
)
from txnlog.inspect.describe import describe_or_error, describe_producers, describe_transaction
from txnlog.inspect.descriptions import (
    HangingTransaction,
    ProducerDescription,
    StableOffset,
    StableOffsetHolder,
    TransactionDescription,
)
from txnlog.inspect.history import transaction_history
from txnlog.log.named_folders import list_groups, list_topics
from txnlog.log.open_logs import Logs
from txnlog.log.settlement import CLOCK_MARGIN_MS
from txnlog.log.topic_log import TopicLog
from txnlog.log.transaction_log import Head
from txnlog.names import check_text
from txnlog.state.transaction import (
    Outcome,
    Status,
    TransactionRef,
    TransactionState,
)
from txnlog.storage.base import for_each

if TYPE_CHECKING:
    from txnlog.admin.expiry import TransactionEnd

_logger = logging.getLogger(__name__)


@names_wrong_arguments()
class TransactionAdmin:
    """What is done with transactions: :attr:`txnlog.Store.transactions`."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    # -- looking ---------------------------------------------------------------------------------

    def list(
        self, *, states: str | Iterable[str] | None = None, older_than_ms: int | None = None
    ) -> Found[TransactionDescription]:
        """The newest state of every transactional id, sorted by id, a few at a time.

        Args:
            states: only these states, such as ``["Ongoing", "PrepareCommit"]``.
            older_than_ms: only transactions that have been open for longer, and ids without an
                open one whose state has not changed for longer.

        A damaged id is an error, whatever states were asked for.
        """
        if older_than_ms is not None:
            check_whole_number(older_than_ms, "older_than_ms", InvalidOption, least=0)
        return Found(partial(self._list, _statuses(states), older_than_ms))

    def _list(
        self, wanted: set[str], older_than_ms: int | None
    ) -> Iterator[TransactionDescription | TxnlogError]:
        before_ms = self._logs.clock.now_ms() - (older_than_ms or 0)
        return (
            item
            for _, item in self._describe_each()
            if isinstance(item, TxnlogError)
            or (item.status in wanted and (older_than_ms is None or item.since_ms < before_ms))
        )

    def _describe_each(self) -> Iterator[tuple[str, TransactionDescription | TxnlogError]]:
        """The newest state of each transactional id, or its error."""
        ids = self._logs.transactions.ids()
        work = partial(describe_or_error, self.describe)
        for name, item in zip(ids, for_each(self._logs.storage, work, ids), strict=True):
            # One that was removed since it was listed is not damage.
            if not isinstance(item, TransactionalIdNotFound):
                yield name, item

    def describe(self, transactional_id: str) -> TransactionDescription:
        """The newest state of a transactional id. Raises TransactionalIdNotFound."""
        return describe_transaction(self._logs.transactions.describe(transactional_id))

    def history(
        self, transactional_id: str, *, newest: int | None = None
    ) -> Found[TransactionDescription]:
        """The states of a transactional id, oldest first, as far back as its log goes.

        With ``newest`` only that many of the last ones, and no others are read. Changes nothing.
        Iterating raises TransactionalIdNotFound if there is no such id.
        """
        if newest is not None:
            check_whole_number(newest, "newest", InvalidOption, least=1)
        storage, clock = self._logs.storage, self._logs.clock
        return Found(partial(transaction_history, storage, clock, transactional_id, newest))

    def producers(
        self, topic: str, partition: int | None = None
    ) -> builtins.list[ProducerDescription]:
        """The producers of a topic's partitions, as far as the topic remembers them.

        A producer is remembered for ``producer.id.expiration.ms`` and while it has an open
        transaction. Sorted by partition and producer id.

        Raises UnknownTopicOrPartition.
        """
        log = self._topic(topic, partition)
        return describe_producers(log, partition)

    def hanging(self) -> Found[HangingTransaction]:
        """Transactions that should have ended: open past their timeout, or decided, not finished.

        Also those that began further in the future than their timeout is long: their producer's
        clock is ahead. Changes nothing. An overdue transaction is ended by the next process that
        may write and reads one of its topics; one from the future when its timeout has passed by
        the storage's clock, and at once only by :meth:`abort`.

        Returns:
            The most overdue ones first. Damaged ids, which may hang too, are errors.
        """
        return Found(self._hanging)

    def _hanging(self) -> builtins.list[HangingTransaction | TxnlogError]:
        now_ms = self._logs.clock.now_ms()
        hanging = []
        damaged = []
        for name, found in self._describe_each():
            if isinstance(found, TxnlogError):
                damaged.append(_may_hang(name, found))
                continue
            hung = why_hanging(found, now_ms)
            if hung is not None:
                hanging.append(hung)
        return [*sorted(hanging, key=lambda item: -item.overdue_ms), *damaged]

    def stable_offsets(
        self, topic: str, partition: int | None = None
    ) -> builtins.list[StableOffset]:
        """Why the last stable offset of each partition (or of one) is where it is.

        It is the first offset of the first undecided transaction, or the end of the partition if
        there is none. The undecided transactions are listed in the order of their first offsets.

        Raises UnknownTopicOrPartition.
        """
        log = self._topic(topic, partition)
        with log.lock:
            state = log.state
            stable = state.last_stable_offsets()
            partitions = [
                (number, part.log_start_offset, stable[number], part.end_offset)
                for number, part in enumerate(state.partitions)
                if partition in (None, number)
            ]
            undecided = [entry for entry in state.recent if entry.number in state.undecided]
        heads: dict[str, Head | CorruptEntry | None] = {}
        found = []
        for number, start, last_stable, end in partitions:
            holders: dict[TransactionRef, StableOffsetHolder] = {}
            for entry in undecided:
                offset = entry.first_offsets.get(number)
                ref = entry.transaction
                if offset is None or ref is None or ref in holders:
                    continue
                name = ref.transactional_id
                if name not in heads:
                    heads[name] = self._head(name)
                holders[ref] = _describe_holder(ref, entry.number, offset, entry.at_ms, heads[name])
            found.append(StableOffset(topic, number, start, last_stable, end, (*holders.values(),)))
        return found

    def _topic(self, topic: str, partition: int | None) -> TopicLog:
        log = self._logs.fresh_topic(topic)
        if partition is not None:
            with log.lock:
                state = log.state
                state.check_partitions(topic, [partition])
        return log

    def _head(self, transactional_id: str) -> Head | CorruptEntry | None:
        try:
            return self._logs.transactions.head(transactional_id)
        except CorruptEntry as error:
            return error

    # -- ending ----------------------------------------------------------------------------------

    @writes
    def abort(
        self,
        transactional_id: str,
        *,
        reason: str,
        number: int | None = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> TransactionDescription:
        """Abort the open transaction of an id, and fence its producer.

        It is not an error if the transaction was aborted already. So the call can be repeated
        after a CommitStateUnknown; give ``number`` to be sure that no later transaction is hit.
        One that was decided, and that nobody has completed, is completed: if it is found committed,
        the result says ``CompleteCommit``, and nothing was aborted.

        Args:
            transactional_id: the id.
            reason: stored in the id's state, and shown to the producer when it is refused.
            number: abort only if this is the number of the id's transaction.
            dry_run: only check whether it could be aborted.
            force: also if the id's newest state is damaged, or the storage refuses it for good; a
                new state is written after it. If a commit marker shows that the transaction was
                committed, its commit is finished. Otherwise it is aborted, and a commit that only
                this state recorded is lost. Makes no difference if the state is sound.

        Raises:
            CorruptTransactionState: the newest state is damaged, and ``force`` was not given.
            TransactionalIdNotFound: there is no such id.
            InvalidTxnState: there is no open transaction, nor a decided one to complete; or it has
                another number.
            CommitStateUnknown: the storage failed; it may or may not be aborted.
        """
        if not isinstance(reason, str) or not reason.strip():
            raise InvalidOption(
                f"a reason is needed to abort a transaction of {transactional_id!r}"
            )
        check_text(reason, "reason", InvalidOption)
        transactions, settlement = self._logs.transactions, self._logs.settlement
        while True:
            since = self._logs.transactions.now()
            try:
                head = transactions.describe(transactional_id)
            except (CorruptTransactionState, StorageError) as error:
                if error.retriable or not force:
                    raise
                return describe_transaction(self._end_damaged(transactional_id, dry_run=dry_run))
            _check_abortable(head.state, number)
            if dry_run:
                return describe_transaction(head)
            try:
                if head.state.open:
                    aborted = settlement.abort_for_another(head, since, reason)
                    if aborted is None:
                        continue  # it has moved on meanwhile
                    head = aborted
                else:
                    transactions.confirm(head)  # it is told, and may not be durable
            except StorageError as error:
                raise CommitStateUnknown(
                    f"transaction {head.state.number} of {transactional_id!r} may or may not "
                    f"be aborted: {error}. Repeat it, with number={head.state.number}"
                ) from error
            if head.state.prepared:
                try:
                    done = settlement.finish(head, since)
                    head = done or transactions.describe(transactional_id)
                except StorageError as error:
                    _logger.warning("%s is decided but not finished: %s", head.state.ref, error)
            return describe_transaction(head)

    def _end_damaged(self, transactional_id: str, *, dry_run: bool) -> Head:
        """Put a state after a damaged newest one, and finish the end that it decides."""
        storage, settlement = self._logs.storage, self._logs.settlement
        everything = [self._logs.log("topic", name) for name in list_topics(storage)]
        everything += [self._logs.log("group", name) for name in list_groups(storage)]
        storage.gather([log.refresh for log in everything])
        undecided = {
            log.ref(number): ref
            for log in everything
            for number, ref in log.undecided().items()
            if ref.transactional_id == transactional_id
        }
        since = self._logs.transactions.now()
        head = settlement.end_damaged(transactional_id, undecided, force=True, dry_run=dry_run)
        if dry_run or not head.state.prepared:
            return head
        return settlement.finish(head, since) or head

    @writes
    def end_hanging(self, *, dry_run: bool = False) -> Found[TransactionEnd]:
        """End the transactions that their producers do not end, as ``Store.maintain`` does.

        Those open past their timeout are aborted, and their producers fenced; those decided and not
        completed are completed. Usually the next process that reads one of their topics does it,
        but it finds nothing to do if nothing was placed yet, or if all markers are there.

        Args:
            dry_run: only say which ones would be ended.

        Returns:
            What was ended; those that could not be are errors. Damaged ids are left out:
            :meth:`hanging` names them.

        Raises:
            StorageError: some may have been ended; call it again.
        """
        from txnlog.admin.expiry import Expiry, tend_ids, times_when_needed

        logs = logs_for(self._logs, dry_run=dry_run)
        times = times_when_needed(logs, dry_run=dry_run)
        found = tend_ids(logs, times, expires=False, dry_run=dry_run)
        return Found.done(one for one in found if not isinstance(one, Expiry))

    @writes
    def expire_ids(
        self, *, older_than_ms: int | None = None, dry_run: bool = False
    ) -> builtins.list[str]:
        """Forget transactional ids that were not used for ``transactional.id.expiration.ms``.

        Only ids whose last transaction has ended; idle by every clock: that of their producer, this
        process's and the storage's. Such an id is marked as dead first, which fences
        a producer that still has it. A later call removes its log, after ``log.cleanup.age.ms``, or
        a day if that is not set. Nothing expires in the background: ``Store.maintain`` does this,
        too. An id that is used again begins with a new producer id; the versions that its
        applications have committed are kept.

        Args:
            older_than_ms: instead of the store's ``transactional.id.expiration.ms``.
            dry_run: only say which ones would expire.

        Returns:
            The ids that are dead from now on.

        Raises:
            InvalidOption: ``older_than_ms`` is no number of at least 0.
            StorageError: some may have expired; call it again.
        """
        from txnlog.admin.expiry import Expiry, tend_ids, times_when_needed

        logs = logs_for(self._logs, dry_run=dry_run)
        times = times_when_needed(logs, dry_run=dry_run)
        found = [*tend_ids(logs, times, idle_ms=older_than_ms, ends=False, dry_run=dry_run)]
        for one in found:
            if isinstance(one, TxnlogError):
                raise one
        return [one.name for one in found if isinstance(one, Expiry)]


def _statuses(states: str | Iterable[str] | None) -> set[str]:
    known = [status.value for status in Status]
    if states is None:
        return {*known}
    wanted = {states} if isinstance(states, str) else {*states}
    for state in wanted:
        if state not in known:
            raise InvalidOption(f"{state!r} is not one of {', '.join(known)}")
    return wanted


def _check_abortable(state: TransactionState, number: int | None) -> None:
    """Raise InvalidTxnState unless this transaction can be aborted, or was."""
    if number is not None and state.number != number:
        raise InvalidTxnState(
            f"transactional id {state.transactional_id!r} is at transaction {state.number}, not "
            f"{number}; nothing was aborted"
        )
    if state.open or state.prepared:
        return
    if state.outcome is not Outcome.ABORT:
        raise InvalidTxnState(
            f"{state.ref} is {state.status.value}: there is no open transaction to abort"
        )


def why_hanging(found: TransactionDescription, now_ms: int) -> HangingTransaction | None:
    """Why a transaction should have ended; None if it should not."""
    if found.ends_by_ms is None:
        return None
    name, open_ = found.transactional_id, found.status == Status.ONGOING.value
    overdue_ms = now_ms - found.ends_by_ms
    if overdue_ms > (CLOCK_MARGIN_MS if open_ else 0):
        what = "open past its timeout" if open_ else "decided and not finished"
        reason = f"{what}: {overdue_ms} ms overdue"
        return HangingTransaction(
            found, overdue_ms, _say_what_ends(name, found.status, overdue=True), reason
        )
    ahead_ms = found.since_ms - now_ms
    if ahead_ms <= found.timeout_ms:
        return None  # clocks differ a little, and it still ends
    reason = f"its times lie in the future by {ahead_ms} ms: its producer's clock runs ahead"
    return HangingTransaction(found, 0, _say_what_ends(name, found.status, overdue=False), reason)


def _may_hang(transactional_id: str, error: TxnlogError) -> TxnlogError:
    """The error of an id whose newest state is damaged, with its name and what to do."""
    if not isinstance(error, CorruptEntry):
        return error
    return CorruptTransactionState(
        f"transactional id {transactional_id!r} may hang, since its newest state cannot be read: "
        f"{error}. Without a backup, `txnlog txns abort --force {shlex.quote(transactional_id)}` "
        "aborts its transaction, unless a marker shows that it was committed"
    )


def _describe_holder(
    ref: TransactionRef, entry: int, offset: int, at_ms: int, head: Head | CorruptEntry | None
) -> StableOffsetHolder:
    if isinstance(head, CorruptEntry):
        remedy = f"repairing the log of {ref.transactional_id!r}: {head}"
        return StableOffsetHolder(ref, entry, offset, at_ms, None, None, None, remedy)
    if head is None or head.state.ref.key != ref.key:
        # It has ended since the topic was looked at.
        return StableOffsetHolder(ref, entry, offset, at_ms, None, None, None, "the next read")
    found = describe_transaction(head)
    return StableOffsetHolder(
        ref,
        entry,
        offset,
        at_ms,
        found.status,
        found.started_at_ms,
        found.ends_by_ms,
        _say_what_ends(found.transactional_id, found.status, overdue=False),
    )


def _say_what_ends(transactional_id: str, status: str, *, overdue: bool) -> str:
    """What will end an open or prepared transaction, as text."""
    command = f"`txnlog txns abort {shlex.quote(transactional_id)}`"
    anybody = (
        "the next process that reads or writes one of its topics or groups, `txnlog maintain`, or "
        f"the next init_transactions() with {transactional_id!r}"
    )
    if status != Status.ONGOING.value:
        return (
            "it is decided; finished by the next process that finds an entry of it without a "
            f"marker, `txnlog maintain`, or the next init_transactions() with "
            f"{transactional_id!r}; {command} finishes it at once"
        )
    now = f"{command} ends it at once"
    if overdue:
        return f"aborted by {anybody}; {now}"
    return f"its producer's commit or abort; after its timeout, {anybody}; {now}"
