"""What is particular to HDFS over HTTP: the rename, lost responses, NameNodes, pages, secrets."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import txnlog
from tests.support.storage.fake_webhdfs import FakeWebHdfs, File, Request, run_fake_webhdfs
from txnlog.errors import InvalidOption, ObjectNotFound, StorageError, UnsupportedFilesystem
from txnlog.storage import open_storage
from txnlog.storage.adapters.webhdfs import WebHdfsStorage
from txnlog.storage.create_once import create_once
from txnlog.storage.probe import probe
from txnlog.testing import VirtualClock

_TOKEN = "delegation-token-that-is-secret"


@pytest.fixture
def hdfs() -> Iterator[FakeWebHdfs]:
    with run_fake_webhdfs() as hdfs:
        yield hdfs


def open_on(hdfs: FakeWebHdfs, **options: Any) -> WebHdfsStorage:
    storage = open_storage(f"webhdfs://127.0.0.1:{hdfs.port}/store", options)
    assert isinstance(storage, WebHdfsStorage)
    storage.trust()  # requests are counted
    return storage


@pytest.fixture
def storage(hdfs: FakeWebHdfs) -> WebHdfsStorage:
    return open_on(hdfs, user="root")


def faults(operation: str, *kinds: str) -> Callable[[Request], str]:
    """The first requests of an operation, as in "name RENAME", go wrong, each in its way."""
    left = list(kinds)

    def fault(request: Request) -> str:
        asked = f"{request.step} {request.operation}"
        return left.pop(0) if asked == operation and left else ""

    return fault


def test_each_operation_makes_few_requests(hdfs: FakeWebHdfs, storage: WebHdfsStorage) -> None:
    """A create looks, writes beside, and renames; whoever is too late only looks."""
    storage.put_if_absent("a/1", b"x")
    create = ["name CREATE", "data CREATE", "name RENAME"]
    first = ["name GETFILESTATUS", *create, "name MKDIRS", "name RENAME"]
    assert hdfs.operations == first
    hdfs.requests.clear()
    storage.put_if_absent("a/1", b"x")
    storage.put("a/2", b"x")
    storage.get("a/1")
    storage.get_range("a/1", 0, 1)
    storage.get_range("a/1", 1, 1)
    storage.size("a/1")
    storage.list_names("a")
    storage.list_folders("")
    reads = ["name OPEN", "data OPEN"] * 2
    others = ["name GETFILESTATUS", "name LISTSTATUS_BATCH", "name LISTSTATUS_BATCH"]
    assert hdfs.operations == ["name GETFILESTATUS", *create, *reads, *others]


def test_the_probe_passes(hdfs: FakeWebHdfs, storage: WebHdfsStorage) -> None:
    """Sixteen racers: one winner in each race, whole, and no file is left."""
    assert probe(storage, rounds=4).checks
    assert hdfs.files == {}


def test_nothing_shows_before_it_is_complete(hdfs: FakeWebHdfs, storage: WebHdfsStorage) -> None:
    """Hazard 8: while the DataNode writes, neither the name nor the folder of it is there."""
    seen: list[object] = []

    def look(request: Request) -> str:
        if request.operation == "RENAME":
            hdfs.fault = lambda _: ""
            seen.append([path for path in hdfs.files if "/.tmp/" not in path])
            seen.append([other.list_names("a"), other.list_folders("")])
        return ""

    other = open_on(hdfs)
    hdfs.fault = look
    with storage.upload("a/1") as upload:
        upload.write(b"x" * 1000)
    assert seen == [[], [[], []]]
    assert storage.get("a/1") == b"x" * 1000
    assert storage.list_folders("") == ["a"]


def test_blocks_are_synced_and_replication_is_honoured(hdfs: FakeWebHdfs) -> None:
    """Durable means on the disks of DataNodes before the name shows."""
    open_on(hdfs, replication="2").put("a", b"x")
    file = hdfs.files["/store/a"]
    assert (file.flags, file.replication) == ("CREATE,SYNC_BLOCK", 2)


def test_a_file_that_was_found_is_confirmed_by_an_edit(
    hdfs: FakeWebHdfs, storage: WebHdfsStorage
) -> None:
    """A rename shows before the NameNode's log is synced: another edit is behind it in the log."""
    storage.put("a", b"x")
    modified_ms = storage.modified_ms("a")
    hdfs.edits.clear()
    storage.confirm("a")
    assert hdfs.edits == ["times /store/a"]
    assert storage.modified_ms("a") == modified_ms
    with pytest.raises(ObjectNotFound):
        storage.confirm("b")


def test_who_may_only_read_confirms_by_an_edit_elsewhere(
    hdfs: FakeWebHdfs, storage: WebHdfsStorage
) -> None:
    """Edits are in one log, so that one in the folder which is everybody's is behind it, too."""
    storage.put("a", b"x")
    hdfs.folders.add("/tmp")
    hdfs.edits.clear()
    hdfs.fault = faults("name SETTIMES", "AccessControlException")
    storage.confirm("a")
    assert [edit.partition("/txnlog-")[0] for edit in hdfs.edits] == ["mkdir /tmp", "delete /tmp"]
    refused = ("SETTIMES", "MKDIRS")
    hdfs.fault = lambda r: "AccessControlException" if r.operation in refused else ""
    with pytest.raises(StorageError, match=r"confirming .*/a failed: .*permission") as caught:
        storage.confirm("a")
    assert not caught.value.retriable


# -- responses that are lost ---------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["lose", "refuse", "half", "503"])
@pytest.mark.parametrize(
    "operation", ["name GETFILESTATUS", "name CREATE", "data CREATE", "name RENAME"]
)
def test_creates_survive_lost_responses(
    hdfs: FakeWebHdfs, storage: WebHdfsStorage, operation: str, fault: str
) -> None:
    """Hazard 1: wherever it breaks, the object is ours, whole, and no other file is left."""
    storage.put("a/0", b"the folder is there")
    hdfs.fault = faults(operation, fault)
    assert create_once(storage, "a/1", b"mine", VirtualClock())
    assert not create_once(storage, "a/1", b"other", VirtualClock())
    assert storage.get("a/1") == b"mine"
    assert sorted(hdfs.files) == ["/store/a/0", "/store/a/1"]


def test_a_rename_is_never_repeated(hdfs: FakeWebHdfs, storage: WebHdfsStorage) -> None:
    """Its repetition would be told that there is no such file: the outcome is unknown, and said."""
    storage.put("a/0", b"the folder is there")
    hdfs.requests.clear()
    hdfs.fault = faults("name RENAME", "lose")
    with pytest.raises(StorageError, match=r"creating .*/a/1 failed") as caught:
        storage.put_if_absent("a/1", b"mine")
    assert caught.value.retriable
    assert hdfs.operations.count("name RENAME") == 1
    assert storage.get("a/1") == b"mine"


def test_a_rename_that_somebody_repeated_is_in_doubt(
    hdfs: FakeWebHdfs, storage: WebHdfsStorage
) -> None:
    """A gateway that repeats it is told that the file is gone: neither taken nor a missing one."""

    def repeated(request: Request) -> str:
        if request.operation == "RENAME":
            hdfs.fault = lambda _: ""
            hdfs.rename(request.path, request.arguments)
        return ""

    storage.put("a/0", b"the folder is there")
    hdfs.fault = repeated
    with pytest.raises(StorageError, match="rename source") as caught:
        storage.put_if_absent("a/1", b"mine")
    assert not isinstance(caught.value, ObjectNotFound)
    assert caught.value.retriable
    hdfs.fault = repeated
    assert create_once(storage, "a/2", b"mine", VirtualClock())


def test_what_does_no_harm_is_asked_again(hdfs: FakeWebHdfs, storage: WebHdfsStorage) -> None:
    """Reads and listings survive two broken connections, and not a third."""
    storage.put("a", b"content")
    for operation in ("name OPEN", "data OPEN", "name LISTSTATUS_BATCH"):
        hdfs.fault = faults(operation, "refuse", "half")
        assert storage.get("a") == b"content"
        assert storage.list_names("") == ["a"]
        hdfs.fault = faults(operation, *["half"] * 3)
        with pytest.raises(StorageError, match="failed"):
            storage.get("a") if "OPEN" in operation else storage.list_names("")


# -- folders and listings ------------------------------------------------------------------------


def test_folders_that_others_prune_are_made_again(
    hdfs: FakeWebHdfs, storage: WebHdfsStorage
) -> None:
    """Between mkdir and rename somebody deletes the last object of the folder, and the folder."""
    prunings = 3

    def prune(request: Request) -> str:
        nonlocal prunings
        if request.operation == "RENAME" and prunings:
            prunings -= 1
            hdfs.folders.discard("/store/a/b")
            hdfs.folders.discard("/store/a")
        return ""

    hdfs.fault = prune
    assert storage.put_if_absent("a/b/1", b"x")
    assert storage.get("a/b/1") == b"x"
    assert prunings == 0


def test_folders_go_with_their_last_object(hdfs: FakeWebHdfs, storage: WebHdfsStorage) -> None:
    """Up to the root, which stays; a folder in which something lies stays, too."""
    for name in ("a/b/1", "a/b/2", "c/1"):
        storage.put(name, b"x")
    storage.delete(["a/b/1", "a/b/none"])
    assert storage.list_folders("a") == ["b"]
    storage.delete(["a/b/2"])
    assert storage.list_folders("") == ["c"]
    storage.delete(["c/1"])
    assert "/store" in hdfs.folders


def test_a_namenode_that_is_away_is_not_asked_for_folders(
    hdfs: FakeWebHdfs, storage: WebHdfsStorage
) -> None:
    """They are looked at after all that could be deleted was."""
    for name in ("a/1", "b/1"):
        storage.put(name, b"x")
    asked: list[str] = []

    def fault(request: Request) -> str:
        asked.append(request.path)
        return kind if request.path == "/store/a/1" else ""

    hdfs.fault = fault
    for kind, others in (("503", {"/store/b/1"}), ("AccessControlException", {"/store/b"})):
        with pytest.raises(StorageError, match="deleting"):
            storage.delete(["a/1", "b/1"])
        assert others <= {*asked}
        assert ("/store/b" in asked) is (kind != "503")


def test_listings_have_pages(hdfs: FakeWebHdfs, storage: WebHdfsStorage) -> None:
    """Each page begins behind the last name; one that begins behind a name asks for the rest."""
    hdfs.page = 3
    names = [f"{number:02d}" for number in range(10)]
    for name in names:
        hdfs.files[f"/store/many/{name}"] = File()
    hdfs.folders |= {"/store", "/store/many"}
    assert storage.list_names("many") == names
    assert hdfs.operations == ["name LISTSTATUS_BATCH"] * 4
    hdfs.requests.clear()
    assert storage.list_names("many", "07") == ["08", "09"]
    assert len(hdfs.requests) == 1
    assert [name for name, _ in storage.list_all("")] == [f"many/{name}" for name in names]


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [(0, 10, b"0123456789"), (3, 5, b"34"), (8, 99, b"89"), (10, 12, b""), (11, 12, b"")],
)
def test_ranges_end_where_the_object_does(
    storage: WebHdfsStorage, start: int, stop: int, expected: bytes
) -> None:
    """A range behind the end is refused by the NameNode, and is nothing."""
    storage.put("a", b"0123456789")
    storage.put("empty", b"")
    assert storage.get_range("a", start, stop) == expected
    assert storage.get_range("empty", start, stop) == b""


def test_what_a_killed_writer_left_is_listed(hdfs: FakeWebHdfs, storage: WebHdfsStorage) -> None:
    """Vacuum finds it below .tmp/, with its age; no listing of folders shows it."""
    hdfs.fault = faults("name RENAME", "refuse")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(storage.client), "delete", lambda *_: None)
        with pytest.raises(StorageError):
            storage.put("a", b"x")
    ((left, size),) = storage.list_all("")
    assert left.startswith(".tmp/")
    assert size == 1
    assert storage.modified_ms(left) is not None
    assert storage.list_folders("") == []
    storage.delete([left])
    assert list(storage.list_all("")) == []


# -- other servers -------------------------------------------------------------------------------


def test_a_gateway_that_gives_no_reason_is_understood(
    hdfs: FakeWebHdfs, storage: WebHdfsStorage
) -> None:
    """{"boolean": false} is said of a taken name and of a missing folder: it is looked which."""
    hdfs.renames_with_options = False
    assert storage.put_if_absent("a/1", b"x")
    barrier = threading.Barrier(8)

    def create(number: int) -> bool:
        barrier.wait()
        return storage.put_if_absent("a/2", b"%d" % number)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(8)))
    assert won.count(True) == 1
    assert storage.get("a/2") == b"%d" % won.index(True)


def test_the_active_namenode_is_found(hdfs: FakeWebHdfs) -> None:
    """One is down, one on standby; once found the active one is asked first."""
    with run_fake_webhdfs() as standby:
        standby.fault = lambda _: "StandbyException"
        hosts = f"127.0.0.1:9,127.0.0.1:{standby.port},127.0.0.1:{hdfs.port}"
        storage = WebHdfsStorage("webhdfs://cluster/store", {"namenodes": hosts})
        storage.trust()
        assert storage.put_if_absent("a", b"x")
        assert storage.get("a") == b"x"
        assert len(standby.requests) == 1
        hdfs.fault = standby.fault
        with pytest.raises(StorageError, match=r"StandbyException.*name all of them") as caught:
            storage.get("a")
        assert caught.value.retriable


def test_a_namenode_on_standby_that_names_a_datanode_is_passed_over(hdfs: FakeWebHdfs) -> None:
    """For a create it does not look at what it is: the DataNode that it names is told.

    A DataNode that is told so may hang up while the body is sent: the next create goes elsewhere.
    """
    with run_fake_webhdfs() as standby:
        standby.fault = faults("data CREATE", *["StandbyException"] * 9)
        hosts = f"127.0.0.1:{standby.port},127.0.0.1:{hdfs.port}"
        storage = WebHdfsStorage("webhdfs://cluster/store", {"namenodes": hosts})
        storage.trust()
        storage.put("a", b"x")
        with storage.upload("b") as upload:
            upload.write(b"large")
        assert standby.operations == ["name CREATE", "data CREATE"]
        assert (storage.get("a"), storage.get("b")) == (b"x", b"large")
        hdfs.fault = faults("data CREATE", *["StandbyException"] * 9)
        with pytest.raises(StorageError, match=r"StandbyException.*name all of them") as caught:
            storage.put("c", b"x")
        assert caught.value.retriable
        hdfs.fault, standby.fault = standby.fault, faults("data CREATE", "refuse")
        storage = WebHdfsStorage("webhdfs://cluster/store", {"namenodes": hosts})
        with pytest.raises(StorageError):
            storage.put("d", b"x")
        hdfs.fault = faults("", "")
        storage.put("d", b"x")
        assert sorted(hdfs.files) == ["/store/a", "/store/b", "/store/d"]


def test_a_namenode_that_steps_down_before_the_read_is_passed_over(hdfs: FakeWebHdfs) -> None:
    """It named a DataNode while it was active; asked again it says that it is not."""
    with run_fake_webhdfs() as first:
        hosts = f"127.0.0.1:{first.port},127.0.0.1:{hdfs.port}"
        storage = WebHdfsStorage("webhdfs://cluster/store", {"namenodes": hosts})
        for cluster in (first, hdfs):
            cluster.folders.add("/store")
            cluster.files["/store/a"] = File(b"x")
        first.fault = lambda _: "" if first.operations == ["name OPEN"] else "StandbyException"
        assert storage.get("a") == b"x"
        assert first.operations == ["name OPEN", "data OPEN", "name OPEN"]


@pytest.mark.parametrize(
    ("exception", "hint", "retriable"),
    [
        ("AccessControlException", "permission is denied", False),
        ("SafeModeException", "has left it", True),
        ("NSQuotaExceededException", "quota", False),
        ("ParentNotDirectoryException", "a file stands where a folder is needed", False),
        ("IOException", "check the storage", True),
    ],
)
def test_errors_say_what_to_do(
    hdfs: FakeWebHdfs, storage: WebHdfsStorage, exception: str, hint: str, retriable: bool
) -> None:
    """A refusal is told apart from a taken name by what the NameNode says it is."""
    storage.put("a/0", b"the folder is there")
    hdfs.fault = faults("name RENAME", exception)
    with pytest.raises(StorageError, match=f"creating webhdfs://.*told so; .*{hint}") as caught:
        storage.put_if_absent("a/1", b"x")
    assert caught.value.retriable == retriable
    assert sorted(hdfs.files) == ["/store/a/0"]


def test_what_is_no_namenode_is_recognised(hdfs: FakeWebHdfs) -> None:
    """A web page in place of JSON, and nothing at all, with what to check."""
    other = open_storage(f"webhdfs://127.0.0.1:{hdfs.port}/store", {})
    hdfs.fault = lambda _: "503"
    with pytest.raises(StorageError, match="HTTP 503"):
        other.get("a")
    gone = WebHdfsStorage("webhdfs://127.0.0.1:9/store")
    with pytest.raises(StorageError, match="check host and HTTP port"):
        gone.get("a")


# -- what is given -------------------------------------------------------------------------------


def test_who_we_are_goes_with_each_request_to_a_namenode(
    hdfs: FakeWebHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user and for whom they act, or a delegation token; without, who is logged in."""
    monkeypatch.setenv("HADOOP_USER_NAME", "batch")
    open_on(hdfs).list_names("")
    assert hdfs.requests[-1].arguments["user.name"] == "batch"
    monkeypatch.delenv("HADOOP_USER_NAME")
    monkeypatch.setattr("getpass.getuser", lambda: "me")
    open_on(hdfs).list_names("")
    assert hdfs.requests[-1].arguments["user.name"] == "me"
    open_on(hdfs, user="etl", proxy_to="alice").list_names("")
    told = hdfs.requests[-1].arguments
    assert (told["user.name"], told["doas"]) == ("etl", "alice")
    open_on(hdfs, token=_TOKEN).list_names("")
    told = hdfs.requests[-1].arguments
    assert told["delegation"] == _TOKEN
    assert "user.name" not in told


def test_tokens_never_show(hdfs: FakeWebHdfs) -> None:
    """Not in a text, not in a traceback, not when the server or the HTTP client repeats them."""
    storage = open_on(hdfs, token=_TOKEN)
    gone = WebHdfsStorage("webhdfs://127.0.0.1:9/store", {"token": _TOKEN})
    hdfs.fault = lambda _: "refuse"
    shown = repr(storage) + storage.url + repr(storage.address())
    for failing in (storage, gone):
        with pytest.raises(StorageError) as caught:
            failing.get("a")
        shown += "".join(traceback.format_exception(caught.value))
    hdfs.fault = lambda _: ""
    hdfs.files["/store/a"] = File(b"content")
    hdfs.fault = lambda request: "refuse" if request.step == "data" else ""
    with pytest.raises(StorageError, match="reading") as caught:
        storage.get("a")
    shown += "".join(traceback.format_exception(caught.value))
    assert "ConnectionError" in shown
    assert _TOKEN not in shown


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("webhdfs://host:9870", {}, "needs a host and a folder"),
        ("webhdfs:///folder", {}, "needs a host and a folder"),
        ("webhdfs://me:secret@host/folder", {}, "credentials"),
        ("webhdfs://host/folder?user.name=me", {}, "queries"),
        ("webhdfs://host/a/../b", {}, "leave its folder"),
        ("webhdfs://host:x/a", {}, "port"),
        ("hdfs://host:99999/a", {}, "port"),
        ("webhdfs://c/a", {"namenodes": "host:9870,other:x"}, "namenodes: the port"),
        ("webhdfs://c/a", {"namenodes": "http://[::1"}, "namenodes"),
        ("webhdfs://c/a", {"namenodes": "http://host:9870"}, "must be HOST:PORT"),
        ("webhdfs://host/a:b", {}, "colon"),
        ("webhdfs://host/a", {"usr": "x"}, "no storage option usr; it takes data_proxy"),
        ("webhdfs://host/a", {"replication": "two"}, "whole number"),
        ("webhdfs://host/a", {"token": "x", "user": "me"}, "leave out user"),
    ],
)
def test_what_cannot_be_meant_is_refused(url: str, options: dict[str, Any], said: str) -> None:
    """Before anything is asked of a server."""
    with pytest.raises(InvalidOption, match=said) as caught:
        open_storage(url, options)
    assert "secret" not in str(caught.value)


def test_names_with_colons_are_refused(storage: WebHdfsStorage) -> None:
    """HDFS has none, and says so less clearly."""
    with pytest.raises(InvalidOption, match="HDFS allows no colon"):
        storage.put("a:b", b"x")


def test_addresses_of_namenodes() -> None:
    """Ports and protocols that follow from the URL."""
    assert WebHdfsStorage("webhdfs://nn/a").namenodes() == ["http://nn:9870"]
    assert WebHdfsStorage("swebhdfs://nn/a").namenodes() == ["https://nn:9871"]
    assert WebHdfsStorage("webhdfs://[::1]/a").namenodes() == ["http://[::1]:9870"]
    two = WebHdfsStorage("webhdfs://ns/a", {"namenodes": "n1:1, n2", "use_https": True})
    assert two.namenodes() == ["https://n1:1", "https://n2:9871"]
    named = open_storage("webhdfs://n1:1,n2:2/a", {"namenodes": "n1:1/"})
    assert isinstance(named, WebHdfsStorage)
    assert named.namenodes() == ["http://n1:1"]
    assert WebHdfsStorage("webhdfs://n1:1,n2:2/a").namenodes() == ["http://n1:1", "http://n2:2"]


def test_datanodes_are_reached_as_told(hdfs: FakeWebHdfs) -> None:
    """From outside a cluster's network its DataNodes have other addresses."""
    hidden = f"http://127.0.0.1:{hdfs.port}"
    hdfs.files["/store/a"] = File(b"content")
    proxied = open_on(hdfs, data_proxy={hidden: "http://127.0.0.1:9"})
    with pytest.raises(StorageError, match=r"127\.0\.0\.1:9"):
        proxied.get("a")


def test_a_child_of_a_fork_has_connections_of_its_own(
    storage: WebHdfsStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes that read from one socket would get each other's answers."""
    inherited = storage.client
    assert storage.client is inherited
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert storage.client is not inherited


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy is in the message."""
    monkeypatch.setitem(sys.modules, "requests_kerberos", None)
    with pytest.raises(UnsupportedFilesystem, match=r"pip install 'requests-kerberos>=\S+'$"):
        WebHdfsStorage("webhdfs://host/a", {"kerberos": True}).get("a")
    monkeypatch.delitem(sys.modules, "txnlog.storage.adapters.webhdfs_client")
    monkeypatch.setitem(sys.modules, "requests", None)
    with pytest.raises(UnsupportedFilesystem, match=r"pip install .* 'requests>=\S+'$"):
        WebHdfsStorage("webhdfs://host/a").get("a")


def test_a_store_is_made_and_written(hdfs: FakeWebHdfs) -> None:
    """Topics, a transaction, and what is read back."""
    open_on(hdfs).trust(probed=True)
    store = txnlog.open(f"webhdfs://127.0.0.1:{hdfs.port}/other", create=True)
    store.topics.create("a")
    with store.producer(transactional_id="me") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("a", "one")
        producer.commit_transaction()
    assert store.scan("a").to_arrow().column("value").to_pylist() == [b"one"]
    assert not [name for name in hdfs.files if "/.tmp/" in name]
