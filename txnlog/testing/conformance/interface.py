"""The promises of :class:`txnlog.storage.base.Storage`, each a check over an empty storage.

Knows the interface and no adapter. Checks that need several processes are in ``races`` and
``forks``, those of lost responses in ``lost_responses``.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe

from txnlog.clock import SystemClock
from txnlog.errors import InvalidOption, ObjectNotFound, StorageError
from txnlog.storage.base import CannotReplace, Storage
from txnlog.storage.create_once import create_once
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.storage.probe import probe
from txnlog.testing.conformance.expectations import (
    NotConforming,
    expect,
    expect_equal,
    expect_error,
    expect_missing,
)

Check = Callable[[Storage], None]
"""Takes an empty storage, and raises NotConforming; its name is the promise."""

_HOUR_MS = 3_600_000
_LARGE_BYTES = 12 << 20
MANY = 1_100
"""More names than one page of an object store's listing holds."""


def hand_over(storage: Storage) -> Storage:
    """A storage as another process gets it: by its address."""
    sender, receiver = Pipe()
    with sender, receiver:
        sender.send(storage)
        other: Storage = receiver.recv()
    return other


# -- put-if-absent -------------------------------------------------------------------------------


def a_name_is_created_once(storage: Storage) -> None:
    """The primitive: the first create wins, the second learns that the name is taken."""
    expect(storage.put_if_absent("a/b.json", b"first"), "creating a new name was refused")
    expect(not storage.put_if_absent("a/b.json", b"second"), "a name was created twice")
    expect_equal(storage.get("a/b.json"), b"first", "a refused create changed the object")


def threads_that_race_have_one_winner(storage: Storage) -> None:
    """Sixteen threads create each of ten names; each has one winner, whose bytes are there."""

    def create(turn: int, racer: int) -> bool:
        return storage.put_if_absent(f"race/{turn}", b"%d" % racer)

    # In threads, whatever the storage makes of a race itself.
    for turn, won in enumerate(Storage.race(storage, create, rounds=10)):
        expect_equal(won.count(True), 1, "winners of one race")
        kept = storage.get(f"race/{turn}")
        expect_equal(kept, b"%d" % won.index(True), "a race left other bytes than its winner's")


class _LosesResponses(ForwardingStorage):
    """The first creates take effect, but their callers are told that they failed."""

    lost = 2

    def put_if_absent(self, name: str, data: bytes) -> bool:
        done = super().put_if_absent(name, data)
        if self.lost:
            self.lost -= 1
            raise StorageError("the response was lost")
        return done


def a_create_whose_response_is_lost_is_found_out(storage: Storage) -> None:
    """Hazard 1: after an error the object is read back, and is known to be ours or not."""
    clock = SystemClock()
    mine = create_once(_LosesResponses(storage), "mine", b"nonce 1", clock)
    expect(mine, "a create whose response was lost was taken for somebody else's")
    expect_equal(storage.get("mine"), b"nonce 1", "what was created")
    theirs = create_once(_LosesResponses(storage), "mine", b"nonce 2", clock)
    expect(not theirs, "somebody else's object was taken for ours")


def the_probe_passes_and_leaves_nothing(storage: Storage) -> None:
    """The check that is made when a store is created. Raises PutIfAbsentBroken."""
    expect(probe(storage).checks, "the probe did nothing")
    expect_equal(list(storage.list_all("")), [], "what the probe left behind")


# -- whole objects -------------------------------------------------------------------------------


def partial_objects_are_never_seen(storage: Storage) -> None:
    """Hazard 8: a reader that polls sees a large object whole or not at all."""
    content = bytes(range(256)) * (_LARGE_BYTES // 256)
    stop = threading.Event()
    sizes: set[int] = set()
    listed: set[str] = set()
    failed: list[StorageError] = []

    def poll() -> None:
        try:
            while not stop.is_set():
                for name in ("put", "uploaded"):
                    try:
                        sizes.add(len(storage.get(f"large/{name}")))
                    except ObjectNotFound:
                        continue
                listed.update(storage.list_names("large"))
        except StorageError as error:
            failed.append(error)

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        storage.put("large/put", content)
        with storage.upload("large/uploaded") as upload:
            for start in range(0, len(content), 1 << 20):
                upload.write(content[start : start + (1 << 20)])
    finally:
        stop.set()
        reader.join()
    if failed:
        raise failed[0]
    expect(sizes <= {len(content)}, f"a part of an object was read: {sizes} bytes")
    expect(listed <= {"put", "uploaded"}, f"a listing showed what is not there yet: {listed}")
    expect_equal(storage.get("large/uploaded") == content, True, "a large object as it was written")


def a_damaged_object_is_replaced_or_stays(storage: Storage) -> None:
    """What a replicated store needs of its roots: in one step, or the storage says that it cannot.

    Either way the name stays taken, and nothing else is there afterwards.
    """
    first, others = b"damaged", (b"whole", b"longer, and whole" * 1000, b"")
    storage.put("mended/1", first)
    storage.put("mended/2", b"a neighbour")
    for data in others:
        try:
            storage.replace("mended/1", data)
        except CannotReplace:
            data = first
        expect_equal(storage.get("mended/1"), data, "what is there after an object was replaced")
        expect_equal(storage.size("mended/1"), len(data), "its length")
        expect(not storage.put_if_absent("mended/1", b"x"), "a replaced object's name was free")
    expect_equal(storage.get("mended/2"), b"a neighbour", "the neighbour of what was replaced")
    listed = [name for name, _ in storage.list_all("")]
    expect_equal(sorted(listed), ["mended/1", "mended/2"], "what there is after a replacement")


def an_upload_that_fails_leaves_nothing(storage: Storage) -> None:
    """Hazard 8: an exception inside an upload publishes no half file."""

    def fail() -> None:
        raise KeyError

    with suppress(KeyError), storage.upload("half") as upload:
        upload.write(b"x" * (2 << 20))
        fail()
    expect_equal(storage.list_names(""), [], "what a failed upload left behind")
    expect_missing(partial(storage.get, "half"), "half")


def an_upload_ends_once(storage: Storage) -> None:
    """Closing twice publishes once; discarding a published upload keeps it; none writes later."""
    upload = storage.upload("data/one")
    upload.write(b"one")
    expect_equal(storage.list_names("data"), [], "an upload that is not closed shows")
    upload.close()
    upload.close()
    upload.discard()
    expect_equal(storage.get("data/one"), b"one", "an upload")
    try:
        upload.write(b"more")
    except ValueError:
        pass
    else:
        raise NotConforming("a closed upload took more bytes")
    with storage.upload("data/empty"):
        pass
    expect_equal(storage.get("data/empty"), b"", "an empty upload")


def bytes_of_any_kind_are_kept(storage: Storage) -> None:
    """Every byte value, nothing at all, and buffers that are not bytes."""
    content = bytes(range(256))
    storage.put("all", content)
    storage.put_if_absent("none", b"")
    with storage.upload("buffer") as upload:
        written = upload.write(memoryview(content))  # type: ignore[arg-type]
        expect_equal(written, 256, "how many bytes were written")
    expect_equal(storage.get("all"), content, "every byte value")
    expect_equal(storage.get("buffer"), content, "a buffer")
    expect_equal(storage.get("none"), b"", "an empty object")
    expect_equal(storage.get_range("none", 0, 5), b"", "a range of an empty object")


def large_uploads_arrive_whole(storage: Storage) -> None:
    """20 MiB in pieces that fit no part's size."""
    content = bytes(range(251)) * ((20 << 20) // 251)
    with storage.upload("large") as upload:
        for start in range(0, len(content), 999_983):
            upload.write(content[start : start + 999_983])
    expect_equal(storage.size("large"), len(content), "the size of a large object")
    expect(storage.get("large") == content, "a large object came back with other bytes")
    middle = len(content) // 2
    found = storage.get_range("large", middle, middle + 1000)
    expect(found == content[middle : middle + 1000], "a range within a large object is wrong")


# -- reading -------------------------------------------------------------------------------------


def ranged_reads_are_exact(storage: Storage) -> None:
    """Exactly the bytes asked for, fewer only where the object ends; one by one and together."""
    storage.put("range", b"0123456789")
    wanted = {(0, 10): b"0123456789", (3, 5): b"34", (8, 99): b"89", (10, 12): b"", (4, 4): b""}
    for (start, stop), expected in wanted.items():
        found = storage.get_range("range", start, stop)
        expect_equal(found, expected, f"bytes [{start}, {stop}) of ten")
    for some in ([*wanted], [place for place in wanted if place[0] < place[1]]):
        together = storage.get_ranges([("range", *place) for place in some])
        expect_equal(together, [wanted[place] for place in some], "several ranges of an object")
    expect_equal(storage.size("range"), 10, "a size")


def missing_objects_are_named(storage: Storage) -> None:
    """Reading a missing object names it."""
    storage.put("no/other", b"x")
    for call in (
        partial(storage.get, "no/such"),
        partial(storage.get_range, "no/such", 0, 1),
        partial(storage.get_ranges, [("no/other", 0, 1), ("no/such", 0, 1)]),
        partial(storage.size, "no/such"),
        partial(storage.get, "none/such"),
    ):
        expect_missing(call, "such")


def many_are_read_in_the_order_of_their_names(storage: Storage) -> None:
    """Whole objects, one for each name; a missing one is an error."""
    names = [f"some/{number}" for number in range(40)]
    storage.gather([partial(storage.put, name, name.encode()) for name in names])
    names.reverse()
    expect_equal(storage.get_many(names), [name.encode() for name in names], "many objects")
    expect_equal(storage.get_many(names[:1]), [b"some/39"], "many objects that are one")
    expect_equal(storage.get_many([]), [], "many objects that are none")
    expect_missing(lambda: storage.get_many([*names, "some/none"]), "some/none")


def ages_are_told_by_the_storages_clock_or_not_at_all(storage: Storage) -> None:
    """A time within an hour of ours, or None; an error for a missing object."""
    storage.put("a/one", b"1")
    told_ms = storage.modified_ms("a/one")
    if told_ms is None:
        return
    wrong_ms = abs(told_ms - SystemClock().now_ms())
    expect(wrong_ms < _HOUR_MS, f"the storage's clock and ours differ by {wrong_ms} ms")
    expect_missing(partial(storage.modified_ms, "a/none"), "a/none")


# -- listings and deletions ----------------------------------------------------------------------


def listings_are_fresh(storage: Storage) -> None:
    """Hazard 7: what was put is listed at once, what was deleted is not, in any handle."""
    other = hand_over(storage)
    names = [f"{number:02d}" for number in range(20)]
    for number, name in enumerate(names):
        storage.put(f"log/{name}", b"x")
        expect_equal(other.list_names("log"), names[: number + 1], "a listing right after a put")
    storage.delete([*(f"log/{name}" for name in names[:10]), "log/never"])
    expect_equal(other.list_names("log"), names[10:], "a listing right after a deletion")


def listings_start_after_a_name_and_stay_in_their_folder(storage: Storage) -> None:
    """Names compare as strings; deeper objects and neighbours of a like name are not listed."""
    for name in ("log/1.json", "log/1.commit", "log/2.json", "log/sub/3.json", "logs/4.json"):
        storage.put(name, b"x")
    storage.put(".dotted/log/0", b"x")
    for start_after, expected in (
        ("", ["1.commit", "1.json", "2.json"]),
        ("1.commit", ["1.json", "2.json"]),
        ("2", ["2.json"]),
        ("3", []),
    ):
        found = storage.list_names("log", start_after)
        expect_equal(found, expected, f"a listing that starts after {start_after!r}")
    expect_equal(storage.list_names("missing"), [], "a folder that is not there")
    expect_equal(storage.list_folders("missing"), [], "folders of one that is not there")
    expect_equal(storage.list_folders("log"), ["sub"], "folders in a folder")
    expect_equal(storage.list_folders(""), [".dotted", "log", "logs"], "folders in the root")
    sizes = dict(storage.list_all("log"))
    expect_equal(
        sorted(sizes),
        [f"log/{n}" for n in ("1.commit", "1.json", "2.json", "sub/3.json")],
        "all below a folder",
    )
    expect_equal(sizes["log/sub/3.json"], 1, "a size in a listing")


def long_listings_are_complete(storage: Storage, count: int = MANY) -> None:
    """More names than one page of an object store holds, and from within."""
    names = [f"{number:05d}" for number in range(count)]
    storage.gather([partial(storage.put, f"many/{name}", b"") for name in names])
    expect(storage.list_names("many") == names, f"a listing of {count} names is not complete")
    middle = count // 2
    found = storage.list_names("many", names[middle])
    expect(found == names[middle + 1 :], "a listing that starts in the middle is not complete")
    everything = sorted(name for name, _ in storage.list_all("many"))
    expect(everything == [f"many/{name}" for name in names], "list_all is not complete")
    storage.delete([f"many/{name}" for name in names])
    expect_equal(storage.list_names("many"), [], "what is left when all was deleted")


def folders_go_with_their_last_object(storage: Storage) -> None:
    """Listing folders, as of transactional ids, does not show those of deleted ones."""
    storage.put("ids/old/0", b"x")
    storage.put("ids/new/0", b"x")
    storage.delete(["ids/old/0"])
    expect_equal(storage.list_folders("ids"), ["new"], "folders after a deletion")
    expect_equal([name for name, _ in storage.list_all("")], ["ids/new/0"], "what is left")


# -- names, handles, calls together --------------------------------------------------------------


def no_name_leaves_the_root(storage: Storage) -> None:
    """Whatever a name is, it stays below the root."""
    for name in ("", "../x", "a/../../x", "/etc/x", "a//b", "./a", "a\\b", "a\0b", "\ud800"):
        for call in (
            partial(storage.get, name),
            partial(storage.upload, name),
            partial(storage.size, name),
            partial(storage.put_if_absent, name, b"x"),
            partial(storage.delete, [name]),
        ):
            expect_error(InvalidOption, call, f"the name {name!r}")


def names_are_kept_as_they_are(storage: Storage) -> None:
    """Characters that are special in URLs and shells, and text that is not English."""
    names = sorted(["a b", "a+b", "a%20b", "a?b=c", "a#b", "a&b", "a'b", "a=b,c", "ä€", "a~b"])
    for name in names:
        storage.put(f"odd/{name}", name.encode())
    expect_equal(sorted(storage.list_names("odd")), names, "odd names in a listing")
    for name in names:
        expect_equal(storage.get(f"odd/{name}"), name.encode(), f"the object {name!r}")
    storage.delete([f"odd/{name}" for name in names])
    expect_equal(storage.list_names("odd"), [], "odd names after their deletion")


def handles_travel(storage: Storage) -> None:
    """A storage survives being sent to another process, with its root; its text names the root."""
    other = hand_over(storage)
    expect(other.put_if_absent("here", b"x"), "creating a new name was refused")
    expect(not storage.put_if_absent("here", b"y"), "two handles have different roots")
    expect_equal(other.url, storage.url, "the URL of another handle")
    expect(storage.url in repr(storage), "the text of a handle does not name its root")


def gather_keeps_the_order_and_raises_the_first_error(storage: Storage) -> None:
    """All calls are made; the first error in order is raised."""
    done: list[int] = []

    def call(number: int) -> int:
        done.append(number)
        if number in (3, 5):
            raise StorageError(f"call {number}")
        return number

    try:
        storage.gather([partial(call, number) for number in range(8)])
    except StorageError as error:
        expect_equal(str(error), "call 3", "the error that is raised")
    else:
        raise NotConforming("the errors of two calls were swallowed")
    expect_equal(sorted(done), list(range(8)), "the calls that were made")
    doubled = storage.gather([partial(operator.mul, number, 2) for number in range(40)])
    expect_equal(doubled, list(range(0, 80, 2)), "the results of calls, in order")
    expect_equal(storage.gather(iter([lambda: 1])), [1], "the result of one call")
    expect_equal(storage.gather(iter([])), [], "the results of no calls")


def what_all_put_alike_is_there_once(storage: Storage) -> None:
    """Who is first is told so; other bytes are not replaced, and no others put in their place."""
    expect(storage.put_decided("decided/one", b"1"), "the first put was refused")
    expect(not storage.put_decided("decided/one", b"1"), "the second put was the first, too")
    expect(not storage.put_if_absent("decided/one", b"2"), "what was decided was replaced")
    expect(storage.put_if_absent("decided/two", b"1"), "the first put was refused")
    expect(not storage.put_decided("decided/two", b"2"), "an object was replaced")
    for name in ("decided/one", "decided/two"):
        expect_equal(storage.get(name), b"1", f"{name} after it was put again")


def a_round_of_puts_is_there_when_it_returns(storage: Storage) -> None:
    """Objects and uploads, in one folder and in several; an error is raised when all have ended."""
    upload = storage.upload("round/one")
    upload.write(b"1")
    storage.put_round(
        [
            upload.close,
            partial(storage.put, "round/two", b"2"),
            partial(storage.put_if_absent, "elsewhere/three", b"3"),
        ]
    )
    for name, data in (("round/one", b"1"), ("round/two", b"2"), ("elsewhere/three", b"3")):
        expect_equal(storage.get(name), data, f"{name} after its round")

    def fail() -> None:
        raise StorageError("no")

    expect_error(
        StorageError,
        lambda: storage.put_round([fail, partial(storage.put, "round/four", b"4")]),
        "a round of which one put failed",
    )
    expect_equal(storage.get("round/four"), b"4", "a put beside one that failed")
    with storage.count_later() as count:
        storage.put_round([partial(storage.put, "round/five", b"5")])
    count()
    expect_equal(storage.get("round/five"), b"5", "a put of a round that counts later")


CHECKS: tuple[Check, ...] = (
    a_name_is_created_once,
    threads_that_race_have_one_winner,
    a_create_whose_response_is_lost_is_found_out,
    the_probe_passes_and_leaves_nothing,
    partial_objects_are_never_seen,
    a_damaged_object_is_replaced_or_stays,
    an_upload_that_fails_leaves_nothing,
    an_upload_ends_once,
    bytes_of_any_kind_are_kept,
    large_uploads_arrive_whole,
    ranged_reads_are_exact,
    missing_objects_are_named,
    many_are_read_in_the_order_of_their_names,
    ages_are_told_by_the_storages_clock_or_not_at_all,
    listings_are_fresh,
    listings_start_after_a_name_and_stay_in_their_folder,
    long_listings_are_complete,
    folders_go_with_their_last_object,
    no_name_leaves_the_root,
    names_are_kept_as_they_are,
    handles_travel,
    gather_keeps_the_order_and_raises_the_first_error,
    a_round_of_puts_is_there_when_it_returns,
    what_all_put_alike_is_there_once,
)
