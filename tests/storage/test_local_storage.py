"""What is particular to local files: durability, links, processes, full disks, leftovers."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from txnlog.errors import ObjectNotFound, StorageError, UnsupportedFilesystem
from txnlog.storage import open_storage
from txnlog.storage.adapters import held_folders, inside
from txnlog.storage.adapters.held_folders import HeldFolder
from txnlog.storage.adapters.local import LocalStorage
from txnlog.storage.adapters.memory import MemoryStorage
from txnlog.storage.base import Storage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.testing import HeapStorage


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    """An empty storage."""
    return LocalStorage(str(tmp_path / "store"))


def create_all(storage: LocalStorage, racer: int, count: int) -> list[bool]:
    """Create ``count`` names, as every other process does."""
    return [storage.put_if_absent(f"race/{n}", b"%d" % racer) for n in range(count)]


def test_racing_processes_have_one_winner(storage: LocalStorage) -> None:
    """Four processes create the same names: each has one winner, whose bytes are there."""
    processes, count = 4, 100
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(create_all, storage, racer, count) for racer in range(processes)]
        results = [future.result(timeout=60) for future in futures]
    for number in range(count):
        won = [result[number] for result in results]
        assert won.count(True) == 1
        assert storage.get(f"race/{number}") == b"%d" % won.index(True)
    assert dict(storage.list_all(".tmp")) == {}


def test_creating_and_pruning_a_folder_do_not_hurt_each_other(tmp_path: Path) -> None:
    """A folder may vanish, because its last object is deleted, while somebody creates in it."""
    storage = LocalStorage(str(tmp_path / "store"), fsync=False)  # fast, so that they meet

    def churn(thread: int) -> None:
        for number in range(500):
            name = f"a/b/{thread}-{number}"
            assert storage.put_if_absent(name, b"x")
            assert storage.get(name) == b"x"
            storage.delete([name])

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(churn, range(4))) == [None] * 4
    assert storage.list_folders("") == []


def test_a_folder_may_vanish_again_and_again(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same without chance: five times somebody prunes the folder just before the link."""
    real = os.link
    pruned: list[Path] = []
    folder = Path(storage.url, "a")

    def link(source: str, target: str, **places: int) -> None:
        if len(pruned) < 5 and folder.exists():
            folder.rmdir()
            pruned.append(folder)
        real(source, target, **places)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", link)
    assert storage.put_if_absent("a/b", b"x")
    assert len(pruned) == 5
    assert storage.get("a/b") == b"x"


def test_a_folder_may_vanish_while_it_is_made(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another's folder exists when ours is to be made, and is gone when we check it."""
    real = os.mkdir
    met: list[object] = []

    def mkdir(path: object, *arguments: object, **place: object) -> None:
        if len(met) < 3:
            met.append(path)
            raise FileExistsError(17, "File exists")
        real(path, *arguments, **place)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "mkdir", mkdir)
    assert storage.put_if_absent("a/b", b"x")
    assert len(met) == 3


def test_a_slow_filesystem_is_read_in_threads(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many files are read here while that is quick; where it is not, all that are left at once."""
    names = [f"a/{n}" for n in range(5)]
    for name in names:
        storage.put(name, name.encode())
    readers: list[int] = []
    read = storage.get
    clock = iter([0.0, 0.0, 0.001, 0.1])
    together = threading.Barrier(3, timeout=30)

    def noted(name: str) -> bytes:
        readers.append(threading.get_ident())
        if len(readers) > 2:
            together.wait()
        return read(name)

    monkeypatch.setattr(storage, "get", noted)
    monkeypatch.setattr("txnlog.storage.adapters.local.time.monotonic", lambda: next(clock))
    assert storage.get_many(names) == [name.encode() for name in names]
    here = threading.get_ident()
    assert readers[:2] == [here, here]
    assert len({*readers[2:]}) == 3


# -- durability ----------------------------------------------------------------------------------


def note_calls(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """The calls of these ``os`` functions, in order; an fsync says of what."""
    calls: list[str] = []
    for name in names:
        real = getattr(os, name)

        def noted(*args: object, name: str = name, real: object = real, **kwargs: object) -> object:
            what = ""
            if name == "fsync":
                what = " folder" if Path(f"/proc/self/fd/{args[0]}").is_dir() else " file"
            calls.append(name + what)
            return real(*args, **kwargs)  # type: ignore[operator]

        monkeypatch.setattr(os, name, noted)
    return calls


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_bytes_are_durable_before_the_name_is(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The content is synced before the name shows, the name before the create is reported."""
    calls = note_calls(monkeypatch, "fsync", "link")
    storage.put_if_absent("a/first", b"x")
    # A new folder: its parents' names as well, up to that of the root, and once those above it.
    assert calls[:5] == ["fsync file", "link"] + ["fsync folder"] * 3
    assert set(calls[5:]) <= {"fsync folder"}
    calls.clear()
    storage.put_if_absent("a/second", b"x")
    assert calls == ["fsync file", "link", "fsync folder"]
    calls.clear()
    with storage.upload("a/third") as upload:
        upload.write(b"x")
    assert calls == ["fsync file", "link", "fsync folder"]
    calls.clear()
    storage.put_if_absent("a/second", b"y")
    assert calls == []
    calls.clear()
    storage.put_if_absent("a/b/c/first", b"x")
    # Two new folders: their names and the one above, whose own name is durable already.
    assert calls == ["fsync file", "link"] + ["fsync folder"] * 3


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_the_name_of_a_folder_that_was_made_anew_is_synced_again(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that went and came back is another one, whoever made it."""
    calls = note_calls(monkeypatch, "fsync")
    storage.put("a/first", b"x")
    root = Path(storage.url)
    (root / "others").mkdir()
    (root / "a" / "first").rename(root / "others" / "first")
    (root / "a").rmdir()
    (root / "others").rename(root / "a")
    calls.clear()
    storage.put("a/second", b"x")
    assert calls == ["fsync file"] + ["fsync folder"] * 2


class ReusedInodes:
    """Numbers folders as ext4 does: by the lowest number of none that is there, or still open.

    It stands in place of the module ``os``.
    """

    close = staticmethod(os.close)

    def __init__(self, top: Path) -> None:
        self._top = top
        self._numbers: dict[int, int] = {}

    def fstat(self, descriptor: int) -> SimpleNamespace:
        in_use = {path.stat().st_ino for path in [self._top, *self._top.rglob("*/")]}
        for opened in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                in_use.add(opened.stat().st_ino)
        self._numbers = {real: told for real, told in self._numbers.items() if real in in_use}
        free = next(n for n in itertools.count() if n not in self._numbers.values())
        told = self._numbers.setdefault(os.fstat(descriptor).st_ino, free)
        return SimpleNamespace(st_dev=-1, st_ino=told)


def _we_prune_and_make(storage: LocalStorage) -> None:
    storage.delete(["a/b/first"])
    storage.put("a/b/other", b"x")
    storage.delete(["a/b/other"])


def _we_prune_and_others_make(storage: LocalStorage) -> None:
    storage.delete(["a/b/first"])
    (Path(storage.url) / "a" / "b").mkdir(parents=True)


def _others_prune_and_make_half(storage: LocalStorage) -> None:
    shutil.rmtree(Path(storage.url) / "a")
    storage.put("a/other", b"x")
    (Path(storage.url) / "a" / "b").mkdir()


def _others_remove_the_root(storage: LocalStorage) -> None:
    shutil.rmtree(storage.url)


def _others_make_all_anew(storage: LocalStorage) -> None:
    shutil.rmtree(Path(storage.url) / "a")
    (Path(storage.url) / "a" / "b").mkdir(parents=True)


def _others_make_the_last_anew(storage: LocalStorage) -> None:
    shutil.rmtree(Path(storage.url) / "a" / "b")
    (Path(storage.url) / "a" / "b").mkdir()


@pytest.fixture
def synced(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The folders that are synced, relative to the root; inodes are used again at once."""
    names: list[str] = []
    real, real_above = LocalStorage._sync_folder, inside.open_folder_above

    def sync_folder(self: LocalStorage, folder: str) -> int | None:
        names.append(folder or ".")
        return real(self, folder)

    def open_above(path: str) -> int:
        names.append(os.path.relpath(path, storage.url))
        return real_above(path)

    monkeypatch.setattr(LocalStorage, "_sync_folder", sync_folder)
    monkeypatch.setattr("txnlog.storage.adapters.local.open_folder_above", open_above)
    monkeypatch.setattr(held_folders, "os", ReusedInodes(Path(storage.url).parent))
    held: dict[tuple[int, int], HeldFolder] = {}
    monkeypatch.setattr(held_folders, "_held", held)
    yield names
    for folder in held.values():
        os.close(folder.descriptor)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_we_prune_and_make, ["a/b", "a", "."]),
        (_we_prune_and_others_make, ["a/b", "a", "."]),
        (_others_prune_and_make_half, ["a/b", "a"]),
        (_others_make_all_anew, ["a/b", "a", "."]),
        (_others_make_the_last_anew, ["a/b", "a"]),
        (_others_remove_the_root, ["a/b", "a", ".", ".."]),
    ],
)
def test_a_new_folder_with_the_inode_of_an_old_one_is_another_one(
    change: Callable[[LocalStorage], None],
    named: list[str],
    storage: LocalStorage,
    synced: list[str],
) -> None:
    """Whoever made it may have died before its name was durable."""
    storage.put("a/b/first", b"x")
    change(storage)
    synced.clear()
    storage.put("a/b/second", b"x")
    assert synced[: len(named)] == named


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_what_was_in_a_folder_that_others_made_anew_is_not_known(
    storage: LocalStorage, synced: list[str]
) -> None:
    """We have been in the new folder since, and not in what is in it."""
    storage.put("a/b/first", b"x")
    _others_make_all_anew(storage)
    storage.put("a/c/first", b"x")
    synced.clear()
    storage.put("a/b/second", b"x")
    assert synced == ["a/b", "a"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_folder_that_is_made_anew_while_it_is_synced_is_not_known(
    storage: LocalStorage, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others come in between the sync of the folder and that of the one above."""
    watched = LocalStorage._sync_folder

    def disturbed(self: LocalStorage, folder: str) -> int | None:
        if folder == "a":
            monkeypatch.setattr(LocalStorage, "_sync_folder", watched)
            _others_make_all_anew(storage)
        return watched(self, folder)

    monkeypatch.setattr(LocalStorage, "_sync_folder", disturbed)
    storage.put("a/b/first", b"x")
    synced.clear()
    storage.put("a/b/second", b"x")
    assert synced == ["a/b", "a"]
    synced.clear()
    storage.put("a/b/third", b"x")
    assert synced == ["a/b"]


def test_few_folders_are_held_open(
    storage: LocalStorage, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process has few descriptors. Of what was let go the name is synced again."""
    monkeypatch.setattr(held_folders, "_MOST_HELD", 4)
    for number in range(10):
        storage.put(f"{number}/first", b"x")
    assert len(held_folders._held) <= 4
    synced.clear()
    storage.put("9/second", b"x")
    storage.put("0/second", b"x")
    assert synced == ["9", "0", "."]


def test_folders_are_not_synced_where_they_cannot_be_opened(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows; the files are."""
    monkeypatch.setattr(inside, "OPENS_FOLDERS", False)
    calls = note_calls(monkeypatch, "fsync")
    storage.put("a/b", b"x")
    storage.confirm("a/b")
    assert calls == ["fsync file", "fsync file"]


def test_syncing_can_be_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without fsync nothing is synced; the rest is the same."""
    calls = note_calls(monkeypatch, "fsync")
    storage = LocalStorage(str(tmp_path / "fast"), fsync=False)
    storage.put("a/b", b"x")
    with storage.upload("a/c") as upload:
        upload.write(b"y")
    assert storage.list_names("a") == ["b", "c"]
    assert calls == []


_DIES = """
import os, signal, sys
from txnlog.storage.adapters.local import LocalStorage
upload = LocalStorage(sys.argv[1]).upload("data/half")
upload.write(b"x" * 100_000)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_upload_publishes_nothing(storage: LocalStorage) -> None:
    """Hazard 8: what is left is a temporary file, which the listing of everything shows."""
    finished = subprocess.run([sys.executable, "-c", _DIES, storage.url], check=False, timeout=30)
    assert finished.returncode == -signal.SIGKILL
    assert storage.list_names("data") == []
    assert storage.list_folders("") == []
    leftovers = list(storage.list_all(""))
    assert [size for _, size in leftovers] == [100_000]
    storage.delete(name for name, _ in leftovers)
    assert list(storage.list_all("")) == []
    assert storage.put_if_absent("data/half", b"whole")


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.condition(55)
def test_a_full_disk_is_a_clear_error(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up within an object; nothing shows, and the next run goes on."""
    real = os.write

    def full(descriptor: int, data: memoryview) -> int:
        if len(data) > 10:
            return real(descriptor, data[:10])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StorageError, match=r"creating .*/a/b failed: .*disk is full") as caught:
            storage.put_if_absent("a/b", b"x" * 100)
        assert isinstance(caught.value.__cause__, OSError)
        upload = storage.upload("a/c")
        with pytest.raises(StorageError, match=r"writing .*/a/c failed: .*disk is full"):
            upload.write(b"x" * 100)
        upload.discard()
    assert list(storage.list_all("")) == []
    assert storage.put_if_absent("a/b", b"x" * 100)


@pytest.mark.condition(55)
def test_denied_permission_is_a_clear_error(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulated, because tests may run as root, whom nothing is denied."""

    def denied(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(StorageError, match="permission is denied: check who may write there"):
        storage.put_if_absent("a/b", b"x")
    with pytest.raises(StorageError, match="permission is denied"):
        storage.upload("a/b")


def test_a_file_where_a_folder_is_needed_is_a_clear_error(storage: LocalStorage) -> None:
    """The message names the file in the way; deleting below it is not an error."""
    storage.put("a", b"x")
    for call in (lambda: storage.put_if_absent("a/b", b"x"), lambda: storage.get("a/b")):
        with pytest.raises(StorageError, match="a file stands where a folder is needed"):
            call()
    with pytest.raises(StorageError, match="a file stands where a folder is needed"):
        storage.list_names("a")
    storage.delete(["a/b"])
    assert storage.get("a") == b"x"


def test_a_filesystem_without_hard_links_is_refused(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAT and some network drives: a remedy instead of a half-working store; nothing is left."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(UnsupportedFilesystem, match="refuses hard links"):
        storage.put_if_absent("a", b"x")
    with pytest.raises(UnsupportedFilesystem, match="refuses hard links"), storage.upload("b"):
        pass
    assert list(storage.list_all("")) == []


def test_a_name_of_an_upload_that_is_taken_is_an_error(storage: LocalStorage) -> None:
    """Unique names are the caller's promise; the file that is there is never replaced."""
    storage.put("a", b"old")
    with pytest.raises(StorageError, match="should be unique"):
        storage.put("a", b"new")
    upload = storage.upload("a")
    upload.write(b"new")
    with pytest.raises(StorageError, match="should be unique"):
        upload.close()
    assert storage.get("a") == b"old"
    assert [name for name, _ in storage.list_all("")] == ["a"]


# -- symbolic links ------------------------------------------------------------------------------


def test_links_lead_no_write_and_no_deletion_outside(storage: LocalStorage, tmp_path: Path) -> None:
    """A link within the store must not let a cleanup reach somebody's other files."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"x")
    storage.put("topics/real", b"x")
    (tmp_path / "store/topics/link").symlink_to(outside)
    (tmp_path / "store/topics/round").symlink_to(tmp_path / "store")
    for call in (
        lambda: storage.put_if_absent("topics/link/new", b"x"),
        lambda: storage.put("topics/link/new", b"x"),
        lambda: storage.delete(["topics/link/precious"]),
        lambda: storage.upload("topics/link/new").close(),
    ):
        with pytest.raises(StorageError, match="symbolic link"):
            call()
    assert os.listdir(outside) == ["precious"]  # noqa: PTH208
    assert storage.list_folders("topics") == ["link", "round"]
    assert [name for name, _ in storage.list_all("topics")] == ["topics/real"]


def test_links_are_listed_only_to_folders_and_only_in_place_of_a_logs(
    storage: LocalStorage, tmp_path: Path
) -> None:
    """What nobody can take for a topic, a group or an id that is missing stops no cleanup."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "file").write_bytes(b"x")
    listed = {}
    for folder in ("topics", "groups", "transactions", "topics/t", "tables", "expired", ""):
        storage.put(f"{folder}/own/x".lstrip("/"), b"x")
        (tmp_path / "store" / folder / "folder").symlink_to(tmp_path / "outside")
        (tmp_path / "store" / folder / "file").symlink_to(tmp_path / "file")
        (tmp_path / "store" / folder / "nothing").symlink_to(tmp_path / "nothing")
        listed[folder] = "folder" in storage.list_folders(folder)
        assert not {"file", "nothing"} & {*storage.list_folders(folder)}
    assert [folder for folder, is_listed in listed.items() if is_listed] == [
        *("topics", "groups", "transactions")
    ]


@pytest.fixture(params=[True, False])
def linked(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., LocalStorage]:
    """Opens a storage in which a topic is a link to an archive outside, in each way."""
    monkeypatch.setattr(inside, "BY_DESCRIPTOR", request.param)
    LocalStorage(str(tmp_path / "store")).put("topics/own/a", b"x")
    (tmp_path / "archive" / "moved" / "data").mkdir(parents=True)
    (tmp_path / "archive" / "moved" / "data" / "b").write_bytes(b"y")
    (tmp_path / "archive" / "moved" / "again").symlink_to(tmp_path / "archive" / "moved")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "c").write_bytes(b"z")
    (tmp_path / "store" / "topics" / "moved").symlink_to(tmp_path / "archive" / "moved")
    (tmp_path / "store" / "topics" / "other").symlink_to(tmp_path / "elsewhere")
    return lambda *links_to: LocalStorage(str(tmp_path / "store"), links_to=links_to)


def test_links_lead_where_the_operator_has_allowed(
    linked: Callable[..., LocalStorage], tmp_path: Path
) -> None:
    """A topic may lie elsewhere; other links, and links behind that one, lead nowhere."""
    storage = linked(str(tmp_path / "archive"))
    assert storage.list_folders("topics") == ["moved", "other", "own"]
    assert [*storage.list_all("topics")] == [("topics/moved/data/b", 1), ("topics/own/a", 1)]
    assert storage.list_names("topics/moved/data") == ["b"]
    assert storage.get("topics/moved/data/b") == b"y"
    assert storage.size("topics/moved/data/b") == 1
    assert storage.put_if_absent("topics/moved/data/d", b"1")
    assert storage.put_if_absent("topics/moved/new/e", b"2")
    assert (tmp_path / "archive/moved/new/e").read_bytes() == b"2"
    storage.delete(["topics/moved/data/d", "topics/moved/new/e"])
    assert sorted(path.name for path in (tmp_path / "archive/moved").iterdir()) == ["again", "data"]
    for name in ("topics/other/c", "topics/moved/again/data/b"):
        with pytest.raises(StorageError, match="symbolic link"):
            storage.get(name)
    again = pickle.loads(pickle.dumps(storage))
    assert again.get("topics/moved/data/b") == b"y"
    at = storage.address()
    assert open_storage(at.url, at.options).get("topics/moved/data/b") == b"y"


def test_links_lead_nowhere_unless_that_is_said(linked: Callable[..., LocalStorage]) -> None:
    """Neither those that lead out of the store nor those within it."""
    storage = linked()
    assert storage.list_folders("topics") == ["moved", "other", "own"]
    assert [*storage.list_all("topics")] == [("topics/own/a", 1)]
    with pytest.raises(StorageError, match="links in a store lead nowhere unless the option"):
        storage.get("topics/moved/data/b")
    with pytest.raises(StorageError, match="symbolic link"):
        storage.list_names("topics/moved/data")


def test_a_root_that_is_a_link_is_followed_once(tmp_path: Path) -> None:
    """Many stores are reached through a link; one put in its place later leads nobody elsewhere."""
    real, other, link = tmp_path / "real", tmp_path / "other", tmp_path / "link"
    real.mkdir()
    other.mkdir()
    link.symlink_to(real)
    storage = LocalStorage(str(link))
    link.unlink()
    link.symlink_to(other)
    storage.put("a", b"x")
    assert (real / "a").read_bytes() == b"x"
    with pytest.raises(ObjectNotFound):
        LocalStorage(str(link)).get("a")


def test_whether_a_disk_folds_case_is_looked_up(storage: LocalStorage) -> None:
    """By a name in the root, in the other case; here a second name stands for such a disk."""
    assert not storage.folds_case()
    root = Path(storage.url)
    root.mkdir()
    (root / "123").write_bytes(b"x")
    assert not storage.folds_case()
    (root / "txnlog.json").write_bytes(b"x")
    (root / "TXNLOG.JSON").hardlink_to(root / "txnlog.json")
    assert storage.folds_case()
    other = LocalStorage(storage.url)
    (root / "TXNLOG.JSON").unlink()
    assert storage.folds_case()  # it is looked up once
    assert not other.folds_case()
    (root / "TXNLOG.JSON").write_bytes(b"another")
    assert not LocalStorage(storage.url).folds_case()


def test_uploads_need_little_memory(storage: LocalStorage) -> None:
    """64 MiB in pieces of 1 MiB: memory does not grow with the object."""
    import tracemalloc

    piece = bytes(1 << 20)
    tracemalloc.start()
    try:
        with storage.upload("large") as upload:
            for _ in range(64):
                upload.write(piece)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20
    assert storage.size("large") == 64 << 20


def test_an_interrupt_leaves_no_unfinished_file(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a file is opened: it is there then, though nobody has its descriptor yet."""
    real = os.open

    def interrupted(path: str, flags: int, mode: int, *, dir_fd: int | None) -> int:
        descriptor = real(path, flags, mode, dir_fd=dir_fd)
        if flags & os.O_CREAT:
            os.close(descriptor)
            raise KeyboardInterrupt
        return descriptor

    storage.put("kept", b"x")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", interrupted)
        with pytest.raises(KeyboardInterrupt):
            storage.put_if_absent("a", b"x")
        with pytest.raises(KeyboardInterrupt):
            storage.upload("b")
    assert list(storage.list_all("")) == [("kept", 1)]


def test_an_interrupt_on_the_way_to_a_folder_closes_no_descriptor_twice(tmp_path: Path) -> None:
    """It could be another thread's file by then; here the second time is an OSError."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    place = inside.Inside(str(tmp_path)).place
    for line in itertools.count():
        left = itertools.count(line, -1)

        def interrupt(frame: FrameType, event: str, _: object, left: Any = left) -> Any:
            if frame.f_code is not inside.Inside.place.__code__:
                return None
            if event == "line" and next(left) == 0:
                raise KeyboardInterrupt
            return interrupt

        sys.settrace(interrupt)
        try:
            with place("a/b/c"):
                break
        except KeyboardInterrupt:
            continue
        finally:
            sys.settrace(None)
    assert line > 10


@pytest.mark.parametrize("kind", ["local", "memory", "heap"])
def test_a_damaged_object_is_replaced_in_one_step(tmp_path: Path, kind: str) -> None:
    """What is not there is not made, and nothing is left over."""
    make: dict[str, Callable[[], Storage]] = {
        "local": lambda: LocalStorage(str(tmp_path)),
        "memory": lambda: MemoryStorage(str(tmp_path)),
        "heap": HeapStorage,
    }
    storage = make[kind]()
    storage.put("f/x", b"damaged")
    storage.replace("f/x", b"whole")
    with pytest.raises(ObjectNotFound):
        storage.replace("f/y", b"whole")
    assert storage.get("f/x") == b"whole"
    assert [*storage.list_all("")] == [("f/x", 5)]
    if kind == "local":
        assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["x"]


@pytest.mark.parametrize("kind", ["local", "memory", "heap"])
def test_an_object_of_another_folder_is_taken_over(tmp_path: Path, kind: str) -> None:
    """On disks as a second name of the same file. What is done to the first changes nothing."""
    make: dict[str, Callable[[str], Storage]] = {
        "local": lambda name: LocalStorage(str(tmp_path / name)),
        "memory": lambda name: MemoryStorage(str(tmp_path / name)),
        "heap": lambda _: HeapStorage(),
    }
    source, target = make[kind]("a"), make[kind]("b")
    source.put("f/x", b"first")
    assert ForwardingStorage(target).take_over("f/x", ForwardingStorage(source))
    if kind == "local":
        paths = [tmp_path / one / "f/x" for one in "ab"]
        assert paths[0].samefile(paths[1])
        assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["x", "x"]
    assert not target.take_over("f/x", source)  # the name is taken
    source.replace("f/x", b"second")
    assert target.get("f/x") == b"first"
    source.delete(["f/x"])
    assert target.get("f/x") == b"first"
    with pytest.raises(ObjectNotFound):
        target.take_over("f/y", source)
    assert not target.take_over("f/x", HeapStorage() if kind != "heap" else MemoryStorage("b"))


def test_no_link_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"secret")
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").symlink_to(tmp_path / "outside")
    source, target = LocalStorage(str(tmp_path / "a")), LocalStorage(str(tmp_path / "b"))
    with pytest.raises(StorageError, match="a symbolic link"):
        target.take_over("x", source)
    assert target.list_names("") == []


def test_what_is_taken_over_is_synced_before_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file, and the folder of its new name."""
    source, target = LocalStorage(str(tmp_path / "a")), LocalStorage(str(tmp_path / "b"))
    source.put("f/x", b"1")
    synced: set[int] = set()
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    assert target.take_over("f/x", source)
    wanted = ("b/f/x", "b/f", "b")
    assert {(tmp_path / one).stat().st_ino for one in wanted} <= synced


def test_what_cannot_be_deleted_keeps_nothing_else(tmp_path: Path) -> None:
    """Neither what comes before it nor what comes behind; it is told when the others are gone."""
    storage = LocalStorage(str(tmp_path))
    for name in ("f/a", "f/b/in the way", "f/c", "g/d"):
        storage.put(name, b"x")
    with pytest.raises(StorageError, match=r"deleting .*/f/b failed"):
        storage.delete(["f/a", "f/b", "f/c", "g/d"])
    assert [name for name, _ in storage.list_all("")] == ["f/b/in the way"]
    assert not (tmp_path / "g").exists()
