"""Decides which members a data file is put at: pure, no I/O.

Only data files are placed: segments and their indexes. Their names are used once, and they do not
count before an entry names them. Everything else is at every member. A file's place says where it
belongs, and where to look first; where it really is only the members know.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from zlib import crc32

from txnlog import names
from txnlog.replication.roots.epochs import FACTOR, RACK, Epoch, Member, root_of


def places(epoch: Epoch) -> bool:
    """Whether there may be data files that not every member has.

    Once that is so it stays so: such a setting is never removed from the epochs.
    """
    return any(key.startswith(FACTOR) for key in epoch.settings)


def factor(epoch: Epoch, topic: str) -> int | None:
    """At how many members a topic's data should be; None: at all."""
    text = epoch.settings.get(f"{FACTOR}.{topic}", epoch.settings.get(FACTOR, "all"))
    return None if text == "all" else int(text)


def topic_of(name: str) -> str | None:
    """The topic of a data file; None for other files, which belong at every member."""
    return None if names.parse_data_file(name) is None else name.split("/")[1]


def is_placed(epoch: Epoch, name: str) -> bool:
    """Whether an object may be at some members only."""
    return places(epoch) and topic_of(name) is not None


def may_hold_data(folder: str) -> bool:
    """Whether there may be data files below a folder."""
    parts = folder.split("/") if folder else []
    return parts[:1] in ([], [names.TOPICS]) and parts[2:3] in ([], ["data"])


def copies(epoch: Epoch, name: str) -> int:
    """How many members in sync should have an object."""
    topic = topic_of(name)
    wanted = None if topic is None else factor(epoch, topic)
    return len(epoch.in_sync) if wanted is None else min(wanted, len(epoch.in_sync))


def targets(epoch: Epoch, name: str) -> tuple[Member, ...]:
    """The members that an object is written to, in the order of the epoch's members.

    These are as many members in sync as should have it. Joining members get the share that they
    will have later on top of that, since they may never be in sync.
    """
    topic = topic_of(name)
    wanted = None if topic is None else factor(epoch, topic)
    if wanted is None:
        return epoch.members
    share = ring(epoch, name, epoch.members)[:wanted]
    chosen = {*ring(epoch, name, epoch.in_sync)[:wanted], *set(share).intersection(epoch.joining)}
    return tuple(member for member in epoch.members if member in chosen)


def is_share(epoch: Epoch, name: str, member: Member) -> bool:
    """Whether an object belongs at a member, or would if the member were in sync."""
    topic = topic_of(name)
    wanted = None if topic is None else factor(epoch, topic)
    return wanted is None or member in ring(epoch, name, {*epoch.in_sync, member})[:wanted]


def keepers(epoch: Epoch, name: str, without: Collection[Member] = ()) -> list[Member]:
    """The members in sync at which an object belongs, if those in ``without`` do not count."""
    among = [member for member in epoch.in_sync if member not in without]
    return ring(epoch, name, among)[: copies(epoch, name)]


def ring(epoch: Epoch, name: str, among: Iterable[Member]) -> list[Member]:
    """Members in the order in which a data file is placed at them.

    As in Kafka, partition ``i`` begins ``i`` roots after the start of its topic, which is anywhere,
    and goes on from there; roots in other racks come first. A root that is out is skipped, so that
    other roots' data stays where it is. Files that several partitions share are spread by their
    names.
    """
    parsed = names.parse_data_file(name)
    assert parsed is not None, f"{name} is placed nowhere"
    partition, stem, _ = parsed
    turn = crc32(stem.encode()) if partition == names.SHARED else partition
    roots = _by_rack(epoch)
    start = (crc32(name.split("/")[1].encode()) + turn) % len(roots)
    members = {root_of(member): member for member in among}
    there = [root for root in (*roots[start:], *roots[:start]) if root in members]
    return [members[root] for root in _racks_first(there, _racks(epoch))]


def _racks(epoch: Epoch) -> Mapping[str, str]:
    """The rack of each root; a root without a label is in a rack of its own."""
    return {root: epoch.settings.get(f"{RACK}.{root}", f"\0{root}") for root in epoch.roots}


def _by_rack(epoch: Epoch) -> Sequence[str]:
    """All roots in a stable order: one root of each rack, then the next of each, and so on."""
    racks = _racks(epoch)
    within: dict[str, list[str]] = {}
    for root in sorted(epoch.roots, key=lambda root: (len(root), root)):
        within.setdefault(racks[root], []).append(root)
    rounds = zip_longest(*within.values())
    return [root for some in rounds for root in some if root is not None]


def _racks_first(roots: Sequence[str], racks: Mapping[str, str]) -> list[str]:
    """Sort roots: the first of each rack, then the second of each; otherwise in the given order."""
    seen: dict[str, int] = {}
    round_of = {}
    for root in roots:
        round_of[root] = seen.get(racks[root], 0)
        seen[racks[root]] = round_of[root] + 1
    return sorted(roots, key=lambda root: round_of[root])
