"""Roots that were put out, and answer again: they come back where a setting says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from txnlog.errors import InvalidOption, StorageError, TxnlogError
from txnlog.replicas.epochs import Epoch, FailedJoins, Member, root_of
from txnlog.replicas.forgetting import check_root, forget, old_incarnations
from txnlog.replicas.joining import Joined, join
from txnlog.replicas.replicated_storage import ReplicatedStorage

_JOINS_IN_MS: Final = 24 * 3600 * 1000
"""Who has been joining for longer was killed over it: somebody else may start over."""
_FIRST_PAUSE_MS: Final = 10 * 60 * 1000
_LONGEST_PAUSE_MS: Final = 24 * 3600 * 1000
Prepare: TypeAlias = Callable[[ReplicatedStorage, str], tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ReplicaReturn:
    """A root that was out, and is in sync again, or would be."""

    root: str
    url: str
    member: str | None
    objects: int
    size_bytes: int


def roots_to_return(epoch: Epoch, began_ms: Callable[[int], int], now_ms: int) -> list[str]:
    """The roots that are out and are to come back: none that an operator has taken out.

    Args:
        epoch: the newest one.
        began_ms: when the epoch of a number was proposed.
        now_ms: the time.
    """
    busy = {root_of(member) for member in epoch.in_sync}
    for root, failed in epoch.failed_joins.items():
        # A clock that has jumped keeps nobody out.
        if failed.at_ms <= now_ms < try_again_ms(failed):
            busy.add(root)
    for member, since in epoch.joining.items():
        if now_ms - began_ms(since) < _JOINS_IN_MS:
            busy.add(root_of(member))
    return sorted(set(epoch.roots) - busy - set(epoch.taken_out))


def try_again_ms(failed: FailedJoins) -> int:
    """When maintenance tries to bring a root back that has failed to come: later each time."""
    pause_ms = _FIRST_PAUSE_MS << min(failed.count - 1, 16)
    return failed.at_ms + min(pause_ms, _LONGEST_PAUSE_MS)


def outdated(epoch: Epoch, old: Sequence[Member]) -> list[Member]:
    """The old incarnations of a root that hold nothing anybody could miss.

    What it had when it was in sync last stays. So does what was in sync before an unclean election:
    it may be all that is left of what that has lost, which only an operator lets go of. One that
    never was in sync is half a copy, of what others have.
    """
    was_in_sync = [member for member in old if member in epoch.left]
    kept = {
        *was_in_sync[-1:],
        *(member for member in was_in_sync if epoch.left[member].epoch < epoch.last_unclean),
    }
    return [member for member in old if member not in kept]


def return_roots(
    storage: ReplicatedStorage, prepare: Prepare, *, dry_run: bool = False
) -> Iterator[ReplicaReturn]:
    """Bring back one root after the other that answers; of what it had, the outdated is deleted.

    Nothing where ``replica.auto.return`` is false. A root that fails on the way stops no other one.

    Raises TxnlogError, when all were tried: the first failure. Call it again.
    """
    agreement = storage.agreement
    epoch = agreement.refresh()
    if not epoch.returns_roots:
        return

    failed: TxnlogError | None = None

    def began_ms(number: int) -> int:
        return agreement.controller.at(number).at_ms

    for root in roots_to_return(epoch, began_ms, agreement.clock.now_ms()):
        url = epoch.roots[root].url
        if dry_run:
            with suppress(TxnlogError):
                check_root(storage, epoch, root)
                yield ReplicaReturn(root, url, None, 0, 0)
            continue
        try:
            joined = _try_to_join(storage, prepare, url)
            if joined is None:
                continue
            yield ReplicaReturn(root, url, joined.member, joined.objects, joined.bytes)
            newest = agreement.refresh()
            for old in outdated(newest, old_incarnations(storage, newest, root)):
                with suppress(InvalidOption):  # it has the only copy of data
                    forget(storage, old)
        except TxnlogError as error:
            failed = failed or error
    if failed is not None:
        raise failed


def _try_to_join(storage: ReplicatedStorage, prepare: Prepare, url: str) -> Joined | None:
    """None if the root does not answer yet, or somebody else has brought it in."""
    try:
        root, found = prepare(storage, url)
    except (InvalidOption, StorageError):
        return None
    return join(storage.agreement, root, found)
