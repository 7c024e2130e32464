"""What is idle for too long, and what nobody else ends: transactional ids and groups.

Ids are looked at one by one: a transaction whose producer is gone is ended, an idle id expires, and
the log of a dead one is removed. Any number of processes may do it at once, and stop anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from txnlog.admin.times import Times
from txnlog.clock import Moment
from txnlog.config import check_whole_number
from txnlog.errors import CorruptEntry, InvalidOption, ObjectNotFound, StorageError, TxnlogError
from txnlog.inspect.describe import describe_or_error
from txnlog.log.group_log import GroupLog
from txnlog.log.named_folders import list_groups
from txnlog.log.open_logs import Logs
from txnlog.log.transaction_log import Head
from txnlog.state.group import GroupState
from txnlog.state.transaction import IDLE, Outcome, Status, TransactionState, expire
from txnlog.storage.base import for_each

_MOST_UNREAD = 10
"""If so many ids cannot be read, the storage is away, or broken: the others are not asked for."""

TellTimes = Callable[[], Times]
"""Asks the storage, at the latest when it is needed."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """A transactional id or a consumer group that was idle for so long that it has expired."""

    kind: Literal["transactional id", "group"]
    name: str


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """A transaction that was ended (or would be), because its producer did not end it.

    ``reason`` is ``open past its timeout``: then it was aborted; or ``decided, not completed``.
    """

    transactional_id: str
    number: int
    outcome: Literal["commit", "abort"]
    reason: Literal["open past its timeout", "decided, not completed"]


def times_when_needed(logs: Logs, *, dry_run: bool = False) -> TellTimes:
    """Times for which the storage is asked once, when they are needed first.

    That takes a put: a dry run goes by this process's clock alone. Then what it tells is right if
    that clock is.
    """
    asked: list[Times] = []

    def tell() -> Times:
        if not asked:
            clock = logs.clock
            own = Times(clock, clock.now_ms()) if dry_run else Times.ask(logs.storage, clock)
            asked.append(own)
        return asked[0]

    return tell


def tend_ids(
    logs: Logs,
    times: TellTimes,
    *,
    idle_ms: int | None = None,
    ends: bool = True,
    expires: bool = True,
    dry_run: bool = False,
) -> Iterator[TransactionEnd | Expiry | TxnlogError]:
    """End the transactions that nobody ends, let idle ids expire, remove the logs of dead ones.

    ``idle_ms`` takes the place of the store's ``transactional.id.expiration.ms``. With ``expires``
    false the logs of dead ids stay, too.

    Yields each thing when it is done; the error of a transaction that could not be ended, or of an
    id that the storage does not give. A damaged id is left out: it stays for inspection, and blocks
    no other. Raises StorageError: some of it may be done.
    """
    config = logs.config
    if idle_ms is None:
        idle_ms = config.transactional_id_expiration_ms
    check_whole_number(idle_ms, "older_than_ms", InvalidOption, least=0)
    ids = logs.transactions.ids()
    heads = for_each(logs.storage, partial(_head_since, logs), ids)
    left = _MOST_UNREAD
    for since, head in heads:
        if isinstance(head, StorageError):
            left -= 1
            if not left:
                raise head
            yield head
            continue
        if head is None or isinstance(head, CorruptEntry):
            continue
        state = head.state
        if state.open or state.prepared:
            if ends:
                yield from _end(logs, head, since, dry_run=dry_run)
        elif not expires:
            continue
        elif state.status is Status.DEAD:
            if not dry_run and _is_idle(logs, head, times, config.left_over_age_ms):
                logs.transactions.remove(head)
        elif state.status in IDLE and _is_idle(logs, head, times, idle_ms):
            now_ms = logs.clock.now_ms()
            reason = (
                f"it was idle for {now_ms - state.updated_at_ms} ms; ids expire after {idle_ms} ms"
            )
            dead = expire(state, now_ms=now_ms, nonce=logs.clock.token(), reason=reason)
            if dry_run or logs.transactions.put(head.number + 1, dead, since):
                yield Expiry("transactional id", state.transactional_id)


def _head_since(
    logs: Logs, transactional_id: str
) -> tuple[Moment, Head | CorruptEntry | StorageError | None]:
    """The newest state, or why it cannot be read, and since when it is known."""
    since = logs.transactions.now()
    try:
        return since, logs.transactions.head(transactional_id)
    except (CorruptEntry, StorageError) as error:
        return since, error


def _end(
    logs: Logs, head: Head, since: Moment, *, dry_run: bool
) -> Iterator[TransactionEnd | TxnlogError]:
    state = head.state
    try:
        if not logs.settlement.is_left(head):
            return
        if not dry_run and logs.settlement.end_left(head, since) is None:
            return  # others were faster
    except TxnlogError as error:
        yield error
        return
    yield _describe_end(state)


def _describe_end(state: TransactionState) -> TransactionEnd:
    name, number = state.transactional_id, state.number
    if state.open:
        return TransactionEnd(name, number, "abort", "open past its timeout")
    outcome: Literal["commit", "abort"] = "commit" if state.outcome is Outcome.COMMIT else "abort"
    return TransactionEnd(name, number, outcome, "decided, not completed")


def _is_idle(logs: Logs, head: Head, times: TellTimes, age_ms: int) -> bool:
    """Whether the newest state of an id is older, whichever clock is wrong.

    By its writer's and ours, and by the storage's alone.
    """
    if logs.clock.now_ms() - head.state.updated_at_ms <= age_ms:
        return False  # without a request: most ids are in use
    try:
        put_ms = logs.transactions.created_ms(head.state.transactional_id, head.number)
    except ObjectNotFound:
        return False  # it has moved on meanwhile
    return times().was_put_before(age_ms, put_ms)


def expire_groups(
    logs: Logs, times: TellTimes, *, retention_ms: int | None = None, dry_run: bool = False
) -> Iterator[Expiry]:
    """Delete the groups that were idle for too long. See ``Store.groups.expire``.

    Raises StorageError: some of it may be done.
    """
    if retention_ms is None:
        retention_ms = logs.config.offsets_retention_ms
        if retention_ms < 0:
            return
    check_whole_number(retention_ms, "older_than_ms", InvalidOption, least=0)
    ids = list_groups(logs.storage)
    found = for_each(logs.storage, partial(describe_or_error, logs.fresh_group), ids)
    for group_id, log in zip(ids, found, strict=True):
        if isinstance(log, TxnlogError):
            continue  # a damaged group stays for somebody to look at, and stops no other
        is_old = partial(_is_old, log, times, retention_ms)
        if log.expire(is_old, silent_ms=retention_ms, dry_run=dry_run):
            yield Expiry("group", group_id)


def _is_old(log: GroupLog, times: TellTimes, age_ms: int, state: GroupState) -> bool:
    """Whether a group's last entry is older, whichever clock is wrong; see :func:`_is_idle`.

    That may be a commit, or that its last member left: as in Kafka the time begins then.
    """
    if log.clock.now_ms() - state.log_time_ms <= age_ms:
        return False
    return times().was_put_before(age_ms, log.newest_put_ms())
