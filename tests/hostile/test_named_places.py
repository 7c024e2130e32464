"""What a store names is asked only if the user has named it, too; options go nowhere else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import txnlog
from tests.support.storage.listening_server import listening
from txnlog.errors import InvalidOption, TxnlogError
from txnlog.replication import (
    Follower,
    Standby,
    open_replicas,
    recover_controller,
    root_names,
)
from txnlog.replication.roots.epochs import DECODER
from txnlog.replication.roots.members import MemberOpener, OwnerMark
from txnlog.storage import envelope, open_storage, reach
from txnlog.storage.reach import Reach, UnnamedUrl

TOKEN = "a-delegation-token"


def root_of_somebody(folder: Path, controller: str) -> Path:
    folder.mkdir(parents=True)
    data = envelope.encode(OwnerMark(controller, "of-nobody", "r0"))
    (folder / root_names.REPLICA_FILE).write_bytes(data)
    return folder


@pytest.mark.parametrize("options", [{}, {"token": TOKEN}, {"user": "me"}])
@pytest.mark.parametrize("opens", [txnlog.open, open_replicas])
def test_a_local_root_sends_nothing_to_its_controller(
    tmp_path: Path, options: dict[str, object], opens: Callable[..., Any]
) -> None:
    """Neither options nor the name of the user; the message says how to allow it."""
    with listening() as (host, asked):
        root = root_of_somebody(tmp_path / "given", f"webhdfs://{host}/control")
        with pytest.raises(InvalidOption, match=f"webhdfs://{host}/control, and nothing is sent"):
            opens(str(root), storage_options=options)
        assert asked == []


@pytest.mark.parametrize("path", [r"\\\\server\\share", "//server/share", r"\\/server\\share"])
def test_windows_asks_no_server_that_a_path_names(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would prove there who the user is; elsewhere that is a path like any other."""
    assert Reach().options_for(path) == {}
    monkeypatch.setattr(reach, "_WINDOWS", True)
    with pytest.raises(UnnamedUrl, match="nothing is sent there"):
        Reach().options_for(path)
    assert Reach(typed=["C:\\store"]).options_for("C:\\other") == {}


def test_what_the_user_names_is_asked_with_its_own_options(tmp_path: Path) -> None:
    """By its URL, or by its server; what is for others does not go there."""
    with listening() as (host, asked), listening() as (other, others):
        root = root_of_somebody(tmp_path / "given", f"webhdfs://{host}/control")
        for named in (f"webhdfs://{host}/control", f"webhdfs://{host}", f"webhdfs://{host}/"):
            options = {
                "token": "not-this-one",
                named: {"token": TOKEN},
                f"webhdfs://{other}": {"token": "nor-that"},
            }
            asked.clear()
            with pytest.raises(TxnlogError):
                txnlog.open(str(root), storage_options=options)
            assert [path for path in asked if TOKEN in path] == asked != []
            assert [path for path in asked if "not-this" in path or "nor-that" in path] == []
        assert others == []


def test_a_root_that_was_not_named_is_neither_asked_nor_put_out(tmp_path: Path) -> None:
    """Epochs name it, and it is in sync: this process lacks the right, and the root nothing."""
    made = open_replicas(
        [str(tmp_path / "a"), str(tmp_path / "b")],
        controller=str(tmp_path / "control"),
        create=True,
    ).store
    epoch = made.storage.agreement.epoch()  # type: ignore[attr-defined]
    with listening() as (host, asked):
        named = f"webhdfs://{host}/b"
        roots = {**epoch.roots, "r1": msgspec.structs.replace(epoch.roots["r1"], url=named)}
        path = tmp_path / "control" / root_names.epoch_file(0)
        path.write_bytes(envelope.encode(msgspec.structs.replace(epoch, roots=roots)))
        with pytest.raises(UnnamedUrl, match=named):
            txnlog.open(str(tmp_path / "a"), storage_options={"token": TOKEN})
        shown = open_replicas(str(tmp_path / "a")).describe()
        assert (shown.epoch, shown.in_sync) == (0, ("r0-0", "r1-0"))
        assert [one.url for one in shown.replicas] == [str(tmp_path / "a"), named]
        assert asked == []


def test_a_note_of_an_epoch_leads_to_no_server(tmp_path: Path) -> None:
    """Who recovers a controller by a root sends nothing to where that says that others are."""
    root, control = tmp_path / "a", tmp_path / "control"
    made = open_replicas([str(root), str(tmp_path / "b")], controller=str(control), create=True)
    made.store.topics.create("t")
    shutil.rmtree(control)
    note = root / root_names.incarnation_folder(0) / root_names.epoch_note(0)
    epoch = envelope.decode(note.read_bytes(), DECODER, str(note))
    with listening() as (host, asked):
        named = f"webhdfs://{host}/b"
        roots = {**epoch.roots, "r1": msgspec.structs.replace(epoch.roots["r1"], url=named)}
        note.write_bytes(envelope.encode(msgspec.structs.replace(epoch, roots=roots)))
        options = {"token": TOKEN}
        with pytest.raises(UnnamedUrl, match=named):
            recover_controller(str(root), str(tmp_path / "new"), storage_options=options)
        assert asked == []
    assert not (tmp_path / "new").exists()


def test_a_typed_server_leads_to_no_other(tmp_path: Path) -> None:
    """A root on the server that was opened names a controller elsewhere, which gets nothing."""
    pytest.importorskip("requests")
    from tests.support.storage.fake_webhdfs import run_fake_webhdfs

    with listening() as (host, asked), run_fake_webhdfs() as files:
        opened = f"webhdfs://127.0.0.1:{files.port}/given"
        named = f"webhdfs://{host}/control"
        storage = open_storage(opened, {"token": TOKEN})
        storage.put(root_names.REPLICA_FILE, envelope.encode(OwnerMark(named, "of-nobody", "r0")))
        with pytest.raises(UnnamedUrl, match=named):
            txnlog.open(opened, storage_options={"token": TOKEN})
        assert asked == []


def test_a_standby_sends_nothing_to_its_source(tmp_path: Path) -> None:
    """What is missing cannot be told then, and why is said."""
    source = txnlog.open(tmp_path / "source", create=True)
    source.topics.create("orders", partitions=1)
    Follower(source, tmp_path / "copy").follow()
    standby = txnlog.open(tmp_path / "copy")
    with listening() as (host, asked):
        named = f"webhdfs://{host}/source"
        changed = msgspec.structs.replace(Standby(standby).reached(), source=named)
        path = tmp_path / "copy" / root_names.round_file(0)
        path.write_bytes(envelope.encode(changed))
        standby = txnlog.open(tmp_path / "copy")
        promoted = Standby(standby).promote({"token": TOKEN}, dry_run=True)
        assert (promoted.source, promoted.missing) == (named, None)
        assert "nothing is sent there" in promoted.why_unknown
        assert asked == []
        Standby(standby).promote({f"webhdfs://{host}": {"token": TOKEN}}, dry_run=True)
        assert [path for path in asked if TOKEN in path] == asked != []


def test_options_are_for_the_servers_that_were_named() -> None:
    """Those without a URL are for what was typed, and go to no other server or bucket."""
    plain = {"key": "k"}
    reach = Reach({**plain, "s3://c/deep": {"key": "deep"}}, ["s3a://a/one", "/disk/root"])
    for url, options in {
        "s3://a/one": plain,
        "s3://a/other": plain,
        "s3://A/one": plain,
        "s3://c/deep": {"key": "deep"},
        "s3://c/deep/er": {"key": "deep"},
        "/disk/root": {},
        "/disk/elsewhere": {},
        "memory://x": {},
    }.items():
        assert reach.options_for(url) == options
    for url in ("s3://ab/one", "s3://c/deeper", "s3://c", "gs://a/one", "webhdfs://a/one"):
        with pytest.raises(UnnamedUrl, match="nothing is sent there"):
            reach.options_for(url)
    assert Reach({"s3://": plain}).options_for("s3://any/where") == plain
    assert Reach({"s3://b": '{"key": "k"}'}).options_for("s3://b/x") == plain
    disks = Reach({"links_to": "/a", **plain, "/disk/b": {"links_to": "/b"}}, ["/disk/a", "s3://a"])
    assert disks.options_for("/disk/a") == {"links_to": "/a"}
    assert disks.options_for("/disk/b") == {"links_to": "/b"}
    assert disks.options_for("s3://a/one") == plain
    with pytest.raises(InvalidOption, match="must be a JSON object"):
        Reach({"s3://b": "k"})


def test_another_process_may_ask_the_same() -> None:
    """What was typed here is named there, where the controller's URL is all that is typed."""
    opener = MemberOpener({"key": "k", "s3://b/control": {"key": "c"}}, ["s3://a/root"])
    there = Reach(opener.options, ["s3://b/control"])
    assert there.options_for("s3://a/root") == {"key": "k"}
    assert there.options_for("s3://b/control") == {"key": "c"}
    with pytest.raises(UnnamedUrl):
        there.options_for("s3://c/other")
