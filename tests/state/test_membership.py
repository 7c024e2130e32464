"""The fold of members and owners: a random model of it, and what others must not do with it."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from txnlog.errors import TxnlogError
from txnlog.groups.assignment import BUILT_IN, plan_assignment
from txnlog.names import TopicPartition
from txnlog.state import group as kinds
from txnlog.state import membership
from txnlog.state.group import GroupEntry, GroupState, OffsetCommit, OffsetsCommitted
from txnlog.state.membership import (
    AssignedTopic,
    Committer,
    GroupMember,
    MembersExpired,
    Membership,
    MembersJoined,
    MembersLeft,
    Partitions,
    PartitionsAssigned,
    RebalanceBegun,
    Silence,
)
from txnlog.state.transaction import TransactionRef
from txnlog.storage import envelope

pytestmark = pytest.mark.rule("M1", "M2", "M4")

TOPICS = {"t": AssignedTopic("id-t", 5), "u": AssignedTopic("id-u", 3)}


class Believer:
    """A member as it goes: it reads the log late, and believes what it has read last."""

    def __init__(self, member: GroupMember) -> None:
        self.member = member
        self.owned: dict[TopicPartition, int] = {}
        self.followed = 0

    def read(self, group: Membership) -> None:
        held = group.members.get(self.member.member_id)
        if held is None:
            self.owned = {}
            return
        self.owned = {
            TopicPartition(topic, number): since
            for topic, numbers in held.owned.items()
            for number, since in numbers.items()
        }
        self.followed = group.generation


class Model:
    """A group whose members do what they may, in an order that chance gives."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.state = GroupState()
        self.believers: dict[str, Believer] = {}
        self.assignors = self.chance.choice(
            [("range",), ("sticky",), ("cooperative-sticky",), ("cooperative-sticky", "range")]
        )
        self.assigned = 0
        self.asked: list[tuple[int, GroupMember]] = []
        self.gone: set[str] = set()
        self.said: dict[str, int] = {}
        self.fulfilled = 0
        self.leaving: set[str] = set()

    @property
    def group(self) -> Membership:
        return self.state.membership

    def put(self, entry: Any) -> None:
        # As it travels: through the bytes of the log.
        data = envelope.encode(entry)
        self.state.apply(
            self.state.next_entry, envelope.decode(data, kinds.ENTRY_DECODER, "an entry")
        )

    def newcomer(self) -> GroupMember:
        number = len(self.believers)
        member = GroupMember(
            member_id=f"{number:032x}",
            topics=tuple(sorted(self.chance.sample(["t", "u"], self.chance.randint(1, 2)))),
            assignors=self.assignors,
            session_timeout_ms=1,
            rebalance_timeout_ms=1,
            cooperative=tuple(name for name in self.assignors if BUILT_IN[name].cooperative),
            instance_id=self.chance.choice(["", "", f"i{number % 3}"]),
            client_id="0",  # the number of what it has said of itself
        )
        self.believers[member.member_id] = Believer(member)
        return member

    def join(self) -> None:
        """A member joins, and puts the entry for others that asked, at any time, if allowed."""
        member = self.newcomer()
        some = [request for request in self.asked if self.chance.random() < 0.7]
        also = [m for at, m in some if self.group.may_join(m, at, self.state.next_entry)]
        joined = self.group.joinable("g", member, also)
        self.put_joined(*joined)
        for one in joined:
            self.believers[one.member_id].followed = self.group.generation
        self.fulfilled += len(joined) - 1

    def ask(self) -> None:
        """A process asks to join: a new one, or a member that subscribes to something else."""
        asks = self.newcomer() if self.chance.random() < 0.5 else self.another_subscription()
        if asks is not None:
            self.asked.append((self.state.next_entry, asks))

    def another_subscription(self) -> GroupMember | None:
        if not self.group.members:
            return None
        before = self.group.members[self.chance.choice([*self.group.members])].member
        return msgspec.structs.replace(
            before,
            topics=self.chance.choice([("t",), ("t", "u")]),
            client_id=f"{int(before.client_id) + 1}",
        )

    def subscribe(self) -> None:
        asks = self.another_subscription()
        if asks is not None:
            self.put_joined(asks)

    def put_joined(self, *joined: GroupMember) -> None:
        entry = MembersJoined("n", 0, joined)
        assert [*self.group.join_violations(entry)] == []
        self.put(entry)

    def remove(self) -> None:
        if self.group.members:
            member_id = self.chance.choice([*self.group.members])
            if self.chance.random() < 0.5:
                self.put(MembersLeft("n", 0, (member_id,), "closed"))
            else:
                self.put(MembersExpired("n", 0, "", (Silence(member_id, 3, "silent"),)))

    def ask_to_leave(self) -> None:
        if self.group.members:
            self.leaving.add(self.chance.choice([*self.group.members]))

    def leave(self) -> None:
        """A process puts the entry for those that asked, at any time, whatever they are by then."""
        some = [who for who in sorted(self.leaving) if self.chance.random() < 0.7]
        before = {*self.group.members}
        self.put(MembersLeft("n", 0, (*some,), "closed"))
        assert before - {*self.group.members} <= self.leaving

    def begin(self) -> None:
        self.put(RebalanceBegun("n", 0, "", "topics have changed"))

    def read(self) -> None:
        if self.believers:
            self.chance.choice([*self.believers.values()]).read(self.group)

    def assign(self) -> None:
        told = {
            member_id: believer.followed
            for member_id, believer in self.believers.items()
            if self.chance.random() < 0.8
        }
        assignors = [BUILT_IN[name] for name in self.assignors]
        plan = plan_assignment(self.group, told, TOPICS, assignors)
        if plan is None:
            return
        entry = PartitionsAssigned(
            "n", 0, "", self.group.generation + 1, plan.assignor, plan.topics, plan.owners,
            plan.released,
        )  # fmt: skip
        assert [*self.group.assignment_violations(entry)] == []
        self.put(entry)
        self.assigned += 1

    def check(self) -> None:
        """Each partition has one holder; who believes in one that is another's cannot commit it.

        Nobody comes back under an id that is gone, or says again what it has said before.
        """
        assert not self.gone & {*self.group.members}
        self.gone |= {*self.said} - {*self.group.members}
        for member_id, held in self.group.members.items():
            assert int(held.member.client_id) >= self.said.get(member_id, 0)
            self.said[member_id] = int(held.member.client_id)
        holders: dict[TopicPartition, str] = {}
        for member_id, held in self.group.members.items():
            for where in held.owned_partitions() | held.revoking_partitions():
                assert where not in holders
                holders[where] = member_id
        for member_id, believer in self.believers.items():
            committer = Committer(member_id, believer.followed, believer.member.instance_id)
            is_fenced = believer.member.instance_id and member_id not in self.group.members
            for where in believer.owned:
                try:
                    self.group.check_commit("g", committer, [where])
                except TxnlogError:
                    continue
                assert holders[where] == member_id
                assert not is_fenced
        copied = msgspec.json.decode(msgspec.json.encode(self.state), type=GroupState)
        assert copied == self.state

    def settle(self) -> None:
        """When everybody reads and tells, it comes to rest, and everything is somebody's."""
        for _ in range(4):
            for believer in self.believers.values():
                believer.read(self.group)
            self.chance = random.Random(1)
            self.chance.random = lambda: 0.0  # type: ignore[method-assign]
            self.assign()
        if self.group.members:
            assert self.group.status(has_offsets=False) == "Stable"
            read = {t for held in self.group.members.values() for t in held.member.topics}
            wanted = {TopicPartition(t, n) for t in read for n in range(TOPICS[t].partitions)}
            owned = [held.owned_partitions() for held in self.group.members.values()]
            assert set().union(*owned) == wanted


def test_a_random_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the order: disjoint owners, fenced commits, and rest in the end."""
    monkeypatch.setattr(membership, "MOST_BEHIND", 8)
    assigned = fulfilled = 0
    for seed in range(160):
        model = Model(seed)
        steps = [
            *(model.join, model.remove, model.begin, model.subscribe, model.ask),
            *(model.read, model.assign, model.ask_to_leave, model.leave),
        ]
        for _ in range(40):
            model.chance.choices(steps, [3, 1, 1, 1, 3, 8, 8, 1, 1])[0]()
            model.check()
        model.settle()
        model.check()
        assigned += model.assigned
        fulfilled += model.fulfilled
    assert assigned > 500
    assert fulfilled > 100


def member(member_id: str = "m") -> GroupMember:
    return GroupMember(member_id, ("t",), ("range",), 1, 1)


def test_what_a_fenced_instance_had_not_let_go_of_is_assigned_anew() -> None:
    """Its successor owns what it owned, and nobody would be told to assign the rest."""
    group = Membership()
    static, other = (
        msgspec.structs.replace(member(who), cooperative=("range",), instance_id=instance)
        for who, instance in (("m", "i"), ("o", ""))
    )
    group.fold(MembersJoined("n", 0, (static, other)), 0)
    for generation, numbers in ((1, (0, 1)), (2, (0,))):
        owned: dict[str, Partitions] = {"m": {"t": numbers}}
        group.fold(PartitionsAssigned("n", 0, "m", generation, "range", {}, owned), generation)
    assert group.members["m"].revoking == {"t": {1: 1}}
    assert group.status(has_offsets=False) == "CompletingRebalance"
    newer = msgspec.structs.replace(static, member_id="newer")
    group.fold(MembersJoined("n", 0, (newer,)), 3)
    assert group.members["newer"].owned == {"t": {0: 1}}
    assert group.status(has_offsets=False) == "PreparingRebalance"
    group.fold(PartitionsAssigned("n", 0, "o", 3, "range", {}, {"newer": {"t": (0,)}}), 4)
    group.fold(MembersJoined("n", 0, (msgspec.structs.replace(newer, member_id="newest"),)), 5)
    assert group.status(has_offsets=False) == "Stable"  # nothing was left over


def test_what_is_remembered_of_assignments() -> None:
    """Since when something is to be released; and how many partitions a topic had at first."""
    group = Membership()
    one = msgspec.structs.replace(member(), cooperative=("range",))
    group.fold(MembersJoined("n", 0, (one,)), 0)
    for generation, topic_id, numbers in (
        (1, "id", (0, 1)),
        (2, "id", (0,)),
        (3, "id", (0, 2)),
        (4, "recreated", (0,)),
        (5, "recreated", (0,)),
    ):
        topics = {"t": AssignedTopic(topic_id, generation + 1)}
        owned: dict[str, Partitions] = {"m": {"t": numbers}}
        group.fold(PartitionsAssigned("n", 0, "m", generation, "range", topics, owned), generation)
        first = AssignedTopic("id", 2) if generation < 4 else AssignedTopic("recreated", 5)
        assert group.first_assigned == {"t": first}
        taken_in = {1: 0, 2: 2, 3: 2, 4: 4, 5: 4}[generation]  # 2 takes 1 away, 4 takes 2
        assert group.members["m"].revoked_in == taken_in


def test_a_group_forgets_what_it_began_with_in_topics_that_it_left() -> None:
    """Its state does not grow with all topics that ever were; where it has offsets it remembers."""
    group = GroupState()
    moved = (OffsetCommit("committed", 0, 1, topic_id="committed"),)
    held = (OffsetCommit("pending", 0, 1, topic_id="pending"),)
    entries: list[GroupEntry] = [
        MembersJoined("n", 0, (member(),)),
        *(
            PartitionsAssigned(
                "n", 0, "m", generation, "range", {topic: AssignedTopic(topic, 1)}, {}
            )
            for generation, topic in enumerate(("left", "committed", "pending", "now"), 1)
        ),
    ]
    entries[3:3] = [OffsetsCommitted("n", 0, moved)]
    entries[5:5] = [OffsetsCommitted("n", 0, held, TransactionRef("p", 1, 0, 1))]
    for number, entry in enumerate(entries):
        group.apply(number, entry)
    assert {*group.membership.first_assigned} == {"committed", "pending", "now"}
    assert group.first_partitions("committed", "committed") == 1


def test_what_a_group_is_about() -> None:
    group = Membership()
    assert group.status(has_offsets=False) == "Dead"
    assert group.status(has_offsets=True) == "Empty"
    group.fold(MembersJoined("n", 0, (member(),)), 0)
    assert group.status(has_offsets=False) == "PreparingRebalance"
    group.fold(PartitionsAssigned("n", 0, "m", 1, "range", {}, {"m": {"t": (0, 1)}}), 1)
    assert group.status(has_offsets=False) == "Stable"
    group.fold(MembersLeft("n", 0, ("m",), ""), 2)
    assert group.status(has_offsets=False) == "Dead"
    assert group.generation == 1


@pytest.mark.parametrize(
    "entry",
    [
        PartitionsAssigned("n", 0, "", 1, "range", {}, {"m": {"t": (0,)}, "o": {"t": (0,)}}),
        PartitionsAssigned("n", 0, "", 1, "range", {}, {"x": {"t": (0,)}}),
        PartitionsAssigned("n", 0, "", 3, "range", {}, {"m": {"t": (0,)}}),
    ],
)
def test_assignments_that_break_the_first_rule(entry: PartitionsAssigned) -> None:
    group = Membership()
    group.fold(MembersJoined("n", 0, (member("m"), member("o"))), 0)
    assert [rule for rule, _ in group.assignment_violations(entry)] == ["M1"]


def test_an_assignment_that_takes_what_is_held() -> None:
    group = Membership()
    group.fold(MembersJoined("n", 0, (member("m"), member("o"))), 0)
    group.fold(PartitionsAssigned("n", 0, "", 1, "range", {}, {"m": {"t": (0,)}}), 1)
    stolen = PartitionsAssigned("n", 0, "", 2, "range", {}, {"o": {"t": (0,)}})
    assert [rule for rule, _ in group.assignment_violations(stolen)] == ["M2"]
