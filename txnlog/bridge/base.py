"""What both directions share: who copies, from when on, and what follows a failure.

A bridge works in attempts. Each begins with the fence, which ends what an older process had open,
and then with the positions, which say what is there; so any failure is answered by the next one.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from txnlog.arguments import names_wrong_arguments
from txnlog.bridge.client import Cluster
from txnlog.clock import Clock
from txnlog.config import check_whole_number
from txnlog.errors import (
    BridgeFailed,
    InvalidOption,
    InvalidTopic,
    InvalidTxnState,
    ProducerFenced,
    TxnlogError,
)
from txnlog.names import TopicPartition, check_topic
from txnlog.store import Store

LOOK_S: Final = 1.0
"""How long records are waited for, before it is asked whether to stop."""
COPIED_CONFIG: Final = ("cleanup.policy", "max.message.bytes", "retention.bytes", "retention.ms")
"""Of a topic's settings those that mean the same in Kafka and in a store."""
_GROWN_AFTER_S: Final = 300.0
"""How often partitions that were added are looked for."""
_MOST_IDLE_MS: Final = 86_400_000
"""After which it begins again, with a producer that is used: an idle one's id expires, there after
a week, and in a store after ``transactional.id.expiration.ms``."""
_LEAST_IDLE_MS: Final = 600_000
"""More than the beginning takes, or it would never copy."""
_ATTEMPTS: Final = 5
_MOST_NAME: Final = 100
_MOST_INTERVAL_MS: Final = 300_000
"""Three times this is what brokers, and stores, allow a transaction at most."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BridgeCommit:
    """One transaction of a bridge.

    ``positions`` are the next offsets to be read, by partition of where the records come from, of
    those that moved. ``lag`` is how many offsets are still to be read there, as far as was known.
    """

    at_ms: int
    record_count: int
    positions: Mapping[TopicPartition, int]
    lag: int


@names_wrong_arguments()
class Bridge(ABC):
    """Copies topics between a store and topics of the same names of a Kafka cluster.

    Args:
        store: one side.
        servers: the other: ``broker:9092``, or several with commas; ``kafka://`` may stand before.
        topics: their names.
        name: of the bridge. Its positions are kept under it, and one process runs under it.
        options: of librdkafka, such as ``security.protocol``. They are in no message and no file.
        commit_interval_ms: how much time's records are in one transaction; 300,000 at most.
        skip_lost: go on behind records that were deleted before they were copied.

    Raises:
        InvalidOption, InvalidTopic: an argument is not valid, or the client is not installed.
    """

    _positions: str
    """The topic with the positions, which is no bridge's to copy."""

    def __init__(
        self,
        store: Store,
        servers: str,
        topics: Sequence[str],
        *,
        name: str = "bridge",
        options: Mapping[str, str] | None = None,
        commit_interval_ms: int = 10_000,
        skip_lost: bool = False,
    ) -> None:
        self.cluster = Cluster(servers, options)
        if not topics or isinstance(topics, str):
            raise InvalidOption("a bridge needs a list of topics, one at least")
        self.store = store
        self.topics = [*dict.fromkeys(map(check_topic, topics))]
        if any(topic.startswith(self._positions) for topic in self.topics):
            raise InvalidOption(f"topics like {self._positions!r} are bridges' own positions")
        self.name = check_bridge_name(name)
        self.interval_ms = check_whole_number(
            commit_interval_ms,
            "commit_interval_ms",
            InvalidOption,
            least=1,
            most=_MOST_INTERVAL_MS,
        )
        self.skip_lost = skip_lost

    @property
    def transaction_timeout_ms(self) -> int:
        """How long a transaction may take."""
        return max(60_000, 3 * self.interval_ms)

    def run(
        self,
        *,
        until_end: bool = False,
        report: Callable[[BridgeCommit], object] = lambda _: None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Copy.

        Args:
            until_end: stop when everything is copied that is there now; else it goes on.
            report: is told of each commit.
            is_stopped: asked about once a second; true ends it after a commit.

        Raises:
            BridgeFailed: Kafka does not answer when it begins, or refuses something, records were
                deleted that were not copied, or a newer instance has taken over.
            TxnlogError: the store failed.
        """
        self._check_store()
        self.cluster.check_answers()
        clock = self.store.logs.clock
        attempts = _ATTEMPTS

        def told(commit: BridgeCommit) -> None:
            nonlocal attempts
            attempts = _ATTEMPTS
            report(commit)

        while True:
            begun_s = clock.monotonic_s()
            try:
                if self._attempt(CopyProgress(self, until_end, told, is_stopped)):
                    return
            except TxnlogError as error:
                if isinstance(error, ProducerFenced) and not error.ended_alone:
                    told_why = f"bridge {self.name!r}: {error}; run it once at a time"
                    raise BridgeFailed(told_why) from error
                if clock.monotonic_s() - begun_s > self._sound_s:
                    attempts = _ATTEMPTS
                attempts -= 1
                if not _is_passing(error) or not attempts or is_stopped():
                    raise
                _logger.warning("bridge %s begins again: %s", self.name, error)
                clock.sleep(2.0 ** (_ATTEMPTS - attempts) * clock.jitter())

    @property
    def _sound_s(self) -> float:
        """How long (s) an attempt must last so that its failure counts as the first one again.

        No commit takes so long. An attempt with nothing to copy makes none, and failures that are
        far apart do not belong together.
        """
        return 2 * self.transaction_timeout_ms / 1000

    @abstractmethod
    def _check_store(self) -> None:
        """Raise if the store lacks what is to be copied."""

    @abstractmethod
    def _attempt(self, progress: CopyProgress) -> bool:
        """Copy until it is over, or (False) until it is to be begun anew.

        That is if a topic has more partitions, or nothing was copied for long.
        """


def _is_passing(error: TxnlogError) -> bool:
    """Whether another attempt may help: also after a transaction that outlived its timeout.

    It does so while a computer sleeps. Others have ended it, or the next attempt does.
    """
    return error.retriable or isinstance(error, InvalidTxnState | ProducerFenced)


def check_bridge_name(name: str) -> str:
    """A bridge's name, which becomes a part of a topic's. Raises InvalidOption."""
    try:
        check_topic(name)
    except InvalidTopic as error:
        raise InvalidOption(f"the name of a bridge is made as a topic's is: {error}") from error
    if len(name) > _MOST_NAME:
        raise InvalidOption(f"the name of a bridge has at most {_MOST_NAME} characters")
    return name


class CopyProgress:
    """When an attempt commits, and when it is over."""

    def __init__(
        self,
        bridge: Bridge,
        until_end: bool,
        report: Callable[[BridgeCommit], object],
        is_stopped: Callable[[], bool],
    ) -> None:
        self._clock: Clock = bridge.store.logs.clock
        self._interval_s = bridge.interval_ms / 1000
        self._until_end = until_end
        self._report = report
        self._is_stopped = is_stopped
        self._begun_s = self._looked_s = self._clock.monotonic_s()
        expires_ms = bridge.store.logs.config.transactional_id_expiration_ms
        self._idle_ms = max(min(_MOST_IDLE_MS, expires_ms // 2), _LEAST_IDLE_MS)
        self._used_ms = self._clock.now_ms()
        self._count = 0
        self._moved: dict[TopicPartition, int] = {}

    @property
    def is_open(self) -> bool:
        """Whether records were added since the last commit."""
        return self._count > 0

    @property
    def has_moved(self) -> bool:
        """Whether there is something to commit: records, or positions after other offsets.

        Offsets without records must be passed, too: else their deletion by retention would look
        like a loss of records.
        """
        return bool(self._moved)

    def add(self, count: int, positions: Mapping[TopicPartition, int]) -> None:
        """Count records of the transaction, and note the offsets after them.

        ``count`` is 0 where only markers or aborted records were passed.
        """
        if not self.has_moved:
            self._begun_s = self._clock.monotonic_s()
        self._count += count
        self._moved.update(positions)

    def is_over(self, *, at_end: bool) -> bool:
        """Whether to stop, after a commit."""
        return self._is_stopped() or (self._until_end and at_end)

    def is_due(self) -> bool:
        """Whether to commit."""
        return self.has_moved and self._clock.monotonic_s() - self._begun_s >= self._interval_s

    def is_idle(self) -> bool:
        """Whether the last commit was so long ago that the producer's id could expire.

        By the time of day, which goes on while a computer sleeps.
        """
        return not self.has_moved and self._clock.now_ms() - self._used_ms > self._idle_ms

    def may_have_grown(self) -> bool:
        """Whether it is time to look for partitions that were added."""
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s < _GROWN_AFTER_S:
            return False
        self._looked_s = now_s
        return True

    def moved(self) -> dict[TopicPartition, int]:
        """The positions to be committed."""
        return dict(sorted(self._moved.items()))

    def committed(self, lag: int) -> None:
        """Tell of a commit."""
        done = BridgeCommit(self._clock.now_ms(), self._count, self.moved(), lag)
        self._count = 0
        self._moved.clear()
        self._used_ms = done.at_ms
        self._report(done)
