"""A random model of names whose bytes are decided before they are put, and of data without a look.

A transactional id has a log; its writers, and those who help them, put Ongoing, PrepareCommit,
markers and CompleteCommit. Rules (what the real thing keeps, beside those of replicas as such):
 1. The bytes of a commit's marker, and of the state behind a prepared one, follow from the prepared
    state alone: no clock, no token. So they are put at the leader and at all others side by side;
    then the epochs are looked at. Whether such a name was taken is for the leader to say.
 2. If the leader has other bytes (somebody else's), members are compared with those. One that
    differs is out; the leader is, if all others in sync have what this one has, unless that was
    just put at it, since it lacked it.
 3. A state is believed to be everywhere only where its bytes were compared, never by a listing.
 4. Data is put without a look of its own. Any look that begins after it, and before something
    names it, will do; if it finds another epoch, the data is put anew under that one.

Roots crash and come back as new incarnations, processes stop, and sleep anywhere; elections are
clean and unclean. It shares no code with the library.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")
Member: TypeAlias = tuple[str, int]
Steps: TypeAlias = Generator[str, None, T]
Name: TypeAlias = tuple[str, int]
SLEEPS = "sleeps"
"""Where a process sleeps more often than elsewhere."""

ROOTS = "abc"
CONTROLLER = "ctl"
BROKEN = (
    "completes with a token of its own",
    "looks at the epochs before it puts what is decided",
    "leaves the look for data to the appends",
    "never looks for data",
    "puts what is decided at no member that joins",
    "compares with its own bytes",
    "believes a listing of states",
)
OLDER = ("compares with its own bytes", "believes a listing of states")
"""What is missed only where somebody completes with a token of his own, the leader first."""


class Violation(AssertionError):
    """A promise was broken."""


class Lost(Exception):
    """A request cannot be answered: what it was to do may be done."""


class Fails(Exception):
    """A member is down, or has other bytes than the leader under a name (``other``).

    ``lacked``: it had none before.
    """

    def __init__(self, member: Member, other: Name | None = None, *, lacked: bool = False) -> None:
        super().__init__(member)
        self.member = member
        self.other = other
        self.lacked = lacked


class State(NamedTuple):
    """A state of the transactional id."""

    status: str
    epoch: int
    number: int
    nonce: int
    entries: tuple[int, ...] = ()

    @property
    def is_prepared(self) -> bool:
        return self.status.startswith("Prepare")


class Append(NamedTuple):
    """An entry of the topic's log."""

    data: Name
    owner: int


class Epoch(NamedTuple):
    """Who leads, who is in sync (the leader first), who joins; who was in sync, and until when."""

    in_sync: tuple[Member, ...]
    joining: tuple[Member, ...]
    left: dict[Member, int]
    leader_since: int = 0
    elected_among: tuple[Member, ...] = ()
    unclean: int = -1

    @property
    def leader(self) -> Member:
        return self.in_sync[0]

    @property
    def others(self) -> tuple[Member, ...]:
        return (*self.in_sync[1:], *self.joining)

    @property
    def may_differ(self) -> bool:
        """Whether a member was in sync before this leader was, and may have what he never had."""
        return not {*self.elected_among}.isdisjoint(self.others)


class Process:
    """What one process knows: an epoch, names that are everywhere, its history."""

    def __init__(self, newest: int, history: int) -> None:
        self.known = newest
        self.everywhere: set[Name] = set()
        self.history = history


class Model:
    """One run. ``broken`` names a rule that is left out, one of BROKEN; ``older`` as OLDER says."""

    def __init__(self, seed: int, broken: str = "", *, older: bool = False) -> None:
        self.chance = random.Random(seed)
        self.broken = broken
        self.older = older
        first = tuple((root, 0) for root in ROOTS)
        self.held: dict[Member, dict[Name, object]] = {member: {} for member in first}
        self.epochs = [Epoch(first, (), {})]
        self.down: set[str] = set()
        self.tokens = 0
        self.acked: dict[Name, tuple[object, int]] = {}
        """By name what was acknowledged, and under which epoch."""
        self.shown: dict[Name, tuple[object, int]] = {}
        self.commits = self.aborts = self.elections = self.joined = self.unclean = 0
        self.data_again = self.taken = 0

    # -- requests --------------------------------------------------------------------------------

    def token(self) -> int:
        self.tokens += 1
        return self.tokens

    def at(self, member: Member) -> dict[Name, object]:
        if member[0] in self.down:
            raise Fails(member)
        return self.held[member]

    def put_same(self, member: Member, name: Name, data: object) -> Steps[None]:
        yield ""
        if self.at(member).setdefault(name, data) != data:
            raise Fails(member, name)

    def together(self, all_steps: Iterable[Steps[None]]) -> Steps[list[Fails | None]]:
        """Side by side, in any order; what each has failed with."""
        running = dict(enumerate(all_steps))
        failed: list[Fails | None] = [None] * len(running)
        while running:
            which = self.chance.choice(sorted(running))
            try:
                where = next(running[which])
            except StopIteration:
                del running[which]
            except Fails as error:
                failed[which] = error
                del running[which]
            else:
                yield where
        return failed

    def put_at_all(self, members: Iterable[Member], name: Name, data: object) -> Steps[None]:
        failed = yield from self.together(self.put_same(one, name, data) for one in members)
        for error in failed:
            if error is not None:
                raise error

    def help(self, epoch: Epoch, name: Name, data: object) -> Steps[None]:
        """Others are given what the leader has."""
        for member in epoch.others:
            yield ""
            found = self.at(member).get(name, data)
            if found != data:
                raise Fails(member, name)
            yield from self.put_same(member, name, data)

    # -- epochs ----------------------------------------------------------------------------------

    def look(self, me: Process) -> Steps[int]:
        yield ""
        if CONTROLLER in self.down:
            raise Lost
        me.known = len(self.epochs) - 1
        return me.known

    def propose(self, me: Process, number: int, epoch: Epoch) -> Steps[bool]:
        yield ""
        if CONTROLLER in self.down:
            raise Lost
        put = len(self.epochs) == number
        if put:
            self.epochs.append(epoch)
        me.known = len(self.epochs) - 1
        return put

    def gave_away(self, epoch: Epoch, member: Member, name: Name) -> Steps[bool]:
        """Whether all others in sync have what this one has: the leader may have lost that."""
        found = set()
        for one in epoch.in_sync[1:]:
            yield ""
            if one[0] in self.down:
                return False
            found.add(self.held[one].get(name))
        return member in epoch.in_sync and len(found) == 1

    def put_out(self, me: Process, gone: Member, only: int | None = None) -> Steps[None]:
        number = yield from self.look(me)
        if only not in (None, number):
            return
        epoch = self.epochs[number]
        left = {**epoch.left, **({gone: number} if gone in epoch.in_sync else {})}
        rest = tuple(member for member in epoch.in_sync if member != gone)
        if gone in epoch.joining:
            joining = tuple(member for member in epoch.joining if member != gone)
            yield from self.propose(me, number + 1, epoch._replace(joining=joining))
        elif gone == epoch.leader and rest:
            up = [member for member in rest if member[0] not in self.down]
            if up:
                leader = self.chance.choice(up)
                rest = (leader, *(member for member in rest if member != leader))
                new = Epoch(rest, (), left, number + 1, rest, epoch.unclean)
                self.elections += yield from self.propose(me, number + 1, new)
        elif gone in epoch.in_sync and rest:
            new = epoch._replace(in_sync=rest, left=left)
            yield from self.propose(me, number + 1, new)

    def settle(self, me: Process, step: Callable[[Epoch], Steps[T]]) -> Steps[T]:
        """A step under an epoch that is the newest one after it; else again."""
        while True:
            number = me.known
            epoch = self.epochs[number]
            if epoch.unclean != me.history:
                raise Lost
            try:
                result = yield from step(epoch)
            except Fails as failed:
                if failed.other is not None:
                    self.judge_useless(epoch, failed.member)
                    if not failed.lacked and (
                        yield from self.gave_away(epoch, failed.member, failed.other)
                    ):
                        yield from self.put_out(me, epoch.leader, number)
                        continue
                if failed.other is not None or self.chance.random() < 0.5:
                    yield from self.put_out(me, failed.member)
                else:
                    yield from self.look(me)
                continue
            if (yield from self.look(me)) == number:
                return result

    # -- the storage of storages -----------------------------------------------------------------

    def acknowledge(self, me: Process, name: Name, data: object) -> None:
        """What was put, and whoever has been told so, goes on from it."""
        me.everywhere.add(name)
        if name[0] != "data":
            self.acked[name] = data, me.known
        self.show(me, name, data)

    def show(self, me: Process, name: Name, data: object) -> None:
        if self.epochs[-1].unclean != me.history:
            return
        before, _ = self.shown.setdefault(name, (data, me.known))
        if before != data:
            raise Violation(f"two histories: {name} was {before}, and is {data}")

    def put_if_absent(self, me: Process, name: Name, data: object) -> Steps[bool]:
        """The leader first; True if it is ours."""
        won: set[Member] = set()

        def step(epoch: Epoch) -> Steps[bool]:
            if epoch.leader not in won:
                yield ""
                held = self.at(epoch.leader)
                if held.setdefault(name, data) != data:
                    yield from self.help(epoch, name, held[name])
                    return False
                won.add(epoch.leader)
                yield SLEEPS
            yield from self.put_at_all(epoch.others, name, data)
            return True

        ours = yield from self.settle(me, step)
        if ours:
            self.acknowledge(me, name, data)
        return ours

    def put_decided(self, me: Process, name: Name, data: object) -> Steps[bool]:
        """At all side by side; True if it is what the leader has."""
        lacked: set[Member] = set()

        def at_leader(leader: Member) -> Steps[None]:
            yield SLEEPS
            self.at(leader).setdefault(name, data)

        def at_follower(follower: Member) -> Steps[None]:
            yield ""
            if name not in self.at(follower):
                lacked.add(follower)
            if self.at(follower).setdefault(name, data) != data:
                raise Fails(follower, name)

        def step(epoch: Epoch) -> Steps[bool]:
            others = epoch.others
            if self.broken == "puts what is decided at no member that joins":
                others = epoch.in_sync[1:]
            puts = [at_leader(epoch.leader), *map(at_follower, others)]
            failed = yield from self.together(puts)
            yield SLEEPS
            if failed[0] is not None:
                raise failed[0]
            found = self.at(epoch.leader)[name]
            if found != data and self.broken != "compares with its own bytes":
                self.taken += 1
                for one in others:
                    if one in lacked:
                        raise Fails(one, name, lacked=True)
                yield from self.help(epoch, name, found)
                return False
            for error in failed:
                if error is not None:
                    raise error
            return found == data

        if self.broken == "looks at the epochs before it puts what is decided":
            ours = yield from self.settle_blindly(me, step)
        else:
            ours = yield from self.settle(me, step)
        if ours:
            self.acknowledge(me, name, data)
        return ours

    def settle_blindly(self, me: Process, step: Callable[[Epoch], Steps[T]]) -> Steps[T]:
        """The same without the look that comes last."""
        while True:
            number = yield from self.look(me)
            if self.epochs[number].unclean != me.history:
                raise Lost
            try:
                return (yield from step(self.epochs[number]))
            except Fails as failed:
                yield from self.put_out(me, failed.member)

    def list(self, me: Process, kind: str) -> Steps[list[int]]:
        """The numbers of a log's files; others are given what they lack."""

        def step(epoch: Epoch) -> Steps[tuple[Epoch, dict[Name, object]]]:
            yield ""
            there = {name: v for name, v in self.at(epoch.leader).items() if name[0] == kind}
            theirs = []
            for member in epoch.others:
                yield ""
                theirs.append({*self.at(member)})
            for name, data in sorted(there.items()):
                if name not in me.everywhere and any(name not in names for names in theirs):
                    yield from self.help(epoch, name, data)
            return epoch, there

        epoch, there = yield from self.settle(me, step)
        believed = kind != "id" or self.broken == "believes a listing of states"
        if believed and not epoch.may_differ:
            me.everywhere.update(there)
        return sorted(number for _, number in there)

    def read(self, me: Process, name: Name) -> Steps[object]:
        """What is known to be everywhere is read without a look; all else is compared first."""

        def step(epoch: Epoch) -> Steps[object]:
            yield ""
            data = self.at(epoch.leader)[name]
            yield from self.help(epoch, name, data)
            return data

        if name in me.everywhere:
            for member in self.epochs[me.known].in_sync:
                yield ""
                if member[0] not in self.down and name in self.held[member]:
                    data = self.held[member][name]
                    self.show(me, name, data)
                    return data
        data = yield from self.settle(me, step)
        me.everywhere.add(name)
        self.show(me, name, data)
        return data

    # -- the protocol ----------------------------------------------------------------------------

    def head(self, me: Process) -> Steps[tuple[int, State]]:
        numbers = yield from self.list(me, "id")
        if not numbers:
            return -1, State("Empty", -1, 0, 0)
        if numbers != [*range(len(numbers))]:
            if self.unclean:
                raise Lost  # somebody who helped under an old epoch has left it so
            raise Violation(f"a state is missing: {numbers}")
        data = yield from self.read(me, ("id", numbers[-1]))
        assert isinstance(data, State)
        return numbers[-1], data

    def finish(self, me: Process, number: int, state: State, *, older: bool = False) -> Steps[bool]:
        if state.status == "PrepareCommit":
            for entry in state.entries:
                yield from self.put_decided(me, ("commit", entry), (state.epoch, state.number))
        done = state._replace(status=state.status.replace("Prepare", "Complete"))
        if older or self.broken == "completes with a token of its own":
            done = done._replace(nonce=self.token())
        put = self.put_if_absent if older else self.put_decided
        return (yield from put(me, ("id", number + 1), done))

    def initialize(self, me: Process) -> Steps[tuple[int, State]]:
        while True:
            number, state = yield from self.head(me)
            if state.is_prepared:
                yield from self.finish(me, number, state)
                continue
            if state.status == "Ongoing":
                yield from self.abort(me, number, state)
                continue
            fresh = State("Empty", state.epoch + 1, state.number, self.token())
            if (yield from self.put_if_absent(me, ("id", number + 1), fresh)):
                return number + 1, fresh

    def abort(self, me: Process, number: int, state: State) -> Steps[None]:
        nonce = self.token()
        aborted = State("PrepareAbort", state.epoch + 1, state.number, nonce)
        if (yield from self.put_if_absent(me, ("id", number + 1), aborted)):
            self.aborts += 1
            yield from self.finish(me, number + 1, aborted)

    def put_data(self, me: Process, name: Name) -> Steps[int]:
        """At all members, without a look; the epoch under which that was done."""
        while True:
            number = me.known
            epoch = self.epochs[number]
            if epoch.unclean != me.history:
                raise Lost
            try:
                yield from self.put_at_all((*epoch.in_sync, *epoch.joining), name, "data")
            except Fails as failed:
                yield from self.put_out(me, failed.member)
            else:
                return number

    def again(self, me: Process, name: Name, number: int) -> Steps[None]:
        """Somebody has looked since: the data counts, or is put anew."""
        if me.known != number:
            self.data_again += 1
            yield from self.settle(
                me, lambda epoch: self.put_at_all((*epoch.in_sync, *epoch.joining), name, "data")
            )

    def transact(self, me: Process, number: int, state: State) -> Steps[tuple[int, State]]:
        data = ("data", self.token())
        under = yield from self.put_data(me, data)
        begun = State("Ongoing", state.epoch, state.number + 1, self.token())
        if not (yield from self.put_if_absent(me, ("id", number + 1), begun)):
            raise Lost
        if self.broken not in BROKEN[2:4]:
            yield from self.again(me, data, under)
        while True:
            entry = len((yield from self.list(me, "topic")))
            append = Append(data, begun.nonce)
            if (yield from self.put_if_absent(me, ("topic", entry), append)):
                break
        if self.broken == "leaves the look for data to the appends":
            yield from self.again(me, data, under)
        prepared = begun._replace(status="PrepareCommit", nonce=self.token(), entries=(entry,))
        if not (yield from self.put_if_absent(me, ("id", number + 2), prepared)):
            raise Lost
        self.commits += 1
        if not (yield from self.finish(me, number + 2, prepared)):
            raise Lost
        return number + 3, prepared._replace(status="CompleteCommit", entries=())

    # -- processes -------------------------------------------------------------------------------

    def begin(self) -> Process:
        newest = len(self.epochs) - 1
        return Process(newest, self.epochs[newest].unclean)

    def produce(self) -> Steps[None]:
        while True:
            me = self.begin()
            try:
                yield ""
                number, state = yield from self.initialize(me)
                while True:
                    yield ""
                    number, state = yield from self.transact(me, number, state)
            except Lost:
                pass

    def assist(self) -> Steps[None]:
        """Finishes what others have prepared, aborts what they have begun, and reads."""
        while True:
            me = self.begin()
            try:
                for _ in range(5):
                    yield ""
                    number, state = yield from self.head(me)
                    if state.is_prepared:
                        older = self.older and self.chance.random() < 0.7
                        yield from self.finish(me, number, state, older=older)
                    elif state.status == "Ongoing" and self.chance.random() < 0.1:
                        yield from self.abort(me, number, state)
                    for entry in (yield from self.list(me, "topic")):
                        if self.chance.random() < 0.2:
                            yield from self.read(me, ("topic", entry))
            except Lost:
                pass

    def join(self) -> Steps[None]:
        while True:
            me = self.begin()
            try:
                yield ""
                number = yield from self.look(me)
                epoch = self.epochs[number]
                here = {root for root, _ in (*epoch.in_sync, *epoch.joining)}
                away = [root for root in ROOTS if root not in here and root not in self.down]
                if not away:
                    continue
                root = self.chance.choice(away)
                member = root, max(of for name, of in self.held if name == root) + 1
                self.held[member] = {}
                joining = epoch._replace(joining=(*epoch.joining, member))
                if (yield from self.propose(me, number + 1, joining)):
                    yield from self.copy(me, member, epoch.leader_since)
            except (Lost, Fails):
                pass

    def copy(self, me: Process, member: Member, since: int) -> Steps[None]:
        leader = self.epochs[me.known].leader
        yield ""
        for name, data in list(self.at(leader).items()):
            yield from self.put_same(member, name, data)
        number = yield from self.look(me)
        epoch = self.epochs[number]
        if epoch.leader_since == since and member in epoch.joining:
            rest = tuple(one for one in epoch.joining if one != member)
            new = epoch._replace(in_sync=(*epoch.in_sync, member), joining=rest)
            self.joined += yield from self.propose(me, number + 1, new)

    def operate(self) -> Steps[None]:
        """Now and then all that is in sync is gone, and one that was out leads."""
        while True:
            yield ""
            number = len(self.epochs) - 1
            epoch = self.epochs[number]
            here = {root for root, _ in epoch.in_sync}
            able = [one for one in sorted(epoch.left) if one[0] not in self.down | here]
            if not able or self.chance.random() < 0.8:
                continue
            leader = max(able, key=lambda one: epoch.left[one])
            since = epoch.left[leader]
            left = {**{m: at for m, at in epoch.left.items() if m != leader}}
            left |= dict.fromkeys(epoch.in_sync, number)
            new = Epoch((leader,), (), left, number + 1, (), number + 1)
            self.epochs.append(new)
            self.unclean += 1
            self.acked = {name: at for name, at in self.acked.items() if at[1] <= since}
            self.shown = {name: at for name, at in self.shown.items() if at[1] <= since}

    # -- the judge -------------------------------------------------------------------------------

    def judge_useless(self, epoch: Epoch, member: Member) -> None:
        """Only who was in sync before the leader was can have what no leader has decided."""
        if epoch != self.epochs[-1]:
            return
        if not self.older and member not in epoch.elected_among:
            raise Violation(f"{member} is put out, and nobody has put other bytes: {epoch}")
        mine, leaders = self.held[member], self.held[epoch.leader]
        if all(leaders.get(name, data) == data for name, data in mine.items()):
            raise Violation(f"{member} is put out, and has what the leader has: {epoch}")

    def judge(self) -> None:
        epoch = self.epochs[-1]
        for member in epoch.in_sync:
            held = self.held[member]
            for name, (data, _) in self.acked.items():
                if held.get(name) != data:
                    raise Violation(f"{member} lacks {name} {data} in {epoch}: {held.get(name)}")
                if isinstance(data, Append) and data.data not in held:
                    raise Violation(f"{member} lacks {data}, which {name} names, in {epoch}")
            if not self.unclean:
                self.judge_states(member)

    def judge_states(self, member: Member) -> None:
        """In sync, each has a log without gaps, and a commit's markers before its completion."""
        held = self.held[member]
        before: State | None = None
        for number in range(sum(kind == "id" for kind, _ in held)):
            state = held.get(("id", number))
            if not isinstance(state, State):
                raise Violation(f"{member} lacks state {number}")
            if before is not None and before.is_prepared:
                done = before.status.replace("Prepare", "Complete"), before.number
                if (state.status, state.number) != done:
                    raise Violation(f"at {member} {state} follows {before}")
            if state.status == "CompleteCommit":
                for entry in state.entries:
                    if ("commit", entry) not in held:
                        raise Violation(f"{member} lacks the marker of {entry}, and has {state}")
            before = state

    def run(self, steps: int = 1200) -> Model:
        kinds = (self.produce, self.produce, self.assist, self.assist, self.join, self.operate)
        weights = (10, 10, 6, 6, 8, 0.15)
        running = [kind() for kind in kinds]
        asleep = [0] * len(kinds)
        for step in range(steps):
            if self.chance.random() < 0.03:
                which = self.chance.choice((*ROOTS, CONTROLLER))
                if which in self.down:
                    self.down.discard(which)
                elif len(self.down) < 1:
                    self.down.add(which)
            which_runs = self.chance.choices(range(len(kinds)), weights)[0]
            if asleep[which_runs] > step:
                continue
            if self.chance.random() < 0.004:
                running[which_runs] = kinds[which_runs]()
            where = next(running[which_runs])
            if self.chance.random() < (0.1 if where == SLEEPS else 0.02):
                asleep[which_runs] = step + self.chance.randrange(150)
            self.judge()
        return self
