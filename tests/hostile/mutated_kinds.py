"""Which objects there are, how each kind is changed, and what then reads it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from random import Random
from typing import Any

import pyarrow as pa
from fsspec.implementations.memory import MemoryFileSystem

import txnlog
from tests.hostile.footer_mutations import change_footer, change_pages
from tests.hostile.mutated_worlds import BEGAN_MS, WORLDS, Files, storage_of
from tests.hostile.mutation_runs import Attempt, Outcome
from tests.hostile.mutations import (
    Mutate,
    change_bytes,
    change_framed,
    change_lines,
    change_token,
    repaired,
)
from tests.hostile.segment_mutations import change_arrow, change_batches
from txnlog.errors import TxnlogError
from txnlog.inspect.describe import describe_segments
from txnlog.inspect.files import check_file_indexes, dump_file_indexes
from txnlog.inspect.placed_indexes import check_placed_indexes, dump_placed_indexes
from txnlog.inspect.segments import check_placed_segment, dump_placed_segment
from txnlog.replication import open_replicas
from txnlog.replication.standby.follower import Follower
from txnlog.replication.standby.standby_storage import find_at
from txnlog.storage.base import Storage
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock
from txnlog.write.text_records import read_json_lines


@cache
def world(name: str) -> Files:
    return WORLDS[name]()


# -- what reads ----------------------------------------------------------------------------------


def read_store(
    outcome: Outcome, storage: Storage, only: str | None = None, folder: str = ""
) -> None:
    """Everything that a user does with a store that somebody gave to him, but writing.

    With ``only`` what concerns this topic. Of the rest a part, but what the folder is about.
    """
    for store in _opened(outcome, lambda: attach(storage, clock=VirtualClock(BEGAN_MS + 10_000))):
        for topic in [only] if only else _topics(outcome, store):
            levels = ("read_committed", "read_uncommitted", "snapshot")
            if folder != "groups" or outcome.sometimes():
                outcome.step(partial(_scan, store, topic, outcome.random.choice(levels)))
            if outcome.sometimes():
                outcome.step(partial(store.topics.describe, topic))
            if outcome.sometimes():
                outcome.step(partial(_inspect, outcome, store, topic))
        if only is None:
            if folder == "groups" or outcome.sometimes():
                _drain(outcome, store.groups.describe_all)
            if folder == "transactions" or outcome.sometimes():
                _drain(outcome, store.transactions.list)
            if outcome.sometimes():
                _drain(outcome, store.metrics)
        if outcome.sometimes():
            chosen = [only] if only else None
            _drain(outcome, partial(store.examine, chosen, with_probe=False, with_contents=True))


def _opened(outcome: Outcome, opening: Callable[[], Store]) -> list[Store]:
    """The store, or none if it is refused."""
    found: list[Store] = []
    outcome.step(lambda: found.append(opening()))
    return found


def _topics(outcome: Outcome, store: Store) -> list[str]:
    found: list[str] = []
    outcome.step(lambda: found.extend(store.topics.list()))
    return found


def _scan(store: Store, topic: str, isolation_level: str) -> None:
    scan = store.scan(topic, isolation_level=isolation_level)  # type: ignore[arg-type]
    scan.to_arrow().validate(full=True)


def _inspect(outcome: Outcome, store: Store, topic: str) -> None:
    for segment in describe_segments(store.logs.fresh_topic(topic)):
        _drain(outcome, partial(dump_placed_segment, store.storage, segment))
        outcome.step(partial(check_placed_segment, store.storage, segment))
        outcome.step(partial(check_placed_indexes, store.storage, segment))
        _drain(outcome, partial(dump_placed_indexes, store.storage, segment))


def _drain(outcome: Outcome, results: Callable[[], Iterable[object]]) -> None:
    """All results; errors of single objects are among them."""

    def drain() -> None:
        for result in results():
            if isinstance(result, TxnlogError):
                outcome.refusals[type(result).__name__] += 1

    outcome.step(drain)


def read_files(outcome: Outcome, files: Files, name: str) -> None:
    """A store in which this object was changed."""
    folder, _, rest = name.partition("/")
    only = rest.partition("/")[0] if folder == "topics" else None
    read_store(outcome, storage_of(files), only, folder)


def read_standby(outcome: Outcome, files: Files, name: str) -> None:
    """What a standby shows, and a further round; a source, by its standby, if that was changed."""
    source, standby = (storage_of(_within(files, folder)) for folder in ("source/", "standby/"))
    if name.startswith("standby/"):
        outcome.step(lambda: read_store(outcome, _shown(standby)))
    clock = VirtualClock(BEGAN_MS, 3)
    outcome.step(lambda: Follower(attach(source, clock=clock), standby).follow())


def read_replicas(outcome: Outcome, files: Files, name: str) -> None:
    """The store as it is found by its controller or by a root, and what operators ask of it."""
    fill_memory(files)
    for place in outcome.some_of("control", "a", "b"):
        url, clock = f"memory://mutated/{place}", VirtualClock(BEGAN_MS + 10_000, 5)
        for store in _opened(outcome, partial(txnlog.open, url, clock=clock)):
            for topic in _topics(outcome, store):
                outcome.step(partial(_scan, store, topic, "snapshot"))
            if outcome.sometimes():
                _drain(outcome, partial(store.examine, with_probe=False))
        outcome.step(partial(_describe_replicas, url, clock))


def _describe_replicas(url: str, clock: VirtualClock) -> None:
    open_replicas(url, clock=clock).describe()


def read_folders(outcome: Outcome, files: Files, name: str) -> None:
    """An import of the folder."""
    fill_memory(files)
    folder, _, _ = name.rpartition("/")
    topic = folder.rpartition("/")[2].rpartition("-")[0]
    for skips in outcome.some_of(False, True):
        store = attach(HeapStorage(), create=True, clock=VirtualClock(BEGAN_MS))
        imported = partial(
            store.kafka.import_topic, topic, [f"memory:/{folder}"], skip_corrupt=skips
        )
        outcome.step(imported)
        if store.topics.list():
            outcome.step(partial(_scan, store, topic, "read_committed"))
    segment = name.rpartition(".")[0] + ".log"
    if outcome.sometimes():
        outcome.step(lambda: [*dump_file_indexes(f"memory:/{segment}")])
    outcome.step(lambda: check_file_indexes(f"memory:/{segment}"))


def fill_memory(files: Files) -> None:
    """Have these files in fsspec's memory, and no others."""
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    filesystem = MemoryFileSystem()
    for name, data in files.items():
        filesystem.pipe_file(name, data)


def _shown(storage: Storage) -> Storage:
    return find_at(storage) or storage


def _within(files: Files, folder: str) -> Files:
    return {
        name.removeprefix(folder): data for name, data in files.items() if name.startswith(folder)
    }


@cache
def answers_of(name: str) -> dict[str, pa.Table]:
    """The records of each topic of a world, as they are."""
    store = attach(storage_of(world(name)), clock=VirtualClock(BEGAN_MS + 10_000))
    return {topic: store.scan(topic).to_arrow() for topic in store.topics.list()}


def _check_answers(outcome: Outcome, chosen: str, files: Files, name: str) -> None:
    """Of the topic that has the object, or of all."""
    folder, _, rest = name.partition("/")
    only = rest.partition("/")[0] if folder == "topics" else None
    store = attach(storage_of(files), clock=VirtualClock(BEGAN_MS + 10_000))
    for topic, wanted in answers_of(chosen).items():

        def check(topic: str = topic, wanted: pa.Table = wanted) -> None:
            if not store.scan(topic).to_arrow().equals(wanted):
                raise AssertionError(f"{topic} has other records")

        if only in (None, topic):
            outcome.step(check)


# -- kinds ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """Objects of some worlds, by their names."""

    worlds: tuple[str, ...]
    names: str
    mutate: Mutate
    read: Callable[[Outcome, Files, str], None] = read_files
    says_nothing: bool = False
    """Whatever these objects hold, the records are what they were, or are refused."""

    def warm(self) -> None:
        """Make the worlds, once for all children."""
        for name in self.worlds:
            answers_of(name) if self.says_nothing else world(name)

    def __call__(self, seed: int) -> Outcome:
        """Change one object, and read the store that has it."""
        random = Random(seed)
        chosen = random.choice(self.worlds)
        files = world(chosen)
        name = random.choice([name for name in sorted(files) if re.search(self.names, name)])
        if random.random() < 0.04:
            data = files[random.choice(sorted(files))]
        else:
            data = self.mutate(random, files[name])
        changed = repaired(files, name, data)
        outcome = Outcome(sum(map(len, changed.values())), random)
        if not self.says_nothing or outcome.sometimes():
            self.read(outcome, {**files, **changed}, name)
        if self.says_nothing:
            _check_answers(outcome, chosen, {**files, **changed}, name)
        return outcome


_ALL = ("logs", "settled", "rows", "columns", "parquet")


@cache
def _token() -> bytes:
    return _settled_store().snapshot(["t"]).token().encode()


def _settled_store() -> Store:
    return attach(storage_of(world("settled")), clock=VirtualClock(BEGAN_MS + 1000))


def _read_token(seed: int) -> Outcome:
    token = change_token(Random(seed), _token())
    outcome = Outcome(len(token))
    store = _settled_store()
    outcome.step(lambda: store.snapshot(["t"], at=token.decode()).scan("t").to_arrow())
    return outcome


_LINES = (
    b'{"value": "a", "key": "k", "headers": [["h", "1"], ["i", null]], "timestamp_ms": 1}\n'
    b'{"value": {"base64": "AAEC"}, "key": {"hex": "00ff"}, "partition": 1}\n'
    b'{"value": null, "key": null, "topic": "t", "offset": 3, "timestamp_type": 0}\n'
)


def _read_lines(seed: int) -> Outcome:
    data = change_lines(Random(seed), _LINES)
    outcome = Outcome(len(data))

    def read() -> None:
        stream: Any = io.BufferedReader(io.BytesIO(data))
        for batch in read_json_lines(stream, max_line_bytes=1 << 20, partition_count=2):
            batch.validate(full=True)

    outcome.step(read)
    return outcome


KINDS: dict[str, Attempt] = {
    "store-file": Kind(_ALL, r"^txnlog\.json$", change_framed),
    "topic-entry": Kind(("logs", "columns", "parquet", "rows"), r"/log/\d+\.json$", change_framed),
    "group-entry": Kind(("logs",), r"^groups/.*\.json$", change_framed),
    "transaction": Kind(("logs",), r"^transactions/.*\.json$", change_framed),
    "proposal": Kind(("logs",), r"/proposals/.*\.json$", change_framed),
    "note": Kind(("logs", "settled"), r"/retired/|^staging/", change_framed, says_nothing=True),
    "marker": Kind(
        ("logs", "settled"), r"\.(commit|abort|closed-\d)$", change_framed, says_nothing=True
    ),
    "witness": Kind(("logs",), r"\.seen-\d+$", change_framed, says_nothing=True),
    "checkpoint": Kind(("settled",), r"\.checkpoint$", change_framed),
    "manifest-list": Kind(("settled",), r"\.list$", change_framed),
    "manifest": Kind(("settled",), r"\.arrow$", change_arrow),
    "rewrites": Kind(("settled",), r"\.rewrites$", change_framed),
    "segment-columns": Kind(("columns",), r"/(t|zstd)/data/.*\.log$", change_batches),
    "segment-typed": Kind(("columns",), r"/typed/data/.*\.log$", change_batches),
    "segment-packed": Kind(("logs",), r"/data/.*\.log$", change_batches),
    "segment-rows": Kind(("rows",), r"/(none|gzip|snappy|lz4|zstd)/data/.*\.log$", change_batches),
    "segment-kafka": Kind(("rows",), r"/hanging/data/.*\.log$", change_batches),
    "parquet-footer": Kind(("parquet",), r"\.parquet$", change_footer),
    "parquet-pages": Kind(("parquet",), r"\.parquet$", change_pages),
    "index": Kind(("indexed",), r"\.(index|timeindex)$", change_bytes, says_nothing=True),
    "transaction-index": Kind(("rows",), r"\.txnindex$", change_bytes, says_nothing=True),
    "standby-round": Kind(("standby",), r"^standby/standby/\d+", change_framed, read_standby),
    "standby-logs": Kind(("standby",), r"^standby/standby/(logs|t)", change_framed, read_standby),
    "standby-source": Kind(("standby",), r"^source/.*\.json$", change_framed, read_standby),
    "replica-mark": Kind(
        ("replicas",), r"replica\.json$|/\.replica/", change_framed, read_replicas
    ),
    "epoch": Kind(("replicas",), r"/epochs/", change_framed, read_replicas),
    "kafka-segment": Kind(("kafka_folders",), r"\.log$", change_batches, read_folders),
    "kafka-index": Kind(("kafka_folders",), r"index$", change_bytes, read_folders),
    "leader-epochs": Kind(("kafka_folders",), r"leader-epoch", change_bytes, read_folders),
    "member": Kind(("logs",), r"/members/[^/]+$", change_bytes, says_nothing=True),
    "token": _read_token,
    "json-lines": _read_lines,
}
