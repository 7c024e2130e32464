"""Which URL and options lead to which storage, what is refused, and what is imported when."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NoReturn
from zipfile import ZipFile

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from txnlog.errors import InvalidOption, InvalidTopic, StorageError, UnsupportedFilesystem
from txnlog.names import TopicPartition
from txnlog.storage import open_storage
from txnlog.storage.adapters.local import LocalStorage
from txnlog.storage.adapters.memory import MemoryStorage
from txnlog.storage.adapters.s3 import S3Storage
from txnlog.storage.adapters.single_writer import SingleWriterStorage
from txnlog.storage.counting import CountingStorage
from txnlog.storage.failure_messages import redact, redact_url, secrets_of
from txnlog.store import Store, open_store


def test_local_paths_and_file_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path, a relative one, one with ~, and file URLs as Python and Hadoop write them."""
    root = tmp_path.resolve()
    monkeypatch.chdir(root)
    monkeypatch.setenv("HOME", str(root))
    for url in (
        root / "a",
        "a",
        "./a/",
        "~/a",
        f"file://{root}/a",
        f"file://localhost{root}/a",
        f"file:{root}/a",
        f"FILE://{root}/a",
        f"local://{root}/a",
    ):
        storage = open_storage(url)
        assert isinstance(storage, LocalStorage)
        assert storage.url == f"{root}/a"
    assert open_storage(f"file://{root}/a#b?c%20d").url == f"{root}/a#b?c%20d"
    assert not (root / "a").exists()


def test_what_looks_like_a_url_is_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A protocol that is misspelt, or not known, must not become a local store in silence."""
    monkeypatch.chdir(tmp_path)
    for url in ("arrow_hdfs://host/a", "s3_prod://bucket/a", "3s://bucket/a", " s3://b/a", "ü://a"):
        with pytest.raises(UnsupportedFilesystem, match="has no atomic put-if-absent"):
            open_storage(url)
    with pytest.raises(InvalidOption, match="chain"):
        open_storage("my_cache::s3://bucket/a")
    assert open_storage("a_b:c").url == f"{tmp_path.resolve()}/a_b:c"
    assert open_storage("./a://b").url == f"{tmp_path.resolve()}/a:/b"
    assert not [*tmp_path.iterdir()]


def test_urls_of_memory_and_s3() -> None:
    """The storage, and the URL that messages show."""
    for url in ("memory://a/b", "memory:///a/b", "memory://a/b/"):
        storage = open_storage(url)
        assert isinstance(storage, MemoryStorage)
        assert storage.url == "memory://a/b"
    for url in ("s3://bucket/a/b", "s3a://bucket/a/b/", "S3://bucket/a/b"):
        storage = open_storage(url, {"key": "k", "secret": "s"})
        assert isinstance(storage, S3Storage)
        assert storage.url == "s3://bucket/a/b"
    assert open_storage("s3://bucket").url == "s3://bucket"


def test_a_relative_path_without_a_working_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was removed; absolute paths are fine."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(InvalidOption, match=r"a is a relative path, .* was removed"):
        open_storage("a")
    assert open_storage(str(tmp_path / "a")).url == str((tmp_path / "a").resolve())


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "  ",
            "a\0b",
            "s3://",
            "s3:///a",
            "s3:/bucket/a",
            "memory:a",
            "file://host/a",
            "file:",
        ),
        *("s3://key:secret@bucket/a", "s3://bucket/a?versionId=1", "s3://bucket/a/../b"),
        *("s3://bucket//a", "~nobody-of-this-name/a"),
    ],
)
def test_malformed_urls_are_refused(url: str) -> None:
    """A slip of the pen must not quietly make a folder of a strange name; no secret is repeated."""
    for opening in (open_storage, open_store):
        with pytest.raises(InvalidOption) as caught:
            opening(url)
        assert "key:secret" not in str(caught.value)
        assert "nothing is sent there" not in str(caught.value)


def test_other_types_are_refused() -> None:
    """None is what a missing setting looks like."""
    with pytest.raises(InvalidOption, match="not None"):
        open_storage(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url", ["github://org/a", "dropbox://c/a", "ftp://host/a", "http://u:pass@h/a"]
)
def test_other_filesystems_are_refused(url: str) -> None:
    """The message names the protocol, what is supported, and the flag; not a password."""
    with pytest.raises(UnsupportedFilesystem, match=r"unsafe_single_writer=True") as caught:
        open_storage(url)
    assert url.partition(":")[0] in str(caught.value)
    assert "s3://" in str(caught.value)
    assert "pass" not in str(caught.value)


def test_options_may_come_as_strings() -> None:
    """Spark and command lines know strings only."""
    storage = open_storage(
        "s3://bucket/a",
        {
            "key": "k",
            "secret": "1",
            "client_kwargs": '{"region_name": "eu-west-1"}',
            "use_ssl": "False",
            "anon": "true",
            "max_concurrency": "4",
        },
    )
    assert isinstance(storage, S3Storage)
    assert storage._options == {
        "key": "k",
        "secret": "1",
        "client_kwargs": {"region_name": "eu-west-1"},
        "use_ssl": False,
        "anon": True,
        "max_concurrency": 4,
    }


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("client_kwargs", "{hunter2"),
        ("client_kwargs", '["hunter2"]'),
        ("anon", "hunter2"),
        ("max_concurrency", "hunter2"),
        ("endpoint_url", "http://user:hunter2@host"),
        ("client_kwargs", {"endpoint_url": "http://user:hunter2@host"}),
    ],
)
def test_malformed_options_are_named_and_not_repeated(option: str, value: object) -> None:
    """The option's name, never its value: it may be a secret in the wrong place."""
    with pytest.raises(InvalidOption) as caught:
        open_storage("s3://bucket/a", {option: value})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("cause", "left"), [(TimeoutError(), ["a", "b"]), (PermissionError(13, "no"), ["a"])]
)
def test_only_what_is_refused_for_good_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, cause: OSError, left: list[str]
) -> None:
    """With any other failure the server may be away: then no other file is tried."""
    storage = SingleWriterStorage("memory://passed-over")
    for name in ("a", "b"):
        storage.put(name, b"x")
    real = MemoryFileSystem.rm_file

    def rm_file(filesystem: MemoryFileSystem, path: str) -> None:
        if path.endswith("/a"):
            raise cause
        real(filesystem, path)

    monkeypatch.setattr(MemoryFileSystem, "rm_file", rm_file)
    with pytest.raises(StorageError, match="deleting"):
        storage.delete(["a", "b"])
    assert storage.list_names("") == left


@pytest.mark.parametrize("url", ["/tmp/a", "memory://a"])
def test_options_that_nobody_takes_are_refused(url: str) -> None:
    """An option that has no effect is a mistake."""
    with pytest.raises(InvalidOption, match="takes no storage options, but got key, secret"):
        open_storage(url, {"secret": "hunter2", "key": "k"})


def test_single_writer_takes_what_it_is_told_to_take() -> None:
    """With the flag, any fsspec filesystem; its password stays out of every text."""
    storage = open_storage("ftp://user:hunter2hunter2@127.0.0.1:9/a", unsafe_single_writer=True)
    assert isinstance(storage, SingleWriterStorage)
    with pytest.raises(StorageError) as caught:
        storage.put_if_absent("x", b"x")
    assert "hunter2" not in f"{storage!r} {storage.url} {caught.value}"
    with pytest.raises(UnsupportedFilesystem, match="cannot be opened"):
        open_storage("nosuch://a", unsafe_single_writer=True).get("a")
    with pytest.raises(InvalidOption, match="caches"):
        open_storage("filecache::s3://bucket/a", unsafe_single_writer=True)


class OneConnection(MemoryFileSystem):
    """Like FTP's: of calls made at a time each may get the other's answer. Counts them."""

    protocol = "oneconnection"
    overlaps = 0
    _together = threading.Barrier(2)

    def pipe_file(self, path: str, value: bytes, **kwargs: object) -> None:
        try:
            self._together.wait(0.05)
        except threading.BrokenBarrierError:
            self._together.reset()
        else:
            OneConnection.overlaps += 1
        super().pipe_file(path, value, **kwargs)


class ListsNothing(MemoryFileSystem):
    """Shows in its listings what there was at the beginning."""

    protocol = "listsnothing"
    is_new = True

    def ls(self, path: str, detail: bool = True, **kwargs: object) -> object:
        return super().ls(path, detail, **kwargs) if self.is_new else []


for kind in (OneConnection, ListsNothing):
    fsspec.register_implementation(kind.protocol, kind, clobber=True)


def test_a_single_writers_calls_wait_for_each_other() -> None:
    """Nothing is known of the client, and the store uses it in many threads."""
    storage = open_storage("oneconnection://a", unsafe_single_writer=True)
    storage.gather(partial(storage.put, f"x/{number}", b"x") for number in range(6))
    assert storage.list_names("x") == [*"012345"]
    assert OneConnection.overlaps == 0


def test_a_single_writers_listings_must_show_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that is not listed is an empty one: records would be overwritten."""
    open_store("listsnothing://a", create=True, unsafe_single_writer=True)
    monkeypatch.setattr(ListsNothing, "is_new", False)
    with pytest.raises(UnsupportedFilesystem, match=r"txnlog\.json can be read, and no listing"):
        open_store("listsnothing://a", unsafe_single_writer=True)
    with ZipFile(tmp_path / "store.zip", "w") as packed:
        packed.writestr("txnlog.json", "{}")
    with pytest.raises(UnsupportedFilesystem, match="is an archive"):
        open_store(
            "zip://",
            storage_options={"fo": str(tmp_path / "store.zip")},
            unsafe_single_writer=True,
        )


class _Served(SimpleHTTPRequestHandler):
    """A folder, as ``python -m http.server`` shows it: whole files, whatever is asked for."""

    def log_message(self, *_: object) -> None:
        pass


class _ServedInRanges(_Served):
    """With ranges, as most servers do."""

    def do_GET(self) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None:
            return super().do_GET()
        data = Path(self.translate_path(self.path)).read_bytes()[int(asked[1]) : int(asked[2]) + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        return None


@pytest.fixture(params=[_Served, _ServedInRanges], ids=["whole files", "ranges"])
def web_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a folder, which anybody may read."""
    handler = partial(request.param, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_store_is_read_from_any_web_server(tmp_path: Path, web_server: str) -> None:
    """As it is on the disk: names that URLs quote, and records that share a file."""
    here = open_store(tmp_path / "store", create=True)
    here.topics.create("t", partitions=2)
    with here.producer(transactional_id="my.job") as producer:
        producer.init_transactions()
        with producer.transaction():
            for number in range(10):
                producer.send("t", b"%d" % number, partition=number % 2)
    here.consumer("t", group_id="my.group").commit({TopicPartition("t", 0): 3})
    there = open_store(f"{web_server}/store", unsafe_single_writer=True)

    def seen(store: Store) -> object:
        polled = []
        for number in range(2):
            consumer = store.consumer(auto_offset_reset="earliest")
            consumer.assign([TopicPartition("t", number)])
            polled.append([(record.offset, record.value) for record in consumer.poll()])
        return (
            polled,
            store.scan("t").to_arrow(),
            store.groups.list(),
            store.groups.describe("my.group").offsets,
            [*map(str, store.transactions.list())],
            store.transactions.describe("my.job").status,
        )

    assert seen(there) == seen(here)
    for name, size in here.storage.list_all(""):
        for start, stop in ((0, size), (1, 2), (size - 1, size), (size // 2, size + 9)):
            expected = here.storage.get_range(name, start, stop)
            assert there.storage.get_range(name, start, stop) == expected


class Folds(MemoryFileSystem):
    """Finds a name in any case, as a share of Windows does."""

    protocol = "folds"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        found, stripped = "", str(super()._strip_protocol(path))
        for part in filter(None, stripped.split("/")):
            above = f"{found}/"
            there = {key.removeprefix(above).partition("/")[0] for key in cls._under(above)}
            found = above + next((one for one in there if one.lower() == part.lower()), part)
        return found

    @classmethod
    def _under(cls, above: str) -> Iterator[str]:
        return (key for key in (*cls.store, *cls.pseudo_dirs) if key.startswith(above))


fsspec.register_implementation("folds", Folds, clobber=True)


@pytest.mark.parametrize("kind", ["folds", "nooptions"])
def test_a_single_writers_disk_may_fold_case(kind: str) -> None:
    """As a local disk: two spellings of a topic would be one log."""
    store = open_store(f"{kind}://case", create=True, unsafe_single_writer=True)
    store.topics.create("Orders")
    if kind == "folds":
        with pytest.raises(InvalidTopic, match="the disk does not tell upper from lower case"):
            store.topics.create("orders")
    else:
        store.topics.create("orders")
        assert store.topics.list() == ["Orders", "orders"]


class TakesNoOptions(MemoryFileSystem):
    """Its constructor knows its own arguments alone, as that of hdfs-native; it tells no times."""

    protocol = "nooptions"

    def __init__(self, user: str = "") -> None:
        super().__init__()
        self.user = user

    def modified(self, path: str) -> NoReturn:
        raise NotImplementedError


fsspec.register_implementation("nooptions", TakesNoOptions, clobber=True)


def test_a_filesystem_that_takes_no_option_of_ours_is_taken() -> None:
    """The cache of listings is switched off where there is a switch; the caller's options stay."""
    storage = open_storage("nooptions://a", {"user": "u"}, unsafe_single_writer=True)
    assert storage.put_if_absent("x", b"x")
    assert storage.list_names("") == ["x"]
    assert storage.modified_ms("x") is None
    with pytest.raises(UnsupportedFilesystem, match=r"cannot be opened: .*wrong"):
        open_storage("nooptions://a", {"wrong": "u"}, unsafe_single_writer=True).get("x")


class Breaks(MemoryFileSystem):
    """Cannot look or move while it is told not to, or says that it has moved and has not."""

    protocol = "breaks"
    broken = ""

    def info(self, path: str, **options: object) -> dict[str, object]:
        if self.broken == "info":
            raise ConnectionResetError("the connection was reset")
        found: dict[str, object] = super().info(path, **options)
        return found

    def mv(self, path1: str, path2: str, **options: object) -> None:
        if self.broken != "mv":
            super().mv(path1, path2, **options)


fsspec.register_implementation("breaks", Breaks, clobber=True)


def test_a_single_writer_concludes_nothing_from_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be looked up is not absent; a move that was not made is not a success."""
    storage = open_storage("breaks://a", unsafe_single_writer=True)
    storage.put_if_absent("x", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(Breaks, "broken", "info")
        with pytest.raises(StorageError, match="connection was reset"):
            storage.put_if_absent("x", b"new")
    assert storage.get("x") == b"old"
    with monkeypatch.context() as patch:
        patch.setattr(Breaks, "broken", "mv")
        with pytest.raises(StorageError, match="did not make it"):
            storage.put_if_absent("y", b"new")
        with pytest.raises(StorageError, match="did not make it"), storage.upload("z") as upload:
            upload.write(b"new")
    assert [name for name, _ in storage.list_all("")] == ["x"]


def test_nothing_is_imported_before_it_is_needed() -> None:
    """The import of the package stays cheap, and local stores need neither fsspec nor s3fs."""
    program = (
        "import sys, tempfile; from txnlog.storage import open_storage\n"
        "with tempfile.TemporaryDirectory() as root: open_storage(root + '/a').put('b', b'c')\n"
        "heavy = {'fsspec', 's3fs', 'aiobotocore', 'botocore', 'pyarrow', 'numpy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def test_texts_are_redacted() -> None:
    """User info, query signatures, and the values of options that are secret; short ones stay."""
    text = "GET http://u:p@host/a?X-Amz-Signature=abc123&x=1 secret_key='topsecret' my-long-value"
    shown = redact(text, secrets_of({"token": "my-long-value", "key": "host", "nested": {}}))
    for secret in ("u:p@", "abc123", "topsecret", "my-long-value"):
        assert secret not in shown
    assert "host/a" in shown
    assert redact_url("https://u:p@host:1/a?sig=x") == "https://host:1/a"
    assert secrets_of({"client_kwargs": {"aws_secret_access_key": "12345678"}}) == {"12345678"}


def test_requests_are_counted() -> None:
    """By kind, over threads, and from nothing again after they were taken."""
    storage = CountingStorage(open_storage("memory://counted"))
    threads = [
        threading.Thread(target=lambda: [storage.list_names("") for _ in range(100)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    storage.gather([partial(storage.put_if_absent, f"a/{n}", b"x") for n in range(3)])
    storage.get("a/1")
    storage.delete([])
    storage.delete(["a/0", "a/1", "a/2"])
    assert storage.take() == {"delete": 1, "get": 1, "list": 400, "put_if_absent": 3}
    assert storage.take() == {}
