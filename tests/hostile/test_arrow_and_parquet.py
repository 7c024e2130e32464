"""Arrow and Parquet bytes whose checksums are right, and whose author meant no good.

Each is made by a few lines. What reads it runs in a child of its own: it ends by an error that
names the file, not by a signal, and takes little memory.
"""

from __future__ import annotations

import ast
import io
import json
import random
import re
import resource
import sys
import zipfile
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from decimal import Decimal
from pathlib import Path

import crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

import txnlog
from tests.support.runtime.forked_child import in_child
from txnlog.cli.output.streams import DAMAGE
from txnlog.cli.run import run
from txnlog.errors import CorruptEntry, TxnlogError
from txnlog.log.manifest_table import SCHEMA, ManifestTable
from txnlog.segments.inspect.dump import dump_segment, verify_batches
from txnlog.segments.parquet.footer import TAIL_BYTES, footer_tag
from txnlog.segments.parquet.open_segment import ParquetSegment
from txnlog.segments.parquet.statistics import value_ranges
from txnlog.segments.reader import read_segment
from txnlog.segments.records import RECORD_SCHEMA
from txnlog.segments.segment_file import SegmentFile
from txnlog.state.manifest import ManifestRef
from txnlog.state.segment import StoredSegment
from txnlog.ui.access import Access, loopback_hosts
from txnlog.ui.app import make_app
from txnlog.ui.server import make_console

STORED = StoredSegment.__struct_fields__

GOLDEN = Path(__file__).parents[1] / "store" / "golden"
MOST_KB = 512 << 10
VERBS = (
    "records read {topic} --store {store}",
    "doctor --deep --no-probe --store {store}",
    "segments verify --file {file}",
    "segments dump --file {file}",
    "index verify --file {file}",
    "index rebuild --file {file}",
)


def seal(path: Path, body: dict[str, object]) -> None:
    """Write an object of a log with the checksum that it should have."""
    text = json.dumps(body, separators=(",", ":")).encode()[1:] + b"\n"
    version = json.loads(path.read_bytes())["format"]
    path.write_bytes(b'{"format":%d,"checksum":"%08x",' % (version, crc32c.crc32c(text)) + text)


def opened(path: Path) -> dict[str, object]:
    """The content of such an object."""
    body = json.loads(path.read_bytes())
    return {name: value for name, value in body.items() if name not in ("format", "checksum")}


def told(*verbs: str) -> list[tuple[int, str]]:
    """How commands end, and what they say last, in a child whose memory does not grow by 512 MB."""

    def work() -> list[tuple[int, str]]:
        return [say(verb) for verb in verbs]

    ends: list[tuple[int, str]] = ast.literal_eval(in_child(within_memory(work)))
    return ends


def say(verb: str) -> tuple[int, str]:
    sys.argv = ["txnlog", *verb.split()]
    said = io.BytesIO()
    with io.TextIOWrapper(said, "utf-8", write_through=True) as text:
        with redirect_stderr(text), redirect_stdout(text):
            code = run()
        return code, " ".join(said.getvalue().decode().split())[-2000:]


def within_memory(work: Callable[[], object]) -> Callable[[], object]:
    """The same, which fails if it takes too much memory on the way."""

    def watched() -> object:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found = work()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < MOST_KB, f"the memory has grown by {grown} KiB"
        return found

    return watched


# -- manifests -------------------------------------------------------------------------------------


@pytest.fixture
def settled(tmp_path: Path) -> Path:
    """A store whose topic ``columns`` has its segments in a manifest."""
    zipfile.ZipFile(GOLDEN / "format-1.zip").extractall(tmp_path / "store")
    return tmp_path / "store"


def replace_manifest(store: Path, content: bytes, segment_count: int | None = None) -> Path:
    """Put other bytes in the place of the manifest, which the list names with their checksum."""
    folder = store / "topics" / "columns" / "manifests"
    (manifest,) = folder.glob("*.arrow")
    (listed,) = folder.glob("*.list")
    manifest.write_bytes(content)
    body = opened(listed)
    ref: dict[str, object]
    (ref,) = body["manifests"]  # type: ignore[misc]
    ref |= {"size_bytes": len(content), "crc": crc32c.crc32c(content)}
    if segment_count is not None:
        ref["segment_count"] = segment_count
    seal(listed, body)
    return manifest


def manifest_of(store: Path) -> pa.Table:
    (manifest,) = (store / "topics" / "columns" / "manifests").glob("*.arrow")
    return pa.ipc.open_stream(manifest.read_bytes()).read_all()


def stream_of(table: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def beyond(table: pa.Table, name: str) -> bytes:
    """A stream in which the last text of a column lies a gigabyte behind the end of its buffer."""
    content = stream_of(table)
    texts = table.column(name).combine_chunks()
    offsets = texts.buffers()[1].to_pybytes()[: 4 * len(texts) + 4]
    assert content.count(offsets) == 1
    return content.replace(offsets, offsets[:-4] + (1 << 30).to_bytes(4, "little"))


def shorter(table: pa.Table) -> bytes:
    """A stream of which the first numbers of 64 bits have a buffer for one of them."""
    length = (8 * len(table)).to_bytes(8, "little")
    return stream_of(table).replace(length, (8).to_bytes(8, "little"), 1)


MANIFESTS: dict[str, tuple[Callable[[pa.Table], bytes], str]] = {
    "a name behind its buffer": (lambda t: beyond(t, "name"), "[Oo]ffset"),
    "too few numbers": (shorter, "[Bb]uffer"),
    "nulls": (
        lambda t: stream_of(t.set_column(2, "entry", pa.nulls(len(t), pa.int64()))),
        "column entry has nulls",
    ),
    "other rows than listed": (lambda t: stream_of(t.slice(1)), "35 rows, 36 were expected"),
    "a partition that is not there": (
        lambda t: stream_of(t.set_column(0, "partition", pa.array([9] * len(t), pa.int32()))),
        "partition 9 of a topic with 3|not in the order",
    ),
    "half of a stream": (lambda t: stream_of(t)[:-200], "does not decode"),
    "nothing": (lambda _: b"", "does not decode"),
}


@pytest.mark.parametrize("kind", MANIFESTS)
def test_manifests_are_not_read_beyond_their_bytes(settled: Path, kind: str) -> None:
    """Nor is anything looked up by what they say that cannot be."""
    forge, expected = MANIFESTS[kind]
    manifest = replace_manifest(settled, forge(manifest_of(settled)))
    reason = refusal(settled, "columns")
    assert re.search(f"CorruptEntry: .*({expected})", reason), reason
    assert manifest.name in reason or "manifest" in reason


def test_commands_say_which_manifest_is_not_one(settled: Path) -> None:
    """Reading and checking end by the exit code for damage."""
    manifest = replace_manifest(settled, beyond(manifest_of(settled), "name"))
    for code, said in told(
        f"records read columns --store {settled}", f"doctor --no-probe --store {settled}"
    ):
        assert code == DAMAGE, said
        assert manifest.name in said or "ask who has written it" in said


def test_a_manifest_that_is_small_only_in_its_file_is_refused(settled: Path) -> None:
    """Its buffers say how large they become; that is added up before any of them is."""
    rows = 1 << 21
    nothing = {"name": pa.repeat("", rows), "transactional_id": pa.nulls(rows, pa.string())}
    zeros = pa.repeat(0, rows)
    columns = [
        nothing[field.name] if field.name in nothing else zeros.cast(field.type) for field in SCHEMA
    ]
    content = stream_of(pa.table(columns, schema=SCHEMA), "zstd")
    assert len(content) < 200_000
    replace_manifest(settled, content, rows)
    assert "over the limit" in refusal(settled, "columns")


def test_a_page_of_the_console_outlives_such_a_manifest(settled: Path) -> None:
    """It shows the error; the next page is there."""
    replace_manifest(settled, beyond(manifest_of(settled), "name"))

    def look() -> list[int]:
        console = make_console(txnlog.open(str(settled)), Access(loopback_hosts(8080)))
        app = make_app(console)
        browser = TestClient(app, "http://127.0.0.1:8080", raise_server_exceptions=False)
        browser.get(f"/?token={console.access.token}")
        return [browser.get(page).status_code for page in ("/topics/columns", "/topics/rows")]

    assert in_child(look) == "[400, 200]"


def refusal(store: Path, topic: str) -> str:
    """The error of reading a topic in a child, with its class."""

    def work() -> str:
        try:
            read_all(store, topic)
        except TxnlogError as error:
            return f"{type(error).__name__}: {error}"
        return "it is read"

    return in_child(within_memory(work))


def read_all(store: Path, topic: str) -> pa.Table:
    return txnlog.open(str(store)).snapshot([topic]).scan(topic).to_arrow()


# -- Parquet files ---------------------------------------------------------------------------------


@pytest.fixture
def placed(tmp_path: Path) -> Path:
    """A store with one Parquet segment, of one record."""
    store = txnlog.open(str(tmp_path / "store"), create=True)
    store.topics.create("t", config={"record.format": "parquet", "compression.type": "zstd"})
    with store.producer(transactional_id="w") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"value", b"key", headers=[("h", b"1")])
    return tmp_path / "store"


def replace_segment(store: Path, content: bytes, record_count: int = 1) -> Path:
    """Put other bytes in the place of the segment, and the entry's size and tag with them."""
    (segment,) = (store / "topics" / "t" / "data").rglob("*.parquet")
    segment.write_bytes(content)
    length = int.from_bytes(content[-TAIL_BYTES:-4], "little") + TAIL_BYTES
    for entry in (store / "topics" / "t" / "log").glob("*.json"):
        body = opened(entry)
        for one in found_in(body):
            one[STORED.index("size_bytes")] = len(content)
            one[STORED.index("tag")] = footer_tag(content[-length:])
            one[STORED.index("record_count")] = record_count
        seal(entry, body)
    return segment


def found_in(value: object) -> Iterable[list[object]]:
    """What segments are, somewhere in an entry."""
    if isinstance(value, dict):
        if "stored" in value:
            yield value["stored"]
        value = [*value.values()]
    if isinstance(value, list):
        for one in value:
            yield from found_in(one)


def segment_of(store: Path) -> bytes:
    (segment,) = (store / "topics" / "t" / "data").rglob("*.parquet")
    return segment.read_bytes()


def in_footer(content: bytes, old: bytes, new: bytes) -> bytes:
    """The same file with a part of its footer replaced by another of the same length."""
    length = int.from_bytes(content[-TAIL_BYTES:-4], "little") + TAIL_BYTES
    assert old in content[-length:]
    return content[:-length] + content[-length:].replace(old, new, 1)


def parquet_of(**columns: pa.Array) -> bytes:
    """A file like a segment's, with columns of its own."""
    count = len(next(iter(columns.values())))
    defaults = {
        "key": pa.nulls(count, pa.binary()),
        "value": pa.nulls(count, pa.binary()),
        "timestamp": pa.array(np.zeros(count, np.int64), pa.timestamp("us", "UTC")),
        "headers": pa.nulls(count, RECORD_SCHEMA.field("headers").type),
    }
    sink = io.BytesIO()
    table = pa.table({**defaults, **columns})
    pq.write_table(table, sink, compression="zstd", store_schema=False, write_page_checksum=True)
    return sink.getvalue()


def repeated(length: int, count: int, value: object = None) -> pa.Array:
    """One long value that so many rows name."""
    indices = pa.array(np.zeros(count, np.int32))
    values = pa.array([value or bytes(length)])
    return pa.DictionaryArray.from_arrays(indices, values)


def long_headers() -> pa.Array:
    """A row whose thousand headers have the same long value."""
    keys, values = repeated(0, 1000, "k"), repeated(1 << 20, 1000)
    pairs = pa.StructArray.from_arrays([keys, values], ["key", "value"])
    return pa.ListArray.from_arrays(pa.array([0, 1000], pa.int32()), pairs)


SEGMENTS: dict[str, tuple[Callable[[bytes], bytes], int, str]] = {
    "a column of texts that is one of booleans": (
        # On this footer pyarrow's C++ ends the process.
        lambda content: in_footer(
            content, b"\x15\x0c\x25\x02\x18\x03key", b"\x15\0\x25\x02\x18\x03key"
        ),
        1,
        "the footer cannot be read",
    ),
    "a long value that many rows name": (
        lambda _: parquet_of(value=repeated(1 << 20, 100_000)),
        100_000,
        "over the limit",
    ),
    "a long value that many headers name": (
        lambda _: parquet_of(headers=long_headers()),
        1,
        "over the limit",
    ),
    "a page of zeros": (
        lambda _: parquet_of(value=pa.array([bytes(130 << 20)])),
        1,
        "over the limit",
    ),
    "lists of nothing": (
        lambda _: parquet_of(
            headers=pa.ListArray.from_arrays(
                pa.array([0, 17_000_000], pa.int32()),
                pa.StructArray.from_arrays(
                    [pa.nulls(17_000_000, pa.string()), pa.nulls(17_000_000, pa.binary())],
                    ["key", "value"],
                ),
            )
        ),
        1,
        "over the limit",
    ),
    "times that are not whole": (
        lambda _: parquet_of(timestamp=pa.array([1], pa.timestamp("us", "UTC"))),
        1,
        "would lose data",
    ),
    "keys that are numbers": (lambda _: parquet_of(key=pa.array([1])), 1, "is int64"),
}


LARGE = ("lists of nothing", "a page of zeros")
"""Those that take time to make."""


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.more) if kind in LARGE else kind for kind in SEGMENTS],
)
def test_segments_do_not_end_the_process_nor_take_its_memory(placed: Path, kind: str) -> None:
    """The error names the file, and says what is wrong with it."""
    forge, count, expected = SEGMENTS[kind]
    segment = replace_segment(placed, forge(segment_of(placed)), count)
    reason = refusal(placed, "t")
    assert reason[1:].startswith("CorruptRecord")
    assert segment.name in reason
    assert expected in reason


@pytest.mark.parametrize("kind", [*SEGMENTS][:2])
def test_commands_outlive_such_segments(placed: Path, kind: str) -> None:
    """In a store, and as files by themselves."""
    forge, count, expected = SEGMENTS[kind]
    segment = replace_segment(placed, forge(segment_of(placed)), count)
    verbs = [verb.format(topic="t", store=placed, file=segment) for verb in VERBS]
    ends = dict(zip(VERBS, told(*verbs), strict=True))
    for verb, (code, said) in ends.items():
        assert "unexpected" not in said, (verb, said)
        assert code == DAMAGE or "is a Parquet file" in said, (verb, code, said)
    assert expected in ends[VERBS[0]][1]


def test_a_dataset_checks_the_footer_of_each_file_that_it_opens(placed: Path) -> None:
    """Arrow has it only then."""
    forge, count, _ = SEGMENTS["a column of texts that is one of booleans"]
    segment = replace_segment(placed, forge(segment_of(placed)), count)

    def work() -> str:
        dataset = txnlog.open(str(placed)).snapshot(["t"]).dataset("t")
        try:
            return str(dataset.to_table(filter=pc.field("key") == b"key"))
        except (TxnlogError, pa.ArrowException) as error:
            return str(error)

    reason = in_child(work)
    assert segment.name in reason
    assert "the footer cannot be read" in reason


def test_a_value_that_many_rows_name_is_read_if_that_is_not_too_much(placed: Path) -> None:
    """The sum is exact: one long value among short ones does not count for all of them."""
    values = pa.array([bytes(1 << 20), b"short"])
    indices = pa.array(np.arange(1000, dtype=np.int32) > 0).cast(pa.int32())
    content = parquet_of(value=pa.DictionaryArray.from_arrays(indices, values))
    replace_segment(placed, content, 1000)
    lengths = [len(value) for value in read_all(placed, "t").column("value").to_pylist()]
    assert lengths == [1 << 20, *[5] * 999]


# -- mutations -------------------------------------------------------------------------------------


def mutate(data: bytes, rng: random.Random) -> bytes:
    """The same with a few bytes changed, left out or put in."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(changed))
        how = rng.random()
        if how < 0.6:
            changed[at] = rng.randrange(256)
        elif how < 0.75:
            del changed[at : at + rng.randrange(1, 4)]
        elif how < 0.9:
            changed[at:at] = rng.randbytes(rng.randrange(1, 4))
        else:
            start, size = rng.randrange(len(changed)), rng.randrange(1, 12)
            changed[at : at + size] = changed[start : start + size]
    return bytes(changed)


def typed_file() -> bytes:
    """A Parquet file with columns of many types, nested ones too."""
    sink = io.BytesIO()
    table = pa.table({
        "number": pa.array([1, None], pa.int32()),
        "yes": pa.array([True, None]),
        "text": ["x", None],
        "part": [0.5, None],
        "amount": pa.array([Decimal("1.5"), None], pa.decimal128(20, 2)),
        "day": pa.array([1, None], pa.date32()),
        "list": pa.array([[1, 2], None], pa.list_(pa.int16())),
        "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        "struct": pa.array([{"x": 1, "y": ["q"]}, None]),
        "_timestamp": pa.array([1000, 2000], pa.timestamp("us", "UTC")),
    })  # fmt: skip
    pq.write_table(table, sink, store_schema=False, write_page_index=True, write_page_checksum=True)
    return sink.getvalue()


def read_every_way(content: bytes) -> None:
    """As records and as a file, with all statistics, and by a scanner of Arrow's."""
    file = SegmentFile(lambda a, b: content[a:b], len(content), "x.parquet", is_parquet=True)
    verify_batches(dump_segment(file))
    segment = ParquetSegment(file)
    metadata = segment.footer.metadata
    for number in range(metadata.num_row_groups):
        value_ranges(
            segment, number, {name: segment.schema.field(name) for name in segment.schema.names}
        )
        for leaf in range(metadata.num_columns):
            str(metadata.row_group(number).column(leaf).is_stats_set)
    for batch in read_segment(file):
        batch.records.to_pylist()


def refused(count: int, attempt: Callable[[int], object]) -> int:
    """How many of so many seeds an attempt refuses, in children that read one after the other."""
    total = 0
    for start in range(0, count, 300):
        seeds = range(start, min(start + 300, count))

        def work(seeds: range = seeds) -> int:
            return sum(is_refused(seed, attempt) for seed in seeds)

        total += int(in_child(within_memory(work)))
    return total


def is_refused(seed: int, attempt: Callable[[int], object]) -> bool:
    try:
        attempt(seed)
    except TxnlogError:
        return True
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
    return False


COUNTS = pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])


@COUNTS
def test_mutated_footers_are_read_or_refused(placed: Path, count: int) -> None:
    """No signal, whatever is changed: each file is read in the same child."""
    files = [segment_of(placed), typed_file()]

    def attempt(seed: int) -> None:
        content = files[seed % 2]
        length = int.from_bytes(content[-TAIL_BYTES:-4], "little")
        start = len(content) - TAIL_BYTES - length
        footer = mutate(content[start:-TAIL_BYTES], random.Random(seed))
        read_every_way(content[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1")

    assert refused(count, attempt) > count // 2


@COUNTS
def test_mutated_pages_are_read_or_refused(count: int) -> None:
    """The same for what lies before the footer; its checksums are those of the footer's author."""
    pairs = pa.array([[{"key": "h", "value": b"1"}]] * 2)
    files = [parquet_of(key=pa.array([b"k", b"l"]), headers=pairs), typed_file()]

    def attempt(seed: int) -> None:
        content, rng = files[seed % 2], random.Random(seed)
        end = len(content) - TAIL_BYTES - int.from_bytes(content[-TAIL_BYTES:-4], "little")
        at = rng.randrange(4, end)
        read_every_way(content[:at] + rng.randbytes(1) + content[at + 1 :])

    assert refused(count, attempt) > count // 4


@COUNTS
def test_mutated_manifests_are_read_or_refused(settled: Path, count: int) -> None:
    """The same for the metadata and the buffers of Arrow's streams."""
    table = manifest_of(settled)
    streams = [stream_of(table), stream_of(table, "zstd")]

    def attempt(seed: int) -> None:
        data = mutate(streams[seed % 2], random.Random(seed))
        ref = ManifestRef("m", 0, 9, len(table), len(data), crc32c.crc32c(data), 0, 0, False)
        ManifestTable.decode(data, ref, "m").segments()

    assert refused(count, attempt) > count // 4


@pytest.mark.parametrize("name", ["../../../x", "a'), reflect('java", "a\n", "a\0b"])
def test_a_manifest_names_no_other_files(settled: Path, name: str) -> None:
    """Names of segments stand in paths that Spark reads by itself, and once in its SQL."""
    table = manifest_of(settled)
    names = [name, *table.column("name").to_pylist()[1:]]
    at = table.schema.get_field_index("name")
    data = stream_of(table.set_column(at, "name", pa.array(names)))
    ref = ManifestRef("m", 0, 9, len(table), len(data), crc32c.crc32c(data), 0, 0, False)
    with pytest.raises(CorruptEntry, match="name has characters"):
        ManifestTable.decode(data, ref, "m")
