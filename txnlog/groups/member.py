"""A consumer's membership in its group: it joins, sends heartbeats, and takes part in assigning.

There is no leader. A member that sees that partitions must be assigned (with eager members also
that all are released) puts the next assignment; the first one counts. A member that sees another
silent for too long expires it; a wrong guess costs a rebalance, since commits are judged in the
log.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from txnlog import names
from txnlog.config import check_whole_number
from txnlog.errors import (
    FencedInstanceId,
    InconsistentGroupProtocol,
    InvalidOption,
    ObjectNotFound,
    UnknownMemberId,
)
from txnlog.groups.assignment import (
    Assignor,
    is_all_released,
    may_assign,
    members_that_released,
    plan_assignment,
)
from txnlog.groups.presence import (
    JoinGroup,
    LeaveGroup,
    Observer,
    OldRequests,
    delete_heartbeats,
    delete_requests,
    find_heartbeats,
    find_requests,
    newest_of,
    put_heartbeat,
)
from txnlog.limits import MOST_TIMEOUT_MS
from txnlog.log.group_log import SILENCE_REASON
from txnlog.log.open_logs import Logs
from txnlog.names import Heartbeat, TopicPartition, check_text
from txnlog.state.group import GroupState
from txnlog.state.membership import (
    AssignedTopic,
    Committer,
    GroupMember,
    Held,
    MembersExpired,
    Membership,
    PartitionsAssigned,
    RebalanceBegun,
    Silence,
)

_DELETED_TOGETHER = 8
"""How many of its own heartbeats a member leaves before it deletes them in one request."""
_REFRESHED_EVERY = 10
"""Heartbeats between looks at the group's log when no other member announces news."""
_PATIENCE = 2
"""Heartbeats for which a member leaves the next assignment to earlier members."""
_HURRY = 4
"""How many times more often a member looks during a rebalance."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """A consumer's settings for its group. Times in ms, as in :class:`txnlog.ConsumerConfig`."""

    assignors: tuple[Assignor, ...]
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    rebalance_timeout_ms: int
    instance_id: str
    client_id: str

    def __post_init__(self) -> None:
        for name in (
            "session_timeout_ms",
            "heartbeat_interval_ms",
            "max_poll_interval_ms",
            "rebalance_timeout_ms",
        ):
            check_whole_number(
                getattr(self, name), name, InvalidOption, least=1, most=MOST_TIMEOUT_MS
            )
        if self.heartbeat_interval_ms * 2 > self.session_timeout_ms:
            raise InvalidOption(
                f"heartbeat_interval_ms {self.heartbeat_interval_ms} is more than half of "
                f"session_timeout_ms {self.session_timeout_ms}: a third of it is usual"
            )
        for name, value in (
            ("group_instance_id", self.instance_id),
            ("client_id", self.client_id),
        ):
            if not isinstance(value, str) or len(value) > 249:
                raise InvalidOption(f"{name} must be a string of at most 249 characters")
            check_text(value, name, InvalidOption)


@dataclass(frozen=True, slots=True)
class MemberView:
    """What the group's log says about a member: what it owns, and since which generation.

    ``must_release`` is whether others wait for it to release something. ``is_member`` False: it was
    taken for dead, was removed, or has left.
    """

    generation: int
    owned: Mapping[TopicPartition, int]
    must_release: bool
    is_member: bool


class Member:
    """One member of a group, under an id that is used only once. Safe to use from several threads.

    Attributes:
        is_rebalancing: a rebalance was in progress when the log was last read.
    """

    def __init__(
        self, logs: Logs, group_id: str, settings: MemberSettings, topics: tuple[str, ...]
    ) -> None:
        self.group_id = group_id
        self.member_id = logs.clock.token()
        self.is_rebalancing = True
        self._logs = logs
        self._clock = logs.clock
        self._log = logs.group(group_id)
        self._settings = settings
        self._topics = topics
        self._lock = threading.RLock()
        self._begun = False
        """Whether it may be in the group, though it does not know of it yet."""
        self._joined = False
        self._left = False
        self._has_gone = False
        """Whether leaving is done with: until then it may be asked to leave again."""
        self._followed = 0
        self._beats: list[Heartbeat] = []
        self._beat_number = 0
        self._beaten_at_s = 0.0
        self._polled_at_s = 0.0
        self._viewed = -1
        self._viewed_left = False
        self._ready_for = 0
        self._observer = Observer()
        self._old_requests = OldRequests()
        self._asked: dict[str, int] = {}
        self._named = -1, -1, frozenset[str]()

    # -- for the consumer ------------------------------------------------------------------------

    @property
    def committer(self) -> Committer:
        """The identity by which it commits offsets of what it reads now."""
        return Committer(self.member_id, self._followed, self._settings.instance_id)

    @property
    def followed(self) -> int:
        """The generation that it follows."""
        return self._followed

    def polled(self) -> None:
        """Record that the application polls."""
        self._polled_at_s = self._clock.monotonic_s()

    def due_in_s(self) -> float:
        """The time until the next heartbeat, in s; 0 or less: it is due."""
        return self._beaten_at_s + self.pause_s() - self._clock.monotonic_s()

    def pause_s(self) -> float:
        """How long to wait between two heartbeats at present."""
        pause_s = self._settings.heartbeat_interval_ms / 1000
        return pause_s / _HURRY if self.is_rebalancing else pause_s

    def has_news(self) -> bool:
        """Whether the group's log has changed since :meth:`view`."""
        return self._log.folded != self._viewed or self._left != self._viewed_left

    def look_again(self) -> None:
        """The last view could not be acted on: it still counts as news."""
        self._viewed = -1

    def view(self) -> MemberView:
        """This member's partitions, as far as the log was read.

        Raises FencedInstanceId if a newer consumer has taken its instance id over.
        """
        with self._lock, self._log.lock:
            state = self._log.state
            group = state.membership
            self._viewed, self._viewed_left = state.next_entry, self._left
            held = group.members.get(self.member_id)
            if held is None:
                self._check_fenced(group)
                return MemberView(group.generation, {}, must_release=False, is_member=False)
            owned = {
                TopicPartition(topic, number): since
                for topic, numbers in held.owned.items()
                for number, since in numbers.items()
            }
            must_release = bool(held.revoking) and self._followed < held.revoked_in
            return MemberView(
                group.generation, owned, must_release=must_release, is_member=not self._left
            )

    def _check_fenced(self, group: Membership) -> None:
        instance_id = self._settings.instance_id
        if group.instance(instance_id) is not None:
            raise FencedInstanceId(
                f"group {self.group_id!r}: a newer consumer has joined with group_instance_id "
                f"{instance_id!r}; close this one, or give each consumer an id of its own"
            )

    # -- joining and leaving ---------------------------------------------------------------------

    def join(self) -> None:
        """Join the group, and assign partitions if no member has yet to release any.

        May be repeated after an error. Raises InconsistentGroupProtocol: the other members have no
        assignor in common with this one.
        """
        with self._lock:
            is_repeated, self._begun = self._begun, True
            while True:
                try:
                    was_first = self._put_joined()
                    break
                except UnknownMemberId:
                    if self._joined:
                        raise
                    # Others have joined it and then expired it before it knew.
                    self.member_id = self._clock.token()
            with self._log.lock:
                state = self._log.state
                self._followed = state.membership.generation
            self._joined = True
            self._observer.forget()
            # The writer for all assigns, if no member has yet to release; again if that failed.
            if was_first or is_repeated:
                self._look(at_once=True)
            if not self._beats:
                self._beat()

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Read other topics from now on. Raises UnknownMemberId if it is no longer a member."""
        with self._lock:
            self._topics = topics
            if self._joined and not self._left:
                self.is_rebalancing = True
                if self._put_joined():
                    self._look(at_once=True)

    def _put_joined(self) -> bool:
        """Put that it joins, unless it has joined; returns whether this member put it."""
        member = GroupMember(
            member_id=self.member_id,
            topics=self._topics,
            assignors=tuple(assignor.name for assignor in self._settings.assignors),
            cooperative=tuple(a.name for a in self._settings.assignors if a.cooperative),
            session_timeout_ms=self._settings.session_timeout_ms,
            rebalance_timeout_ms=self._settings.rebalance_timeout_ms,
            instance_id=self._settings.instance_id,
            client_id=self._settings.client_id,
            host=socket.gethostname(),
        )

        def judge(state: GroupState) -> GroupMember | None:
            known = state.membership.members.get(self.member_id)
            if known is not None and known.member == member:
                return None
            if known is None and (self._joined or self.member_id in state.membership.gone):
                self._check_fenced(state.membership)
                raise UnknownMemberId(
                    f"group {self.group_id!r} does not know this consumer any more; poll again"
                )
            state.membership.check_join(self.group_id, member)
            return member

        try:
            was_first = JoinGroup(self._log, judge).run()
        except InconsistentGroupProtocol:
            if not self._log.expire_dead_members():
                raise
            was_first = JoinGroup(self._log, judge).run()
        if was_first:
            self._logs.tidy([self._log])
        return was_first

    def close(self, reason: str) -> None:
        """Leave the group; a static member only stops its heartbeats, since it may return."""
        with self._lock:
            if not self._settings.instance_id:
                self.leave(reason)
            elif self._joined and not self._left:
                self._left = True
                delete_heartbeats(self._logs.storage, self.group_id, self._beats[:-1])

    def leave(self, reason: str) -> None:
        """Leave the group, and delete its files. To be repeated if it fails or is interrupted."""
        with self._lock:
            if not self._begun or self._has_gone:
                return
            self._left = True
            was_put = LeaveGroup(self._log, self.member_id, reason).run()
            self._has_gone = True
            delete_heartbeats(self._logs.storage, self.group_id, self._beats)
            self._beats = []
            if not was_put:
                return  # the writer for all tidies up
            self._logs.tidy([self._log])
            with self._log.lock:
                state = self._log.state
                is_last = not state.membership.members
            if is_last:
                left = self._logs.storage.list_names(names.group_members(self.group_id))
                delete_requests(self._log, find_requests(self.group_id, left))
                self._log.refresh()
                self._delete_strangers(find_heartbeats(left))

    # -- heartbeats ------------------------------------------------------------------------------

    def tick(self) -> None:
        """Put a heartbeat, and look at the others'. Once in a heartbeat interval.

        Leaves the group if the application has not polled for ``max_poll_interval_ms``.
        """
        with self._lock:
            now_s = self._clock.monotonic_s()
            if not self._joined or self._left:
                self._beaten_at_s = now_s  # there is nothing to do before the next poll
                return
            silent_ms = (now_s - self._polled_at_s) * 1000
            if silent_ms > self._settings.max_poll_interval_ms:
                self._beaten_at_s = now_s
                _logger.warning(
                    "a consumer of group %r did not poll for max_poll_interval_ms (%d): it leaves "
                    "the group; poll more often, with fewer records at a time",
                    self.group_id,
                    self._settings.max_poll_interval_ms,
                )
                self.leave("max.poll.interval.ms")
                return
            self._beat()
            self._look(at_once=False)

    def follow(self, generation: int, *, at_once: bool) -> None:
        """Announce that everything taken away up to a generation is released.

        ``at_once``: others wait for it.
        """
        with self._lock:
            self._followed = max(self._followed, generation)
            if at_once and not self._left:
                self._beat()
                self._look(at_once=True)

    def named_topics(self) -> frozenset[str]:
        """The topics that members subscribe to; the same object until that changes."""
        folded, joined, found = self._named
        if folded != self._log.folded:
            with self._log.lock:
                state = self._log.state
                members = state.membership.members.values()
                newest = max((held.joined_entry for held in members), default=-1)
                if newest != joined:  # a member names more topics only by joining again
                    found = frozenset().union(*(held.member.topics for held in members))
                self._named = state.next_entry, newest, found
        return found

    def saw_topics(self, asked: Collection[str], topics: Mapping[str, AssignedTopic]) -> None:
        """Have partitions reassigned if topics have changed since the last assignment.

        ``asked``: those that were looked for, of all subscribed ones. ``topics``: those found.
        """

        def differs(group: Membership) -> bool:
            return not group.changed and any(
                topics.get(topic) != group.topics.get(topic) for topic in asked
            )

        with self._log.lock:
            state = self._log.state
            if self.member_id not in state.membership.members or not differs(state.membership):
                return
        with self._lock:
            nonce = self._clock.token()

            def build(state: GroupState) -> RebalanceBegun | None:
                if not differs(state.membership):
                    return None
                return RebalanceBegun(
                    nonce, self._clock.now_ms(), self.member_id, "topics have changed"
                )

            self._log.append(build)
            self._look(at_once=True)

    def _beat(self) -> None:
        """Put the next heartbeat, and delete older ones now and then."""
        self._beaten_at_s = self._clock.monotonic_s()
        self._beat_number += 1
        next_entry = self._log.next_entry
        beat = Heartbeat(self.member_id, self._beat_number, self._followed, next_entry)
        self._beats.append(beat)
        now_ms = self._clock.now_ms()
        put_heartbeat(self._logs.storage, self.group_id, beat, now_ms)
        if len(self._beats) > _DELETED_TOGETHER:
            delete_heartbeats(self._logs.storage, self.group_id, self._beats[:-1])
            self._beats = self._beats[-1:]

    def _look(self, *, at_once: bool) -> None:
        """Look at all heartbeats, and at the log if there is news; then expire or assign if needed.

        ``at_once``: this member may just have released the last partition that others waited for.
        """
        began_s = self._clock.monotonic_s()
        shown = self._logs.storage.list_names(names.group_members(self.group_id))
        requests = find_requests(self.group_id, shown)
        delete_requests(self._log, self._old_requests.look(began_s, requests))
        beats = find_heartbeats(shown)
        newest = newest_of(beats)
        with self._log.lock:
            state = self._log.state
            known = {*state.membership.members}
            is_stale = any(beat.next_entry > state.next_entry for beat in newest.values())
        if is_stale or known != {*newest} or self._beat_number % _REFRESHED_EVERY == 0:
            self._log.refresh()
        self._observe(began_s, newest)
        expired = self._expire_silent(newest)
        if expired or at_once:
            self._delete_strangers(beats)
        assigned = self._assign(newest, at_once=at_once or expired)
        with self._log.lock:
            state = self._log.state
            group = state.membership
            self.is_rebalancing = group.status(has_offsets=True) in (
                "PreparingRebalance",
                "CompletingRebalance",
            )
            has_others = len(group.members) > 1
        if expired or assigned:
            self._logs.tidy([self._log])
            if has_others:
                self._beat()  # announces the news to them

    def _observe(self, began_s: float, newest: Mapping[str, Heartbeat]) -> None:
        with self._log.lock:
            state = self._log.state
            group = state.membership
            followed = {member_id: beat.followed for member_id, beat in newest.items()}
            released = members_that_released(group, followed)
            self._asked = {m: at for m, at in self._asked.items() if m in group.members}
            self._observer.look(
                began_s,
                newest,
                {
                    member_id: held.revoked_in
                    for member_id, held in group.members.items()
                    if held.revoking and member_id not in released
                },
                {
                    member_id: held.member.session_timeout_ms / 1000
                    for member_id, held in group.members.items()
                },
            )

    def _expire_silent(self, newest: Mapping[str, Heartbeat]) -> bool:
        """Expire members that are taken for dead; returns whether there are any."""
        with self._log.lock:
            state = self._log.state
            members = [*state.membership.members.values()]
        found = [*filter(None, (self._judge(held, newest) for held in members))]
        if not found:
            return False
        nonce = self._clock.token()

        def build(state: GroupState) -> MembersExpired | None:
            left = tuple(s for s in found if s.member_id in state.membership.members)
            if not left:
                return None
            return MembersExpired(nonce, self._clock.now_ms(), self.member_id, left)

        return self._log.append(build) is not None

    def _is_long_dead(self, beat: Heartbeat, held: Held) -> bool:
        """Whether by the storage's clock a heartbeat is older than the session timeout.

        Asked once about a member that was there before, when it has missed two heartbeats: so a
        process that restarts after a crash need not wait for its former self's session.
        """
        _, silent_s = self._observer.silence(beat.member_id)
        patience_s = 2 * self._settings.heartbeat_interval_ms / 1000
        was_asked = self._asked.get(beat.member_id) == beat.number
        if was_asked or silent_s < patience_s or not self._beats:
            return False
        self._asked[beat.member_id] = beat.number
        try:
            ours, theirs = (
                self._logs.storage.modified_ms(names.heartbeat(self.group_id, told))
                for told in (self._beats[-1], beat)
            )
        except ObjectNotFound:
            return False
        if ours is None or theirs is None:
            return False
        return ours - theirs > held.member.session_timeout_ms

    def _judge(self, held: Held, newest: Mapping[str, Heartbeat]) -> Silence | None:
        member = held.member
        if member.member_id == self.member_id:
            return None
        number, silent_s = self._observer.silence(member.member_id)
        if silent_s * 1000 > member.session_timeout_ms:
            return Silence(member.member_id, number, "session.timeout.ms")
        if member.member_id in newest and self._is_long_dead(newest[member.member_id], held):
            return Silence(member.member_id, number, SILENCE_REASON)
        if self._observer.holds_for(member.member_id) * 1000 > member.rebalance_timeout_ms:
            return Silence(member.member_id, number, "rebalance.timeout.ms")
        return None

    def _delete_strangers(self, beats: list[Heartbeat]) -> None:
        """Delete the files of former members.

        The log was read after the listing, and a member's first heartbeat comes after its entry: so
        a member that the log does not know has left for good.
        """
        with self._log.lock:
            state = self._log.state
            strangers = [b for b in beats if b.member_id not in state.membership.members]
        delete_heartbeats(self._logs.storage, self.group_id, strangers)

    # -- assigning -------------------------------------------------------------------------------

    def _assign(self, newest: Mapping[str, Heartbeat], *, at_once: bool) -> bool:
        """Put the next assignment if due and this member's turn; returns whether it was put."""
        followed = {member_id: beat.followed for member_id, beat in newest.items()}
        followed[self.member_id] = self._followed
        with self._log.lock:
            state = self._log.state
            group = state.membership
            is_first = next(iter(group.members), None) == self.member_id
            is_ready = self.member_id in group.members and may_assign(group, followed)
            # Partitions that others release at about the same time are given away together.
            at_once = at_once and (group.changed or is_all_released(group, followed))
            subscribed = {t for held in group.members.values() for t in held.member.topics}
        self._ready_for = self._ready_for + 1 if is_ready else 0
        if not is_ready or not (at_once or is_first or self._ready_for > _PATIENCE):
            return False
        topics = self._read_topics(sorted(subscribed))
        nonce = self._clock.token()

        def build(state: GroupState) -> PartitionsAssigned | None:
            group = state.membership
            if not {t for h in group.members.values() for t in h.member.topics} <= subscribed:
                return None  # another has joined, and assigns or is waited for
            plan = plan_assignment(group, followed, topics, self._settings.assignors)
            if plan is None:
                return None
            entry = PartitionsAssigned(
                nonce=nonce,
                at_ms=self._clock.now_ms(),
                by=self.member_id,
                generation=group.generation + 1,
                assignor=plan.assignor,
                topics=plan.topics,
                owners=plan.owners,
                released=plan.released,
            )
            violations = [*group.assignment_violations(entry)]
            assert not violations, violations
            return entry

        return self._log.append(build) is not None

    def _read_topics(self, subscribed: list[str]) -> dict[str, AssignedTopic]:
        """The existing ones of the topics, as they are now."""
        self._logs.storage.gather([self._logs.topic(topic).refresh for topic in subscribed])
        found = {}
        for topic in subscribed:
            log = self._logs.topic(topic)
            with log.lock:
                state = log.state
                if state.topic_id is not None:
                    found[topic] = AssignedTopic(state.topic_id, len(state.partitions))
        return found
