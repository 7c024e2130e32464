"""Epochs, and how the next one follows from one: pure, no I/O.

A member is an *incarnation* of a root, called ``<root>-<number>``: a folder that was empty when an
epoch first named it. Nothing in it is ever changed. A root that was out of the set returns as
another member. Each epoch is complete, so nobody need read earlier ones.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Final, TypeAlias

import msgspec

from txnlog.config import Setting
from txnlog.errors import InvalidConfig, InvalidOption, InvalidTopic
from txnlog.limits import (
    AnyNumber,
    Counter,
    CounterOrNone,
    Incarnations,
    LongName,
    Name,
    Text,
    TimeMs,
)
from txnlog.names import check_topic

Member: TypeAlias = Name

MIN_INSYNC: Final = "min.insync.replicas"
LAG_TIME: Final = "replica.lag.time.max.ms"
UNCLEAN: Final = "unclean.leader.election.enable"
AUTO_RETURN: Final = "replica.auto.return"
FACTOR: Final = "replication.factor"
"""For all topics; with a dot and a topic's name after it, for that topic."""
PREFERRED: Final = "replica.preferred.leader"
SCRUB: Final = "replica.scrub.bytes"
RACK: Final = "replica.rack"
"""A prefix: a dot and a root's name follow."""
_ALL: Final = "all"
_FIRST: Final = "first"
_NONE: Final = "none"
_DEFAULTS: Final[Mapping[str, str]] = {
    MIN_INSYNC: "1",
    LAG_TIME: "10000",
    UNCLEAN: "false",
    AUTO_RETURN: "false",
    PREFERRED: _FIRST,
    FACTOR: _ALL,
    SCRUB: str(1 << 28),
}
_MEANINGS: Final[Mapping[str, str]] = {
    MIN_INSYNC: "with fewer roots in sync nothing is acknowledged",
    LAG_TIME: "a root that fails, or does not answer, for this long is put out",
    UNCLEAN: "whether a root that is not in sync may lead where no other one answers",
    AUTO_RETURN: "whether maintenance brings back roots that were put out and answer again",
    PREFERRED: "the root that leads after `replicas elect --preferred`: its name, or first",
    SCRUB: "how many bytes each run of maintenance compares at all roots together, or none",
    FACTOR: "at how many roots the data of topics is, or all",
}
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
DEFAULT_LAG_S: Final = int(_DEFAULTS[LAG_TIME]) / 1000
_LONGEST_LAG_S: Final = 86_400.0
"""A longer lag counts as this one: clocks only take limited times, and nobody waits longer."""
_SWITCHES: Final = (UNCLEAN, AUTO_RETURN)


class Root(msgspec.Struct, frozen=True):
    """A root: its URL, without credentials, and how many incarnations it has had."""

    url: Text
    incarnations: Incarnations = 1


class Left(msgspec.Struct, frozen=True):
    """A former member: it was in sync up to the epoch ``epoch``, and left at ``at_ms``."""

    epoch: Counter
    at_ms: TimeMs
    diverged: bool = False
    """Whether it left because it had other bytes than others: then its logs prove nothing."""


class FailedJoins(msgspec.Struct, frozen=True):
    """A root's failed attempts to join since it last did: how many, and when the last one was."""

    count: Counter
    at_ms: TimeMs


class Epoch(msgspec.Struct, frozen=True, tag_field="kind", tag="epoch"):
    """Which member leads, which are in sync, which are joining, and the settings."""

    number: Counter
    leader: Member
    """The member that decides races; one of ``in_sync``."""
    leader_since: Counter
    in_sync: Annotated[tuple[Member, ...], AnyNumber]
    """The members that have everything acknowledged."""
    joining: Annotated[dict[Member, Counter], AnyNumber]
    """Members that get all writes while they copy the rest: since which epoch each does so."""
    roots: Annotated[dict[Name, Root], AnyNumber]
    left: Annotated[dict[Member, Left], AnyNumber]
    """Former members, by name: an unclean election may elect one of these."""
    settings: Annotated[dict[LongName, Text], AnyNumber]
    """The settings that differ from their defaults."""
    at_ms: TimeMs
    """When the epoch was proposed, by the proposer's clock."""
    by: Name
    """A random token, by which a proposer recognises its own epoch."""
    why: Text
    store: Name
    """The store's identity: ``by`` of its first epoch. It is in members' marks, too."""
    unclean: Counter | None = None
    """After an unclean election: writes acknowledged from this epoch on may be lost; else None."""
    last_unclean: CounterOrNone = -1
    """The newest epoch that began with an unclean election; -1 if none did."""
    taken_out: Annotated[tuple[Name, ...], AnyNumber] = ()
    """Roots that an operator took out; only an operator brings them back."""
    controllers: Annotated[tuple[Text, ...], AnyNumber] = ()
    """The URLs at which epochs were decided, and last the one at which the next is.

    () if the controller has never moved.
    """
    failed_joins: Annotated[dict[Name, FailedJoins], AnyNumber] = {}
    """Roots whose last attempts to join failed, and which have not joined since."""
    before: Name = ""
    """``by`` of the epoch before this one; "" in the first."""

    @property
    def controller(self) -> str:
        """The URL at which the next epoch is decided; "" if that is where this one was found."""
        return self.controllers[-1] if self.controllers else ""

    @property
    def members(self) -> tuple[Member, ...]:
        """All members that get writes, in sync or joining; the leader first."""
        others = (member for member in (*self.in_sync, *self.joining) if member != self.leader)
        return (self.leader, *others)

    @property
    def min_insync(self) -> int:
        return int(self.settings.get(MIN_INSYNC, _DEFAULTS[MIN_INSYNC]))

    @property
    def lag_s(self) -> float:
        return min(int(self.settings.get(LAG_TIME, _DEFAULTS[LAG_TIME])) / 1000, _LONGEST_LAG_S)

    @property
    def scrub_bytes(self) -> int | None:
        """How many bytes a run of maintenance compares; None if it compares nothing."""
        text = self.settings.get(SCRUB, _DEFAULTS[SCRUB])
        return None if text == _NONE else int(text)

    @property
    def allows_unclean(self) -> bool:
        return self.settings.get(UNCLEAN, _DEFAULTS[UNCLEAN]) == "true"

    @property
    def returns_roots(self) -> bool:
        return self.settings.get(AUTO_RETURN, _DEFAULTS[AUTO_RETURN]) == "true"


DECODER = msgspec.json.Decoder(Epoch)


def check_epoch(epoch: Epoch, number: int) -> None:
    """Check an epoch that was read.

    Raises ValueError: it has another number, no leader in sync, or unknown members or roots.
    InvalidConfig, InvalidOption: its settings make no sense.
    """
    known = [*epoch.in_sync, *epoch.joining, *epoch.left]
    if epoch.number != number:
        raise ValueError(f"it says that it is epoch {epoch.number}")
    if epoch.leader not in epoch.in_sync:
        raise ValueError(f"its leader {epoch.leader} is not in sync")
    taking_part = [*epoch.in_sync, *epoch.joining]
    if len({*map(root_of, taking_part)}) != len(taking_part):
        raise ValueError("it names a root twice")
    for member in known:
        root = epoch.roots.get(root_of(member))
        if root is None or not 0 <= incarnation_of(member) < root.incarnations:
            raise ValueError(f"it tells of no incarnation {member}")
    check_settings(epoch.settings, epoch.roots)


def preferred_root(epoch: Epoch) -> str:
    """The root that should lead: the one that a setting names, else the first one that was added.

    Roots are called r0, r1 and so on in the order in which they were added.
    """
    chosen = epoch.settings.get(PREFERRED, _DEFAULTS[PREFERRED])
    first = min(epoch.roots, key=lambda root: (len(root), root))
    return chosen if chosen in epoch.roots else first


class Proposer(msgspec.Struct, frozen=True):
    """A proposal's token, time and reason."""

    by: Name
    at_ms: TimeMs
    why: Text


def root_of(member: Member) -> str:
    return member.rpartition("-")[0]


def incarnation_of(member: Member) -> int:
    return int(member.rpartition("-")[2])


def member_of(epoch: Epoch, root: str) -> Member | None:
    """A root's current member; None if the root is out."""
    return next((member for member in epoch.members if root_of(member) == root), None)


def counted_roots(epoch: Epoch) -> list[str]:
    """The roots without those that are gone for good: taken out, and with no former member left.

    Such a root can only come back by a later epoch, which others know before it is in sync.
    """
    there = {*map(root_of, (*epoch.in_sync, *epoch.joining, *epoch.left))}
    return [root for root in epoch.roots if root in there or root not in epoch.taken_out]


def by_last_in_sync(epoch: Epoch) -> list[Member]:
    """Former members in the order of unclean elections: the last one in sync comes first."""
    return sorted(epoch.left, key=lambda member: -epoch.left[member].epoch)


def of_this_history(epoch: Epoch) -> list[Member]:
    """The former members that were in sync since the last unclean election; last in sync first."""
    return [one for one in by_last_in_sync(epoch) if epoch.left[one].epoch >= epoch.last_unclean]


def may_be_asked(epoch: Epoch) -> list[Member]:
    """The former members that may be asked for decided objects: of this history, not diverged."""
    return [one for one in of_this_history(epoch) if not epoch.left[one].diverged]


def last_in_sync(epoch: Epoch, root: str) -> Member | None:
    """The former member of a root that was last in sync; None if there is none."""
    was = [member for member in epoch.left if root_of(member) == root]
    return max(was, key=lambda member: epoch.left[member].epoch, default=None)


def first_epoch(urls: Mapping[str, str], settings: Mapping[str, str], who: Proposer) -> Epoch:
    """The first epoch: every root has an empty incarnation, and all are in sync."""
    members = tuple(f"{name}-0" for name in urls)
    return Epoch(
        0,
        members[0],
        0,
        members,
        {},
        {name: Root(url) for name, url in urls.items()},
        {},
        dict(settings),
        who.at_ms,
        who.by,
        who.why,
        who.by,
    )


def _next(epoch: Epoch, who: Proposer, **changes: object) -> Epoch:
    told = {"number": epoch.number + 1, "at_ms": who.at_ms, "by": who.by, "why": who.why}
    told["before"] = epoch.by
    return msgspec.structs.replace(epoch, **{"unclean": None, **told, **changes})


def _left(epoch: Epoch, gone: Member, at_ms: int, diverged: bool) -> dict[Member, Left]:
    if gone not in epoch.in_sync:
        return epoch.left
    return {**epoch.left, gone: Left(epoch.number, at_ms, diverged)}


def without(epoch: Epoch, gone: Member, who: Proposer, *, diverged: bool = False) -> Epoch:
    """The next epoch, without a member. Raises ValueError: that one is the leader."""
    if gone == epoch.leader:
        raise ValueError(f"{gone} leads: another one must be elected")
    return _next(
        epoch,
        who,
        in_sync=tuple(member for member in epoch.in_sync if member != gone),
        joining={member: since for member, since in epoch.joining.items() if member != gone},
        left=_left(epoch, gone, who.at_ms, diverged),
    )


def elected(
    epoch: Epoch, leader: Member, who: Proposer, *, keep: bool = False, diverged: bool = False
) -> Epoch:
    """The next epoch, with another leader from the in-sync set.

    The old leader leaves the set, unless ``keep`` is true. All joining ends: a member that copied
    from the old leader may have more than the new one has. Raises ValueError: ``leader`` is not in
    sync, or leads already.
    """
    if leader not in epoch.in_sync or leader == epoch.leader:
        raise ValueError(
            f"{leader} cannot be elected in place of {epoch.leader}: it is not in sync"
        )
    in_sync = tuple(member for member in epoch.in_sync if keep or member != epoch.leader)
    return _next(
        epoch,
        who,
        leader=leader,
        leader_since=epoch.number + 1,
        in_sync=in_sync,
        joining={},
        left=epoch.left if keep else _left(epoch, epoch.leader, who.at_ms, diverged),
    )


def elected_unclean(epoch: Epoch, leader: Member, who: Proposer) -> Epoch:
    """The next epoch, led by a former member: writes acknowledged since it left may be lost.

    Raises ValueError: ``leader`` is not a former member.
    """
    left = dict(epoch.left)
    was = left.pop(leader, None)
    if was is None:
        raise ValueError(f"{leader} was never in sync, or is now: it cannot be elected like this")
    for gone in epoch.in_sync:
        left[gone] = Left(epoch.number, who.at_ms)
    return _next(
        epoch,
        who,
        leader=leader,
        leader_since=epoch.number + 1,
        in_sync=(leader,),
        joining={},
        left=left,
        unclean=was.epoch + 1,
        last_unclean=epoch.number + 1,
    )


def is_over(noted: Epoch, epoch: Epoch) -> bool:
    """Whether a noted epoch is void: a newer one names the same places of the controller, and more.

    If its number is as high as the newer one's, the controller was lost before anything was
    acknowledged under it.
    """
    before = noted.controllers
    return len(before) < len(epoch.controllers) and epoch.controllers[: len(before)] == before


def taken_out(epoch: Epoch, root: str) -> Epoch:
    """The given epoch, in which an operator has also taken a root out."""
    return msgspec.structs.replace(epoch, taken_out=(*epoch.taken_out, root))


def kept_out(epoch: Epoch, root: str, who: Proposer) -> Epoch:
    """The next epoch, in which a root that is out stays out, whatever the settings say."""
    return _next(epoch, who, taken_out=(*epoch.taken_out, root))


def forgotten(epoch: Epoch, member: Member, who: Proposer) -> Epoch:
    """The next epoch, in which a former member can no longer be elected. Raises ValueError."""
    if member in epoch.members:
        raise ValueError(f"{member} is a member")
    left = {other: was for other, was in epoch.left.items() if other != member}
    return _next(epoch, who, left=left)


def given_up(epoch: Epoch, member: Member, who: Proposer) -> Epoch:
    """The next epoch, without a former member whose root is lost for good.

    If the root is out, it counts as taken out from then on, so that its return is not tried again.
    """
    root = root_of(member)
    is_out = member_of(epoch, root) is None and root not in epoch.taken_out
    after = forgotten(epoch, member, who)
    return taken_out(after, root) if is_out else after


def configured(epoch: Epoch, settings: Mapping[str, str], who: Proposer) -> Epoch:
    """The next epoch, with other settings."""
    return _next(epoch, who, settings=dict(settings))


def decided_at(epoch: Epoch, url: str, who: Proposer, number: int = 0) -> Epoch:
    """The next epoch, which says that those after it are decided at ``url``.

    It has ``number`` if that is higher: lower ones may have been used by epochs that are lost.
    """
    number = max(number, epoch.number + 1)
    return _next(epoch, who, controllers=(*epoch.controllers, url), number=number)


def decided_again(epoch: Epoch, who: Proposer, number: int) -> Epoch:
    """The given epoch again, with a number that no other epoch has."""
    return _next(epoch, who, number=number)


def next_incarnation(epoch: Epoch, root: str) -> Member:
    """The member as which a root will join next."""
    known = epoch.roots.get(root)
    return f"{root}-{known.incarnations if known else 0}"


def joining(epoch: Epoch, member: Member, url: str, who: Proposer) -> Epoch:
    """The next epoch, from which on a new member gets all writes.

    Raises ValueError: its root takes part already, or this is not its next incarnation.
    """
    root = root_of(member)
    if any(root_of(other) == root for other in epoch.members):
        raise ValueError(f"{root} takes part already")
    if member != next_incarnation(epoch, root):
        raise ValueError(f"{member} was there already")
    return _next(
        epoch,
        who,
        joining={**epoch.joining, member: epoch.number + 1},
        roots={**epoch.roots, root: Root(url, incarnation_of(member) + 1)},
        taken_out=tuple(other for other in epoch.taken_out if other != root),
    )


def joined(
    epoch: Epoch, member: Member, since: int, leader_since: int, who: Proposer
) -> Epoch | None:
    """The next epoch, in which a joining member is in sync; None if its copy is not enough.

    It is not enough if another leader was elected since, or the member was out meanwhile. ``since``
    is the epoch in which it began to join, ``leader_since`` the election of the leader that it
    copied.
    """
    if epoch.joining.get(member) != since or epoch.leader_since != leader_since:
        return None
    rest = {other: at for other, at in epoch.joining.items() if other != member}
    failed = {root: one for root, one in epoch.failed_joins.items() if root != root_of(member)}
    return _next(epoch, who, in_sync=(*epoch.in_sync, member), joining=rest, failed_joins=failed)


def gave_up_joining(epoch: Epoch, member: Member, who: Proposer) -> Epoch:
    """The next epoch, without a joining member; its root has failed to join once more."""
    root = root_of(member)
    before = epoch.failed_joins.get(root)
    failed = FailedJoins(before.count + 1 if before else 1, who.at_ms)
    rest = {other: at for other, at in epoch.joining.items() if other != member}
    return _next(epoch, who, joining=rest, failed_joins={**epoch.failed_joins, root: failed})


def moved_to(epoch: Epoch, root: str, url: str, who: Proposer) -> Epoch:
    """The next epoch, in which a root has another URL. Raises ValueError: the root is in sync."""
    if any(root_of(member) == root for member in epoch.in_sync):
        raise ValueError(f"{root} is in sync where it is")
    rest = {other: at for other, at in epoch.joining.items() if root_of(other) != root}
    there = Root(url, epoch.roots[root].incarnations)
    return _next(epoch, who, joining=rest, roots={**epoch.roots, root: there})


def check_settings(settings: Mapping[str, object] | None, roots: Collection[str]) -> dict[str, str]:
    """Check the settings of roots; returns them as text. Raises InvalidConfig, InvalidOption."""
    checked = {}
    for key, value in (settings or {}).items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        kind = _check_key(key, roots)
        if kind in _SWITCHES and text not in ("true", "false"):
            raise InvalidConfig(f"{key} must be true or false, not {text!r}")
        if kind == RACK and not (text.isprintable() and text and text == text.strip()):
            raise InvalidConfig(f"{key} must be a label, not {text!r}")
        if kind == PREFERRED and text not in (_FIRST, *roots):
            known = ", ".join([_FIRST, *roots])
            raise InvalidConfig(f"{key} must be one of {known}, not {text!r}")
        word = {FACTOR: _ALL, SCRUB: _NONE}.get(kind)
        is_number = kind not in (*_SWITCHES, RACK, PREFERRED) and text != word
        if is_number and not _NUMBER.fullmatch(text):
            or_word = f", or {word!r}" if word else ""
            raise InvalidConfig(f"{key} must be a number of at least 1{or_word}, not {text!r}")
        checked[key] = text
    least = int(checked.get(MIN_INSYNC, 1))
    if least > len(roots):
        raise InvalidOption(f"{MIN_INSYNC} is {least}, but there are {len(roots)} roots")
    for key, text in checked.items():
        if key.startswith(FACTOR) and text != _ALL:
            if int(text) > len(roots):
                raise InvalidOption(f"{key} is {text}, but there are {len(roots)} roots")
            if int(text) < least:
                raise InvalidOption(f"{key} is {text}, but {MIN_INSYNC} is {least}")
    return checked


def _check_key(key: str, roots: Collection[str]) -> str:
    """The kind of a setting. Raises InvalidConfig: it, or its root or topic, is unknown."""
    if key in _DEFAULTS:
        return key
    if key.startswith(f"{FACTOR}."):
        try:
            check_topic(key.removeprefix(f"{FACTOR}."))
        except InvalidTopic as error:
            raise InvalidConfig(f"{key}: {error}") from None
        return FACTOR
    root = key.removeprefix(f"{RACK}.")
    # A future root may have its label before it joins.
    if root == key or root not in (*roots, f"r{len(roots)}"):
        known = ", ".join([*sorted(_DEFAULTS), f"{FACTOR}.<topic>", f"{RACK}.<root>"])
        raise InvalidConfig(f"{key} is not a setting of replicas: {known}")
    return RACK


def changed_settings(epoch: Epoch, changes: Mapping[str, object | None]) -> dict[str, str]:
    """All settings after some have changed; None resets one to its default.

    Once data may be at some roots only, the epochs never forget it: ``replication.factor`` stays
    set, if only to "all".

    Raises InvalidConfig, InvalidOption.
    """
    for key in changes:
        _check_key(key, epoch.roots)
    kept = {key: value for key, value in epoch.settings.items() if key not in changes}
    given = {key: value for key, value in changes.items() if value is not None}
    if any(key.startswith(FACTOR) for key in epoch.settings):
        kept.setdefault(FACTOR, _ALL)
    return check_settings({**kept, **given}, epoch.roots)


def list_settings(settings: Mapping[str, str]) -> tuple[Setting, ...]:
    """All settings with their values, by key; of single topics and roots those that are set."""
    named = sorted(key for key in settings if key not in _DEFAULTS)
    return (
        *(
            Setting(key, settings.get(key, default), default, key in settings, _MEANINGS[key])
            for key, default in sorted(_DEFAULTS.items())
        ),
        *(_named_setting(key, settings) for key in named),
    )


def _named_setting(key: str, settings: Mapping[str, str]) -> Setting:
    if key.startswith(RACK):
        return Setting(key, settings[key], "", True, "the rack that the root stands in")
    default = settings.get(FACTOR, _ALL)
    return Setting(key, settings[key], default, True, "at how many roots this topic's data is")


def split_settings(
    config: Mapping[str, object] | None,
) -> tuple[dict[str, object], dict[str, object]]:
    """Split the configuration of a new store: the settings of the replicas, and the others."""
    given = dict(config or {})
    ours = [key for key in given if key in _DEFAULTS or key.startswith((f"{FACTOR}.", f"{RACK}."))]
    return {key: given.pop(key) for key in ours}, given
