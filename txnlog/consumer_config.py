"""What a consumer may be told beyond its topics and its group: how it fetches and shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import ParamSpec, TypeVar

from txnlog.config import OnCorrupt, check_whole_number
from txnlog.errors import InvalidOption
from txnlog.groups.assignment import DEFAULT as DEFAULT_ASSIGNORS
from txnlog.groups.assignment import Assignors, check_assignors
from txnlog.groups.member import MemberSettings
from txnlog.read.consumer_reads import FetchSettings
from txnlog.read.topic_pattern import check_metadata_age

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Settings of a consumer that are seldom changed: Kafka's, in bytes and milliseconds.

        store.consumer("orders", group_id="etl", config=ConsumerConfig(client_id="host-7"))

    Attributes:
        fetch_min_bytes: a waiting poll returns nothing before this many bytes (as stored) have
            come, or ``fetch_max_wait_ms`` have passed since the first.
        fetch_max_bytes: at most this much is read ahead, or returned by ``poll_batches``.
        max_partition_fetch_bytes: as much of one partition, before the others have their turn.
        fetch_max_wait_ms: how often a waiting poll looks for more: one listing per topic.
        auto_commit_interval_ms: how often ``enable_auto_commit`` commits.
        group_instance_id: makes it a static member: back within the session timeout, it still has
            its partitions. Of two with one id the older one is fenced.
        client_id: a name that is shown to operators.
        partition_assignment_strategy: 'cooperative-sticky', 'sticky', 'range', 'roundrobin', an
            :class:`Assignor`, a function, or a list of these, the best first. All members must have
            one in common.
        session_timeout_ms: others take it for dead if it is silent for longer.
        heartbeat_interval_ms: how often it shows that it is alive, from a thread of its own.
        max_poll_interval_ms: it leaves when it has not polled for so long; others wait as long.
        metadata_max_age_ms: how soon a new topic that matches the pattern is read; a listing.

    Raises InvalidOption, which names the setting that is not valid.
    """

    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 50 << 20
    max_partition_fetch_bytes: int = 1 << 20
    fetch_max_wait_ms: int = 500
    auto_commit_interval_ms: int = 5000
    group_instance_id: str | None = None
    client_id: str = ""
    partition_assignment_strategy: Assignors = DEFAULT_ASSIGNORS
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    metadata_max_age_ms: int = 300_000

    def __post_init__(self) -> None:
        least = {"fetch_min_bytes": 0, "fetch_max_bytes": 1, "max_partition_fetch_bytes": 1}
        least |= {"fetch_max_wait_ms": 1, "auto_commit_interval_ms": 1}
        for name, smallest in least.items():
            check_whole_number(getattr(self, name), name, InvalidOption, least=smallest)
        check_metadata_age(self.metadata_max_age_ms)
        self.membership()

    def fetching(self, on_corrupt: OnCorrupt, *, as_json: bool) -> FetchSettings:
        """How it reads."""
        return FetchSettings(
            self.fetch_min_bytes,
            self.fetch_max_bytes,
            self.max_partition_fetch_bytes,
            self.fetch_max_wait_ms,
            on_corrupt,
            as_json,
        )

    def membership(self) -> MemberSettings:
        """How it is a member of its group. Raises InvalidOption."""
        return MemberSettings(
            assignors=check_assignors(self.partition_assignment_strategy),
            session_timeout_ms=self.session_timeout_ms,
            heartbeat_interval_ms=self.heartbeat_interval_ms,
            max_poll_interval_ms=self.max_poll_interval_ms,
            rebalance_timeout_ms=self.max_poll_interval_ms,
            instance_id=self.group_instance_id or "",
            client_id=self.client_id,
        )


_FIELDS = frozenset(field.name for field in fields(ConsumerConfig))


def names_config(make: Callable[P, R]) -> Callable[P, R]:
    """Let ``make`` refuse settings of ConsumerConfig as arguments, and say where they belong."""

    @wraps(make)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if misplaced := sorted(_FIELDS.intersection(kwargs)):
            config = f"ConsumerConfig({', '.join(f'{name}=...' for name in misplaced)})"
            raise InvalidOption(f"{', '.join(misplaced)}: give it as config=txnlog.{config}")
        return make(*args, **kwargs)

    return checked
