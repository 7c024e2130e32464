"""One instance of a transactional id: the six steps of a transaction, as its producer takes them.

    1 init      put Empty with the next epoch: older instances are fenced
    2 begin     put Ongoing, naming the topics and groups that will be written to
    3 place     one append entry per topic, one offsets entry per group
    4 decide    put PrepareCommit with the exact list of those entries: this put is the commit
    5 mark      a control marker beside each entry
    6 complete  put CompleteCommit

Step 2 waits for the first placement, so a transaction costs three puts on its own log.
docs/PROTOCOL.md says what a crash at each step means.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

from txnlog.clock import Moment
from txnlog.errors import (
    CommitStateUnknown,
    ConcurrentTransactions,
    CorruptTransactionState,
    InvalidTxnState,
    ProducerFenced,
    StorageError,
    TxnlogError,
    UnknownTopicOrPartition,
)
from txnlog.log.open_logs import SKEW_MS, Logs
from txnlog.log.transaction_log import Head
from txnlog.log.uploads import Appended, UploadedSegment
from txnlog.names import TopicPartition, check_transactional_id
from txnlog.state import transaction as transitions
from txnlog.state.group import OffsetCommit
from txnlog.state.membership import Committer
from txnlog.state.transaction import (
    ConsumedOffset,
    EntryRef,
    Outcome,
    Status,
    TransactionState,
    Version,
)

_CLEAN_INTERVAL = 96
"""After this many states of an id, those of 32 transactions, a process cleans up its log."""
_MOST_WRITTEN = 10_000
"""Of more partitions it is not known any more whether they are written to for the first time."""

_logger = logging.getLogger(__name__)
commits_logger = logging.getLogger("txnlog.commits")
"""Logs each transaction that this process has decided, and each plain append."""

Segments = Mapping[str, Sequence[UploadedSegment]]
Offsets = Mapping[str, Sequence[OffsetCommit]]
Placed = dict[TopicPartition, list[range]]


@dataclass(frozen=True, slots=True)
class _Decision:
    """A decision that was or is about to be put; kept so that an unknown outcome can be learnt.

    It is ``in_doubt`` if a put of it failed, which may have landed. If ``cleaned_up``, the outcome
    can no longer be learnt, and the decision must not be put again. ``instead_of``: the commit in
    doubt that an abort is to prevent; it may have landed first.
    """

    number: int
    state: TransactionState
    since: Moment
    in_doubt: bool = False
    cleaned_up: bool = False
    instead_of: _Decision | None = None


class Coordinator:
    """The producer's side of the protocol for one instance of one transactional id.

    Not thread-safe: the producer lets one thread at a time in.
    """

    def __init__(self, logs: Logs, transactional_id: str, timeout_ms: int) -> None:
        self.transactional_id = check_transactional_id(transactional_id)
        self._timeout_ms = transitions.check_timeout(
            timeout_ms, logs.config.transaction_max_timeout_ms
        )
        logs.storage.will_write()
        self._logs = logs
        self._head: Head | None = None
        self._since = logs.transactions.now()
        self._entries: list[EntryRef] = []
        self._topic_ids: dict[str, str] = {}
        """By name, the topics to which this transaction has appended, or tried to."""
        self._decision: _Decision | None = None
        self._lost: set[str] = set()
        """Nonces of Ongoing states that may be, or become, the one after ``_head``."""
        self._tried: dict[str, int | None] = {}
        """What an initialisation has put, or tried to: by nonce, the epoch that it bumps to if it
        aborts an older instance's transaction."""
        self._owned_epoch: int | None = None
        self._written: set[TopicPartition] | None = None
        """The partitions that were written to with this epoch; None if not known."""
        self.decided: Outcome | None = None
        """The outcome of the current transaction, once it is certain."""

    # -- step 1 ----------------------------------------------------------------------------------

    def initialize(self, *, check: Callable[[TransactionState], None] | None = None) -> None:
        """Take the id over: end an older instance's transaction, and fence it.

        ``check``: called with the id's newest state before anything is put; raises to refuse.
        Raises StorageError: it can be called again, and continues where it stopped.
        """
        logs = self._logs
        transactions, settlement, clock = logs.transactions, logs.settlement, logs.clock
        while True:
            since = transactions.now()
            try:
                head = transactions.head(self.transactional_id)
            except CorruptTransactionState:
                settlement.end_damaged(self.transactional_id, {})
                continue
            head = head or transactions.expired(self.transactional_id)
            state = head.state if head else None
            if state is not None and check is not None:
                check(state)
            if head is not None and head.state.nonce in self._tried:
                # An earlier put of ours, whose response was lost.
                transactions.confirm(head)
                if head.state.status is Status.EMPTY:
                    self._initialized(head, since)
                    return
                self._owned_epoch = self._tried[head.state.nonce]
            if head is not None and head.state.open:
                aborted = transitions.prepare_abort(
                    head.state,
                    now_ms=clock.now_ms(),
                    nonce=clock.token(),
                    fence=True,
                    reason=transitions.NEWER_PRODUCER,
                )
                # At the last epoch there is no bump to own.
                bumped = aborted.producer_epoch > head.state.producer_epoch
                self._tried[aborted.nonce] = aborted.producer_epoch if bumped else None
                if transactions.put(head.number + 1, aborted, since):
                    self._owned_epoch = self._tried[aborted.nonce]
                    settlement.finish(Head(head.number + 1, aborted), since)
                continue
            if head is not None and head.state.prepared:
                settlement.finish(head, since)
                continue
            fresh = transitions.initialize(
                state,
                transactional_id=self.transactional_id,
                timeout_ms=self._timeout_ms,
                fresh_producer_id=transitions.new_producer_id(clock.token()),
                owned_epoch=self._owned_epoch,
                now_ms=clock.now_ms(),
                nonce=clock.token(),
            )
            self._tried[fresh.nonce] = None
            number = head.number + 1 if head else 0
            if transactions.put(number, fresh, since):
                self._initialized(Head(number, fresh), since)
                return

    def _initialized(self, head: Head, since: Moment) -> None:
        self._adopt(head, since)
        self._entries = []
        self._decision = None
        self.decided = None
        self._owned_epoch = None
        self._tried = {}
        self._written = set()
        self._clean()

    def resume(self) -> None:
        """Go on with the open transaction of this id, begun by another process of the same job.

        Raises InvalidTxnState: there is no open transaction.
        """
        self._since = self._logs.transactions.now()
        head = self._logs.transactions.describe(self.transactional_id)
        if not head.state.open:
            raise InvalidTxnState(
                f"transactional id {self.transactional_id!r} has no open transaction: it is "
                f"{head.state.status.value}. It was committed, aborted or timed out since it "
                "was begun; read again with the same transactional id to begin a new one"
            )
        self._head = head
        self._entries = []
        self._written = None

    @property
    def state(self) -> TransactionState:
        """The newest state that this instance knows of."""
        if self._head is None:
            raise InvalidTxnState(
                f"transactional id {self.transactional_id!r} is not initialised: "
                "call init_transactions() first"
            )
        return self._head.state

    @property
    def undecided(self) -> bool:
        """True if a decision was put and its outcome is unknown."""
        return self._decision is not None

    def left_ms(self) -> int | None:
        """How long the open transaction may still last; None if none is open."""
        state = self.state
        if not state.open or state.started_at_ms is None:
            return None
        return state.started_at_ms + state.timeout_ms - self._logs.clock.now_ms()

    def _first_of_epoch(self, topic: str, segments: Sequence[UploadedSegment]) -> frozenset[int]:
        """Of these partitions, the ones written to for the first time with this epoch."""
        if self._written is None:
            return frozenset()
        wanted = {TopicPartition(topic, segment.partition) for segment in segments}
        first = wanted - self._written
        self._written |= first
        if len(self._written) > _MOST_WRITTEN:
            self._written = None  # costs a look into manifests, at a first write
        return frozenset(partition for _, partition in first)

    # -- steps 2 and 3 ---------------------------------------------------------------------------

    def start(self) -> None:
        """A new transaction begins, though nothing is written yet."""
        self.decided = None

    def begin(self, consumed: Sequence[ConsumedOffset] = ()) -> None:
        """Put Ongoing at once, for a transaction that another process will continue."""
        self._logs.confirm_ends((read.topic, read.partition, read.end) for read in consumed)
        self._participate((), {c.group_id for c in consumed}, consumed)

    def place(
        self,
        segments: Segments,
        offsets: Offsets | None = None,
        committers: Mapping[str, Committer] | None = None,
        count: Callable[[], None] = lambda: None,
    ) -> Placed:
        """Append to the logs of topics and groups, joining them to the transaction first.

        At least one segment for each topic, and one offset for each group. ``committers``: by
        group, the member that has read; only members may move a group that has any. ``count`` has
        the uploads count, before anything names them; see Storage.count_later. Returns, by
        partition, the offsets that its segments were given.

        Raises ProducerFenced: a newer instance has taken over, or the transaction has timed out.
        InvalidTxnState: it is open for longer than any may be, though nobody has ended it.
        CommitFailed, ConcurrentTransactions, GroupNotEmpty: the group's offsets cannot be moved.
        UnknownTopicOrPartition: a topic is not there (any more), or is another one than that to
        which the transaction has appended before. TxnlogError: anything else that leaves only
        abort.
        """
        offsets, committers = offsets or {}, committers or {}
        topics = {name: self._logs.topic(name) for name in segments}
        groups = {name: self._logs.group(name) for name in offsets}
        if not topics and not groups:
            return {}
        self._check_same_topics(segments)
        self._check_age()
        joined = self.state.open and {*topics} <= {*self.state.topics}
        joined = joined and {*groups} <= {*self.state.groups}
        # One round: the id's state is checked or put while the logs are listed. If others append
        # all the time that is useless: then an append is proposed while the log is listed.
        refreshed = {name: not log.is_busy() for name, log in topics.items()}
        self._logs.storage.gather(
            [
                self._check_current if joined else lambda: self._participate(topics, groups),
                *[log.refresh for name, log in topics.items() if refreshed[name]],
                *[log.refresh for log in groups.values()],
            ]
        )
        count()
        self._logs.settlement.settle(list(groups.values()))
        ref = self.state.ref
        first = {name: self._first_of_epoch(name, segments[name]) for name in topics}
        appends: list[Appended | EntryRef] = self._logs.storage.gather(
            [
                *[
                    lambda log=log, name=name: log.place(
                        segments[name],
                        transaction=ref,
                        first_of_epoch=first[name],
                        refreshed=refreshed[name],
                    )
                    for name, log in topics.items()
                ],
                *[
                    lambda name=name: self._move(name, offsets[name], committers.get(name))
                    for name in groups
                ],
            ]
        )
        placed: Placed = {}
        for name, done in zip([*topics, *groups], appends, strict=True):
            if isinstance(done, EntryRef):
                self._entries.append(done)
                continue
            if done.entry is None:
                raise StorageError(
                    f"topic {name!r}: an append of {ref} was answered so late that cleaning has "
                    "passed it; abort the transaction"
                )
            self._entries.append(topics[name].ref(done.entry))
            for where, places in done.offsets.items():
                placed.setdefault(where, []).append(places)
        return placed

    def _move(
        self, group_id: str, offsets: Sequence[OffsetCommit], committer: Committer | None
    ) -> EntryRef:
        log = self._logs.group(group_id)
        move = partial(log.commit, offsets, transaction=self.state.ref, committer=committer)
        try:
            number = move(refreshed=True)
        except ConcurrentTransactions:
            # It may have been decided since the log was settled; a second look is final.
            self._logs.settlement.settle([log])
            number = move()
        assert number is not None  # all of them are compared
        return log.ref(number)

    def _participate(
        self, topics: Iterable[str], groups: Iterable[str], consumed: Sequence[ConsumedOffset] = ()
    ) -> None:
        self._finish_prepared()
        if not self.state.open:
            self._entries = []
        self._put(
            transitions.participate(
                self.state,
                topics=topics,
                groups=groups,
                consumed=consumed,
                now_ms=self._logs.clock.now_ms(),
                nonce=self._logs.clock.token(),
            )
        )

    def _check_same_topics(self, segments: Segments) -> None:
        """Raise UnknownTopicOrPartition for a topic that was recreated since an earlier append.

        What went to the one before was deleted with it: the new one would hold the rest alone.
        """
        if not self.state.open:
            self._topic_ids = {}
        for name, uploaded in segments.items():
            topic_id = uploaded[0].topic_id
            if self._topic_ids.setdefault(name, topic_id) != topic_id:
                raise UnknownTopicOrPartition(
                    f"topic {name!r} was deleted and recreated since {self.state.ref} has written "
                    "to it: what it wrote there is gone, and nothing was written to the new topic; "
                    "abort the transaction, and begin it again"
                )

    def _check_age(self) -> None:
        """Readers look for a transaction's appends no further apart than the longest timeout."""
        state, longest_ms = self.state, self._logs.config.transaction_max_timeout_ms
        if state.open and state.started_at_ms is not None:
            age_ms = self._logs.clock.now_ms() - state.started_at_ms
            if age_ms > longest_ms + SKEW_MS // 2:
                self._check_current()  # most likely others have ended it long ago
                raise InvalidTxnState(
                    f"{state.ref} was begun {age_ms} ms ago, and transaction.max.timeout.ms is "
                    f"{longest_ms}: nothing can be added to it any more; abort it"
                )

    def _check_current(self) -> None:
        """Raise ProducerFenced if the id's log has moved on without us."""
        assert self._head is not None
        newest = self._logs.transactions.head(self.transactional_id)
        if newest is None or newest.number != self._head.number:
            self._fenced(newest)

    # -- steps 4 to 6 ----------------------------------------------------------------------------

    def commit(self, *, version: Version | None = None) -> None:
        """Decide to commit everything that was placed, write the markers, complete.

        After an unknown outcome this may be called again, and reports the true one. ``version``: an
        idempotence version, recorded by the commit, even if nothing was placed.

        Raises ProducerFenced: nothing was committed. CommitStateUnknown: the storage failed during
        the decision.
        """
        if Outcome.ABORT in (self.decided, self._decision and self._decision.state.outcome):
            raise InvalidTxnState(
                f"{self.state.ref} cannot be committed: its abort was begun; "
                "call abort_transaction() again"
            )
        if self._decision is None:
            self._find_lost_begin()
            if not self.state.open and version is not None and self.decided is None:
                self._participate((), ())
            if not self.state.open:
                self._finish_quietly()
                return
            self._decide(
                transitions.prepare_commit(
                    self.state,
                    self._entries,
                    version=version,
                    now_ms=self._logs.clock.now_ms(),
                    nonce=self._logs.clock.token(),
                )
            )
        self._end()

    def abort(self) -> Outcome:
        """Decide to abort, write the markers, complete. Does nothing if nothing was begun.

        Returns how the transaction has ended: ``COMMIT`` if an earlier commit, whose outcome was
        unknown, has in truth succeeded. Raises ProducerFenced: a newer instance has taken over; it
        aborts or has aborted this. CommitStateUnknown: the storage failed during the decision.
        """
        self._find_lost_begin()
        if self.decided is Outcome.COMMIT:
            self._finish_quietly()
            return Outcome.COMMIT
        decision = self._decision
        if decision is not None and decision.state.outcome is Outcome.COMMIT:
            newest = self._logs.transactions.head(self.transactional_id)
            if newest is not None and newest.number >= decision.number:
                return self._end()
        if decision is None or decision.state.outcome is Outcome.COMMIT:
            if not self.state.open:
                return Outcome.ABORT
            self._decide(
                transitions.prepare_abort(
                    self.state,
                    now_ms=self._logs.clock.now_ms(),
                    nonce=self._logs.clock.token(),
                )
            )
        return self._end()

    def _end(self) -> Outcome:
        """Put the pending decision, or learn its outcome; then steps 5 and 6."""
        self._put_decision()
        assert self.decided is not None
        commits_logger.info(
            "%s: %s, %d entries",
            self.state.ref,
            self.decided.value,
            len(self._entries),
            extra={
                "transactional_id": self.transactional_id,
                "outcome": self.decided.value,
                "entries": len(self._entries),
            },
        )
        self._finish_quietly()
        return self.decided

    def _decide(self, state: TransactionState) -> None:
        assert self._head is not None
        number, instead_of = self._head.number + 1, self._decision
        self._decision = _Decision(number, state, self._since, instead_of=instead_of)

    def _put_decision(self) -> None:
        decision = self._decision
        assert decision is not None
        if decision.cleaned_up:
            self._refuse_to_tell(decision)
        transactions = self._logs.transactions
        since = transactions.now()
        newest: Head | None = None
        settled: Head | None = None
        counted: bool | None = False
        try:
            while not transactions.put(decision.number, decision.state, decision.since):
                since = transactions.now()
                newest = transactions.head(self.transactional_id)
                if newest is not None:
                    transactions.confirm(newest)
                    if newest.state.nonce in self._lost:
                        decision = replace(decision, number=newest.number + 1, since=since)
                        self._decision = decision
                        continue
                commit = decision.instead_of or decision
                if newest is not None and _settles(newest.state, decision.state):
                    settled = newest
                elif commit.state.outcome is Outcome.COMMIT:
                    counted = transactions.has_counted(
                        commit.number, commit.state, in_doubt=commit.in_doubt
                    )
                    if counted:
                        settled = Head(commit.number, commit.state)
                break
            else:
                settled = Head(decision.number, decision.state)
        except BaseException as error:
            self._decision = replace(decision, in_doubt=True)
            if not isinstance(error, StorageError):
                raise
            what = "commit" if decision.state.outcome is Outcome.COMMIT else "abort"
            raise CommitStateUnknown(
                f"the {what} of {decision.state.ref} may or may not have happened: {error}. "
                f"Nothing was deleted; call {what}_transaction() again to learn the outcome, or "
                "init_transactions() with the same transactional id, which settles it"
            ) from error
        if counted is None:
            # After a stall longer than the cleaning age there may be nothing left to distinguish a
            # put in time from one under a freed name (hazards 2 and 3).
            self._decision = replace(decision, in_doubt=True, cleaned_up=True)
            self._refuse_to_tell(decision)
        if settled is None:
            self._decision = None
            self._fenced(newest)
        self._adopt(settled, since)
        self.decided = settled.state.outcome
        self._decision = None

    @staticmethod
    def _refuse_to_tell(decision: _Decision) -> NoReturn:
        raise CommitStateUnknown(
            f"the commit of {decision.state.ref} may or may not have happened: it took so long "
            "that the entries that would tell were cleaned up. No records were deleted; close this "
            "producer, make a new one, call init_transactions(), and look at the topics"
        )

    def _finish_quietly(self) -> None:
        """Steps 5 and 6. The decision holds, so failures here are left to later processes."""
        try:
            self._finish_prepared()
        except (StorageError, ProducerFenced) as error:
            _logger.warning("%s is decided but not finished: %s", self.state.ref, error)
        written = {(entry.log, entry.name) for entry in self._entries}
        self._logs.tidy(self._logs.log(*name) for name in sorted(written))
        if not self.state.prepared:
            self._entries = []
        self._clean()

    def _finish_prepared(self) -> None:
        if self.state.prepared:
            assert self._head is not None
            since = self._logs.transactions.now()
            done = self._logs.settlement.finish(self._head, self._since, own=self._entries)
            if done is None:
                self._fenced(None)
            else:
                self._adopt(done, since)

    # -- the id's log ----------------------------------------------------------------------------

    def _put(self, state: TransactionState) -> None:
        assert self._head is not None
        transactions = self._logs.transactions
        number, built_on = self._head.number + 1, self._since
        since = transactions.now()
        earlier = {*self._lost}
        # Recorded before the put: an interrupt, even Ctrl-C, may come when it has landed already.
        self._lost.add(state.nonce)
        while not transactions.put(number, state, built_on):
            since = built_on = transactions.now()
            newest = transactions.head(self.transactional_id)
            if newest is None or newest.state.nonce not in earlier:
                self._lost = set()
                self._fenced(newest)
            # A late one of ours, under which nothing was placed: this one takes its place.
            number = newest.number + 1
        self._adopt(Head(number, state), since)

    def _find_lost_begin(self) -> None:
        """If our Ongoing, whose outcome was unknown, has landed, we must end it."""
        if self._lost:
            since = self._logs.transactions.now()
            newest = self._logs.transactions.head(self.transactional_id)
            if newest is not None and newest.state.nonce in self._lost:
                self._adopt(newest, since)
                self._decision = None

    def _adopt(self, head: Head, since: Moment) -> None:
        self._head = head
        self._since = since
        self._lost = set()

    def _fenced(self, newest: Head | None) -> NoReturn:
        ref = self.state.ref
        if newest is not None:
            transitions.check_owner(newest.state, ref.producer_id, ref.producer_epoch)
            if newest.state.status is Status.DEAD:
                expired = ProducerFenced(
                    f"transactional id {self.transactional_id!r} has expired: "
                    f"{newest.state.reason}; {transitions.FENCED_ADVICE}"
                )
                expired.ended_alone = True
                raise expired
        raise ProducerFenced(
            f"{ref} was ended by somebody else, who took it for dead; {transitions.FENCED_ADVICE}"
        )

    def _clean(self) -> None:
        """Keep the id's log short: at a process's first init, and then now and then."""
        head, transactions = self._head, self._logs.transactions
        cleaned = transactions.cleaned_at(self.transactional_id)
        if head is None or (cleaned is not None and head.number - cleaned < _CLEAN_INTERVAL):
            return
        try:
            transactions.clean(self.transactional_id, head.number)
        except TxnlogError as error:
            _logger.warning("old states of %r were not cleaned: %s", self.transactional_id, error)


def _settles(newest: TransactionState, decision: TransactionState) -> bool:
    """True if ``newest`` tells how the transaction of ``decision`` has ended.

    It had landed already, and another process has completed it for us; or it is an abort, and too
    late: the commit before it, thought lost, has landed.
    """
    if newest.ref.key != decision.ref.key:
        return False
    if decision.outcome is Outcome.ABORT and newest.outcome is Outcome.COMMIT:
        return True
    return (
        newest.producer_epoch == decision.producer_epoch
        and newest.outcome is decision.outcome
        and newest.entries == decision.entries
    )
