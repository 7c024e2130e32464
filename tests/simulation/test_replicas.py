"""Replicas: roots that crash, stall, are cut off and come back, under writers and readers.

Each rule of the replicas has a broken variant here that is caught by the same runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.checkout import ROOT
from tests.support.replication.replica_gates import Disk, Patience
from tests.support.replication.replica_world import (
    CALM,
    ROUGH,
    STORMY,
    Roots,
    Violation,
    World,
    run_seeds,
)
from tests.support.seeds import tried_first
from txnlog.errors import ObjectNotFound, StoreExists
from txnlog.replication import root_names
from txnlog.replication.roots import (
    agreement,
    copies,
    epoch_cleaning,
    kept_data,
    old_incarnations,
    placement,
    puts,
    reassignment,
    recovery,
    replicated_storage,
    root_join,
    same_bytes,
    soundness,
    trim,
    verification,
)
from txnlog.replication.roots.agreement import Agreement
from txnlog.replication.roots.controller import Controller, list_epochs
from txnlog.replication.roots.epoch_cleaning import clean_epochs
from txnlog.replication.roots.epoch_notes import list_notes
from txnlog.replication.roots.epochs import (
    AUTO_RETURN,
    Epoch,
    Member,
    configured,
    elected_unclean,
    root_of,
)
from txnlog.replication.roots.recovery import kept_epochs
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.storage.base import Storage

Patch = pytest.MonkeyPatch


pytestmark = [
    pytest.mark.usefixtures("unlogged"),
    pytest.mark.rule(
        "R1",
        "R2",
        "R3",
        "R4",
        "R5",
        "R6",
        "R7",
        "R8",
        "R9",
        "R10",
        "R11",
        "R14",
        "R15",
        "R16",
        "R17",
        "R18",
        "R19",
    ),
]


@pytest.mark.condition(59)
@pytest.mark.parametrize("seeds", [(4, 5), pytest.param((2, 3, 6, 7), marks=pytest.mark.slow)])
def test_nothing_acknowledged_is_lost(seeds: tuple[int, ...]) -> None:
    """A few runs, with elections and members that come back."""
    total = run_seeds(seeds, ROUGH)
    assert total["acknowledged"] > 25 * len(seeds)
    assert total["elections"] > 0
    assert total["joined"] > 0


@pytest.mark.condition(59)
@pytest.mark.parametrize(
    ("weather", "runs"),
    [
        pytest.param(ROUGH, 12, marks=pytest.mark.more),
        *(pytest.param(weather, 40, marks=pytest.mark.slow) for weather in (ROUGH, STORMY)),
    ],
)
def test_more_runs(weather: Any, runs: int) -> None:
    total = run_seeds(range(100, 100 + runs), weather)
    assert total["elections"] > runs / 2
    assert total["joined"] > runs / 4


@pytest.mark.more
def test_runs_that_once_went_wrong() -> None:
    """Two brought a root in at once; a root joined while another one was slow.

    And while another process gave the leader back what it had lost.
    """
    run_seeds([170], ROUGH, decays=True, operated=True)
    run_seeds([100424], ROUGH, placed=True, roots=4, operated=True, completes=False)
    run_seeds((100126, 100266), CALM, stalls=True, completes=False)


@pytest.mark.condition(59)
@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_runs(part: int) -> None:
    """2,000 runs in all, some with five roots."""
    seeds = range(1000 * part, 1000 * part + 100)
    run_seeds(seeds, ROUGH)
    run_seeds(seeds, STORMY, roots=5)


@pytest.mark.condition(59)
def test_who_does_not_reach_the_controller_reads_all_the_same() -> None:
    """Others go on, elect leaders and move the controller meanwhile."""
    total = run_seeds((1, 2), ROUGH, severs=True)
    assert total["alone"] > 0


@pytest.mark.parametrize("runs", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_a_controller_that_is_lost_when_a_root_has_come(runs: int) -> None:
    """All others go at that moment, and who has added it may have been killed: it is found."""
    total = run_seeds(range(9600, 9600 + runs), ROUGH, grows=True)
    assert total["joined"] > 0
    assert total["found"] > 10 * runs


@pytest.mark.condition(59)
@pytest.mark.parametrize("runs", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_a_controller_that_is_lost_is_made_anew_and_work_goes_on(runs: int) -> None:
    """Twice, by two at once, by whatever root; either may be killed, and others write meanwhile."""
    total = run_seeds(range(9700, 9700 + runs), ROUGH, loses=True)
    assert total["recovered"] >= runs
    assert total["acknowledged"] > 10 * runs
    run_seeds(range(9750, 9750 + runs // 2), ROUGH, loses=True, operated=True, roots=4)
    run_seeds(range(9800, 9800 + runs // 2), ROUGH, loses=True, grows=True)


@pytest.mark.condition(59)
def test_operators_lose_nothing() -> None:
    """Elections, roots taken out and brought back by a setting, repairs, incarnations forgotten.

    The controller moves, too.
    """
    total = run_seeds((24, 27), ROUGH, operated=True)
    assert total["controllers"] > 0
    assert total["acknowledged"] > 20
    assert total["elections"] > 0
    assert total["returned"] > 0


@pytest.mark.condition(62)
def test_data_at_some_of_the_roots_is_not_lost() -> None:
    """At how many changes, and two move it at once, while roots go and come back."""
    total = run_seeds((2, 3, 4), ROUGH, placed=True)
    assert total["acknowledged"] > 40
    assert total["moved"] > 40


@pytest.mark.condition(62)
@pytest.mark.slow
@pytest.mark.parametrize("weather", [ROUGH, STORMY])
@pytest.mark.parametrize("roots", [3, 4])
def test_data_at_some_of_the_roots_is_not_lost_in_many_runs(weather: Any, roots: int) -> None:
    """With an operator who elects, takes out, repairs and forgets beside those who move data."""
    run_seeds(range(7000, 7100), weather, placed=True, roots=roots)
    total = run_seeds(range(7100, 7200), weather, placed=True, roots=roots, operated=True)
    assert total["moved"] > 0


@pytest.mark.parametrize("runs", [1, pytest.param(30, marks=pytest.mark.slow)])
def test_epochs_that_are_deleted_mislead_nobody(runs: int) -> None:
    """All but the two newest, by two at once, while processes sleep and the controller moves."""
    total = run_seeds(range(9333, 9333 + runs), ROUGH, cleans=2, operated=True)
    assert total["cleaned"] > 10
    run_seeds(range(9400, 9400 + runs - 1), STORMY, cleans=2, roots=5)
    run_seeds(range(9500, 9500 + runs - 1), CALM, cleans=2, unmounts=True)


def test_a_note_that_was_cleaned_was_given() -> None:
    """Who acknowledges may sleep after its last look, while later epochs come: no violation."""
    world = World(0, CALM)
    storage = world.roots.plain(world.simulation.clock)
    storage.put("topics/t/data/0/a.log", b"")
    first = storage.agreement.epoch()
    who = storage.agreement.proposer("nobody is told")
    changed = configured(first, {**first.settings, AUTO_RETURN: "true"}, who)
    storage.agreement.propose_alone(changed)
    with pytest.raises(Violation, match="were told nothing of epoch 1"):
        world._check_noted(storage.agreement.epoch())
    storage.put("topics/t/data/0/b.log", b"")
    clean_epochs(storage.agreement, kept=1)
    heap = world.roots.heap(first.leader)
    assert list_notes(heap) == [1]
    world._check_noted(first)
    world.judge()
    heap.delete([root_names.epoch_note(1)])
    with pytest.raises(Violation, match="has the newest epoch that it knew no more"):
        world.judge()


def test_a_disk_that_is_not_mounted_is_no_empty_root() -> None:
    """For a moment or for long, a root's or the controller's, while others join, too."""
    total = run_seeds((2, 3, 13), CALM, unmounts=True)
    assert total["acknowledged"] > 40
    assert total["joined"] > 2


@pytest.mark.slow
@pytest.mark.parametrize("weather", [CALM, ROUGH, STORMY])
def test_disks_that_are_not_mounted_in_many_runs(weather: Any) -> None:
    run_seeds(range(8000, 8050), weather, unmounts=True)
    run_seeds(range(8050, 8100), weather, unmounts=True, placed=True, roots=4)
    run_seeds(range(8100, 8150), weather, unmounts=True, operated=True, roots=4)


@pytest.mark.condition(61)
@pytest.mark.parametrize("runs", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_entries_that_roots_damage_are_not_lost(runs: int) -> None:
    """Any bit of any entry at fewer than half of the roots, all the time."""
    total = run_seeds(range(9000, 9000 + runs), ROUGH, rots=True)
    assert total["kept"] > 0
    run_seeds(range(9100, 9100 + runs // 2), STORMY, rots=True, roots=5)
    run_seeds(range(9200, 9200 + runs // 2), ROUGH, rots=True, roots=4, operated=True)


@pytest.mark.condition(61)
@pytest.mark.parametrize("runs", [1, pytest.param(200, marks=pytest.mark.slow)])
def test_what_one_root_loses_is_not_lost(runs: int) -> None:
    """The newest entry, or state, again and again; who joins then, and others write meanwhile."""
    run_seeds(range(9300, 9300 + runs), ROUGH, forgets=True)
    run_seeds([19, 35][:runs], ROUGH, forgets=True)


@pytest.mark.condition(61)
@pytest.mark.parametrize("runs", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_data_that_decays_is_not_lost_while_any_copy_is_whole(runs: int) -> None:
    """Or is lost: at one root after the other, while data is moved, and old incarnations go."""
    total = run_seeds(range(9852, 9852 + runs), ROUGH, decays=True, placed=True)
    assert total["moved"] > 20 * runs
    run_seeds(range(9900, 9900 + runs), ROUGH, decays=True, operated=True)
    run_seeds(range(9950, 9950 + runs // 2), STORMY, decays=True, placed=True, operated=True)


def test_slow_roots_are_put_out_within_two_timeouts() -> None:
    """What they were asked lands later, at members that are out or not: nothing is lost."""
    total = run_seeds((2, 5), CALM, stalls=True)
    assert total["slow"] > 4
    assert total["elections"] > 0


@pytest.mark.parametrize("runs", [2, pytest.param(100, marks=pytest.mark.slow)])
def test_an_object_that_hangs_at_one_root_holds_nobody_up(runs: int) -> None:
    """Others give it; and where the leader alone may tell, another one leads."""
    total = run_seeds(range(14, 14 + runs), CALM, hangs=True)
    assert total["elections"] > 0
    assert total["acknowledged"] > 80 * runs
    run_seeds(range(50, 50 + runs // 2), CALM, hangs=True, decays=True)


@pytest.mark.parametrize(
    "runs", [pytest.param(3, marks=pytest.mark.more), pytest.param(10, marks=pytest.mark.slow)]
)
def test_slow_roots_in_many_runs(runs: int) -> None:
    run_seeds(range(runs), CALM, stalls=True)
    run_seeds(range(runs), ROUGH, stalls=True, timed=False)


@pytest.mark.more
def test_a_seed_decides_everything() -> None:
    """A run of each kind; not the order of sets either, which differs between processes."""
    program = """
import hashlib, logging, sys
sys.path.append("scripts")
from soak_replicas import KINDS, replica_world, standby_world
from txnlog.testing import Simulation
class Kept(Simulation):
    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        made.append(self)
made = []
replica_world.Simulation = standby_world.Simulation = Kept
logging.disable(logging.WARNING)
for kind, run in KINDS.items():
    made.clear()
    told = run(6)
    steps = [line for one in made for line in one.trace]
    assert len(steps) > 100, kind
    print(kind, sorted(told.items()), hashlib.sha256(repr(steps).encode()).hexdigest())
"""
    runs = []
    for hash_seed in "12":
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", program]
        done = subprocess.run(
            command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True
        )
        runs.append(done.stdout.splitlines())
    assert len(runs[0]) > 20
    assert runs[0] == runs[1]


@pytest.mark.slow
@pytest.mark.condition(59)
@pytest.mark.parametrize("weather", [ROUGH, STORMY])
def test_operators_lose_nothing_in_many_runs(weather: Any) -> None:
    total = run_seeds(range(5000, 5200), weather, roots=4, operated=True)
    assert total["returned"] > 0


# -- broken variants -----------------------------------------------------------------------------


def followers_are_given_nothing(patch: Patch) -> None:
    """R1. What the leader has is acknowledged."""
    patch.setattr(replicated_storage, "put_at_all", lambda *_: None)


def no_look_at_the_epochs(patch: Patch) -> None:
    """R3. Acknowledged though an epoch has passed meanwhile."""
    patch.setattr(Agreement, "is_newest", lambda *_: True)


def no_help(patch: Patch) -> None:
    """R2. Shown and built on before the others have it."""
    for module in (replicated_storage, puts):
        patch.setattr(module, "help_out", lambda *_: None)


def no_writes_to_who_joins(patch: Patch) -> None:
    """R4. Writers leave out who is joining."""

    def members(epoch: Epoch) -> tuple[Member, ...]:
        return (epoch.leader, *(other for other in epoch.in_sync if other != epoch.leader))

    patch.setattr(Epoch, "members", property(members))


def nothing_is_copied(patch: Patch) -> None:
    """R4. A joining root is in sync at once."""
    patch.setattr(root_join, "_copy", lambda *_: (0, 0, 0, 0))


def who_was_out_leads(patch: Patch) -> None:
    """R5. Whoever was in sync last takes a leader's place, and no epoch says so."""
    put_out = Agreement.put_out

    def elect(self: Agreement, epoch: Epoch, member: Member, why: str, **how: Any) -> bool:
        if member != epoch.leader or not epoch.left:
            return put_out(self, epoch, member, why, **how)
        leader = max(epoch.left, key=lambda one: epoch.left[one].epoch)
        proposed = elected_unclean(epoch, leader, self.proposer(why))
        return self.propose(replace(proposed, unclean=None, last_unclean=-1))

    patch.setattr(Agreement, "put_out", elect)


def too_few_in_sync_will_do(patch: Patch) -> None:
    """R6. Nobody counts them."""
    patch.setattr(ReplicatedStorage, "_need", lambda *_: None)


def what_is_found_again_counts(patch: Patch) -> None:
    """R6. Whoever finds what he has put may acknowledge it, however few have it."""
    need, confirm, this = ReplicatedStorage._need, ReplicatedStorage.confirm, threading.local()

    def confirm_anyway(self: ReplicatedStorage, name: str) -> None:
        this.confirms = True
        try:
            confirm(self, name)
        finally:
            this.confirms = False

    def need_to_put(self: ReplicatedStorage, epoch: Epoch) -> None:
        if not getattr(this, "confirms", False):
            need(self, epoch)

    patch.setattr(ReplicatedStorage, "confirm", confirm_anyway)
    patch.setattr(ReplicatedStorage, "_need", need_to_put)


def nobody_looks_at_checksums(patch: Patch) -> None:
    """R14. Where two have other bytes the leader is right."""
    for module in (copies, same_bytes, soundness, replicated_storage):
        patch.setattr(module, "is_sound", lambda *_: None)


def who_joins_copies_the_leader(patch: Patch) -> None:
    """R14. Damage is copied where another root has the object whole."""

    def leaders(agreement: Agreement, epoch: Epoch, name: str) -> bytes:
        return agreement.ask(epoch, epoch.leader, lambda storage: storage.get(name))

    patch.setattr(root_join, "bytes_to_join_with", leaders)


def a_name_tells_what_is_kept(patch: Patch) -> None:
    """R17. Who comes back keeps data by its name, as damaged as it is."""
    patch.setattr(kept_data.Kept, "_keep", take_over)


def what_was_decided_in_a_race_is_kept(patch: Patch) -> None:
    """R17. Who comes back keeps entries, too: other ones than the leader's, or damaged."""

    def holders(kept: kept_data.Kept, name: str) -> list[tuple[Member, int]]:
        return [*kept._listings.sizes_of(name).items()]

    patch.setattr(kept_data.Kept, "holders", holders)
    patch.setattr(kept_data.Kept, "_keep", take_over)


def take_over(kept: kept_data.Kept, name: str, earlier: Member) -> bool:
    source = kept._agreement.storage(kept._epoch, earlier)
    return kept._agreement.ask(kept._epoch, kept._member, lambda one: one.take_over(name, source))


def the_earlier_folder_goes_on(patch: Patch) -> None:
    """R4. A new incarnation is the folder that there was: late writers write into it."""
    heap = Roots.heap
    patch.setattr(Roots, "heap", lambda told, member: heap(told, f"{root_of(member)}-0"))


def lost_numbers_are_given_away(patch: Patch) -> None:
    """R1. An entry that the leader has lost was never there."""
    patch.setattr(replicated_storage, "bring_back_lost", lambda *_: set())


def who_joins_lacks_what_is_lost(patch: Patch) -> None:
    """R4. Copied is what the leader has, though others have more."""
    patch.setattr(root_join, "_find_lacked", lambda *_: iter(()))


def who_joins_lacks_data_that_is_lost(patch: Patch) -> None:
    """R1. The leader alone tells what data there is."""
    patch.setattr(root_join, "_give_back_lost", lambda *_: set())


def who_joins_is_given_what_the_leader_lacked_at_last(patch: Patch) -> None:
    """R1. Somebody else may have given the leader what it had lost when it was first listed."""
    patch.setattr(root_join, "_lacked_by", lambda *_: set())


def what_all_have_lost_is_not_looked_for(patch: Patch) -> None:
    """Though an old incarnation has it."""
    patch.setattr(verification, "list_lost", lambda *_: iter(()))


def what_came_since_is_not_listed(patch: Patch) -> None:
    """R1. An object was lost, a later one allows to delete it, and the listing shows neither."""
    bring_back = soundness.bring_back_lost

    def bring_back_alone(*given: Any) -> set[str]:
        return bring_back(*given).intersection(set().union(*given[-1].values()))

    patch.setattr(replicated_storage, "bring_back_lost", bring_back_alone)


def marks_are_not_looked_for(patch: Patch) -> None:
    """R7. An empty folder is taken for the root."""
    patch.setattr(Disk, "check", lambda _: None)
    patch.setattr(Agreement, "check_mark", lambda *_: None)


def what_is_not_found_was_deleted(patch: Patch) -> None:
    """R7. Nobody looks for the mark when a name is not found; by and by it is there again."""
    patch.setattr(Disk, "_absence_checked", lambda _: nullcontext())
    patch.setattr(root_join, "_check_missed", lambda *_: None)


def an_empty_controller_has_nothing_newer(patch: Patch) -> None:
    """R7. Its disk is not mounted, and the epoch that one knows is taken for the newest."""
    newest_at = Controller._newest_at

    def newest(self: Controller, storage: Storage, known: Epoch | None) -> Epoch:
        if known is not None and not list_epochs(storage, known.number):
            return known
        return newest_at(self, storage, known)

    patch.setattr(Disk, "check", lambda _: None)
    patch.setattr(Controller, "_newest_at", newest)


def what_takes_part_is_forgotten(patch: Patch) -> None:
    """R8. Nobody looks at the epochs before deleting."""
    patch.setattr(old_incarnations, "_why_not", lambda *_: None)
    patch.setattr(old_incarnations, "_check_out", lambda *_: None)


def one_copy_is_enough(patch: Patch) -> None:
    """R10. Data is put at the first of the roots where it belongs."""
    patch.setattr(replicated_storage, "targets", lambda *of: placement.targets(*of)[:1])


def nobody_follows_the_controller(patch: Patch) -> None:
    """R9. A process that finds that it has moved stays at the old place."""
    patch.setattr(Epoch, "controller", "")


def a_move_is_decided_there(patch: Patch) -> None:
    """R9. The epoch that moves is put at the new place alone."""
    propose = Controller.propose
    patch.setattr(Controller, "propose", lambda told, epoch, _="": propose(told, epoch))


def deleted_before_it_is_copied(patch: Patch) -> None:
    """R11. Surplus copies go, whether others have them or not."""
    patch.setattr(trim, "_is_enough", lambda *_: True)
    patch.setattr(reassignment._Pass, "_copy", lambda *_: 0)


def copies_that_stay_are_not_read(patch: Patch) -> None:
    """One is deleted where those that stay are damaged."""
    is_enough: Any = trim._is_enough
    patch.setattr(trim, "_is_enough", lambda *told: is_enough(*told[:-1], lambda *_: None))


def whoever_is_forgotten_is_not_read(patch: Patch) -> None:
    """An old incarnation goes that alone has data whole."""
    check: Any = old_incarnations._check_data
    patch.setattr(old_incarnations, "_check_data", lambda *told: check(*told[:-1], lambda *_: None))


def whoever_puts_an_epoch_is_first(patch: Patch) -> None:
    """R18. Its name may be free because the epoch has passed, and was deleted."""
    patch.setattr(Controller, "_counts", lambda *_: True)


def nothing_is_left_behind(patch: Patch) -> None:
    """Slow roots are waited for."""
    patch.setattr(Patience, "run_within", lambda _, call, *__: call())


def readers_decide(patch: Patch) -> None:
    """R15. What a reader does not see is put out for everybody."""
    patch.setattr(Agreement, "observes", property(lambda _: False, lambda *_: None), raising=False)


def nobody_else_is_asked(patch: Patch) -> None:
    """Who reads an object that hangs at one root waits for that one."""

    def ask(self: Agreement, epoch: Epoch, _: Any, member: Member, call: Any, *__: Any) -> Any:
        return self.ask_large(epoch, member, call)

    patch.setattr(Agreement, "ask_one_of", ask)


def nobody_keeps_epochs(patch: Patch) -> None:
    """R16. A controller that is lost cannot be made anew."""
    patch.setattr(agreement, "note_epoch", lambda *_, **__: None)


def no_leader_knows_who_joins(patch: Patch) -> None:
    """R16. Then all others are lost, and recovered without it: nobody asks the one that had all."""
    patch.setattr(root_join, "note_epoch", lambda *_: None)


def the_newest_note_is_cleaned(patch: Patch) -> None:
    """R16. A root knows none of the epochs under which something was acknowledged."""
    clean = epoch_cleaning._clean_notes
    patch.setattr(
        epoch_cleaning,
        "_clean_notes",
        lambda told, epoch, member, kept, **how: clean(told, epoch, member, -kept, **how),
    )


def readers_leave_out_what_they_do_not_see(patch: Patch) -> None:
    """R15. A follower may lack what is shown then."""
    listings = ReplicatedStorage._listings
    patch.setattr(ReplicatedStorage, "_listings", lambda *told: (listings(*told)[0], None))


def who_knows_an_epoch_asks_no_root(patch: Patch) -> None:
    """Where the controller does not answer."""
    patch.setattr(
        "tests.support.replication.replica_world.kept_epochs",
        lambda opener, given, slow, known, first: (
            [known] if known else kept_epochs(opener, given, slow, None, first)
        ),
    )


def an_old_note_tells(patch: Patch) -> None:
    """R16. A controller is made anew from whatever epoch a root has."""
    patch.setattr(recovery._Kept, "newest", lambda kept: next(iter(kept._found.values()), None))


BROKEN: list[tuple[Callable[[Patch], None], dict[str, Any]]] = [
    (followers_are_given_nothing, {}),
    (who_was_out_leads, {}),
    (too_few_in_sync_will_do, {"first": 5}),
    (what_is_found_again_counts, {"roots": 2, "scarce": True}),
    (nobody_looks_at_checksums, {"rots": True, "first": 2}),
    (who_joins_copies_the_leader, {"rots": True, "first": 23}),
    (a_name_tells_what_is_kept, {"rots": True}),
    (what_was_decided_in_a_race_is_kept, {"rots": True}),
    (the_earlier_folder_goes_on, {}),
    (lost_numbers_are_given_away, {"forgets": True, "first": 2}),
    (who_joins_lacks_what_is_lost, {"forgets": True, "rates": STORMY, "first": 619}),
    (who_joins_lacks_data_that_is_lost, {"decays": True, "operated": True}),
    (
        who_joins_is_given_what_the_leader_lacked_at_last,
        {"decays": True, "operated": True, "first": 100015},
    ),
    (what_all_have_lost_is_not_looked_for, {"decays": True, "operated": True}),
    (what_came_since_is_not_listed, {"forgets": True, "first": 19}),
    (marks_are_not_looked_for, {"unmounts": True, "rates": CALM}),
    (what_is_not_found_was_deleted, {"unmounts": True, "rates": CALM}),
    (an_empty_controller_has_nothing_newer, {"unmounts": True, "rates": CALM}),
    (what_takes_part_is_forgotten, {"operated": True, "first": 3}),
    (one_copy_is_enough, {"placed": True}),
    (no_look_at_the_epochs, {}),
    (no_help, {"first": 12}),
    (no_writes_to_who_joins, {}),
    (nothing_is_copied, {}),
    (nobody_follows_the_controller, {"operated": True, "first": 2}),
    (a_move_is_decided_there, {"operated": True}),
    (whoever_puts_an_epoch_is_first, {"cleans": 1, "operated": True, "first": 39}),
    (nothing_is_left_behind, {"stalls": True, "rates": CALM}),
    (nobody_else_is_asked, {"hangs": True, "rates": CALM}),
    (copies_that_stay_are_not_read, {"decays": True, "placed": True, "first": 200024}),
    (whoever_is_forgotten_is_not_read, {"decays": True, "operated": True, "first": 200055}),
    (readers_decide, {}),
    (nobody_keeps_epochs, {}),
    (no_leader_knows_who_joins, {"grows": True, "first": 1}),
    (an_old_note_tells, {"loses": True}),
    (the_newest_note_is_cleaned, {"cleans": 2}),
    (readers_leave_out_what_they_do_not_see, {"first": 101}),
    (who_knows_an_epoch_asks_no_root, {"severs": True, "roots": 2, "first": 24}),
]


@pytest.mark.more
@pytest.mark.parametrize(
    ("mutate", "options"), BROKEN, ids=lambda one: getattr(one, "__name__", "")
)
def test_broken_variants_are_caught(
    mutate: Callable[[Patch], None], options: dict[str, Any], monkeypatch: Patch
) -> None:
    catch(mutate, monkeypatch, **options)


@pytest.mark.more
def test_deleting_before_copying_is_caught(monkeypatch: Patch) -> None:
    catch(deleted_before_it_is_copied, monkeypatch, placed=True)


def catch(mutate: Callable[[Patch], None], monkeypatch: Patch, first: int = 0, **how: Any) -> None:
    """Other seeds are tried after the first, so that the test does not depend on it."""
    for seed in tried_first(first, 200):
        with monkeypatch.context() as patch:
            mutate(patch)
            try:
                run_seeds([seed], **{"rates": ROUGH, **how})
            except (Violation, ObjectNotFound, AssertionError, StoreExists):
                break  # the last one, if two places have other epochs
    else:
        raise AssertionError("none of the runs notices")
    run_seeds([seed], **{"rates": ROUGH, **how})
