"""Bad input of every kind gets an error of our own that names the thing and the remedy."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txnlog
from txnlog import TopicPartition, errors
from txnlog.config import (
    StoreConfig,
    check_store_config,
    check_topic_config,
    check_whole_number,
    setting_choices,
    store_settings,
    topic_settings,
)
from txnlog.state.topic_entries import Trimmed
from txnlog.storage import envelope
from txnlog.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = txnlog.open(str(tmp_path / "store"), create=True)
    store.topics.create("t", partitions=2, config={"max.message.bytes": 1000})
    return store


def test_a_missing_store_says_how_to_make_one(tmp_path: Path) -> None:
    """No store, and an empty folder, are the same: nothing there yet."""
    (tmp_path / "empty").mkdir()
    for name in ("missing", "empty"):
        with pytest.raises(errors.StoreNotFound, match=f"{name}.*create=True"):
            txnlog.open(str(tmp_path / name))
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"url": None}, "a path or URL must be a non-empty string, not None"),
        ({"url": "memory://x", "storage_options": "key=S3CRET"}, "by name, not str$"),
    ],
)
def test_wrong_arguments_of_open_are_named(arguments: dict[str, Any], message: str) -> None:
    """Before anything else fails with them; what may be a secret is not shown."""
    with pytest.raises(errors.InvalidOption, match=message):
        txnlog.open(**arguments)


def test_a_list_in_the_place_of_a_topic_and_a_tuple_of_a_partition_are_named(store: Store) -> None:
    """What other clients take: the message says how it is called here."""
    with pytest.raises(errors.InvalidTopic, match=r"must be a non-empty string, not \['t'\]"):
        store.consumer(["t"])  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidTopic, match=r"must be a non-empty string, not \['t'\]"):
        store.scan(["t"])  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidGroupId, match=r"\['g'\]"):
        store.groups.describe(["g"])  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidOption, match=r"TopicPartition.*not by \('t', 0\)"):
        store.topics.delete_records({("t", 0): 3})  # type: ignore[dict-item]
    with store.consumer("t", group_id="g") as consumer:
        with pytest.raises(errors.InvalidOption, match=r"TopicPartition.*not by \('t', 0\)"):
            consumer.commit({("t", 0): 3})  # type: ignore[dict-item]
        assert repr(consumer) == "Consumer(topics=['t'], group_id='g')"
    assert repr(store.producer(transactional_id="p")) == "Producer(transactional_id='p')"


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    """A folder with other files never becomes a store, not even when asked."""
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    for create in (False, True):
        with pytest.raises(errors.NotAStore, match=r"txnlog\.json"):
            txnlog.open(str(tmp_path), create=create)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


def test_a_store_of_a_newer_version_is_refused(store: Store) -> None:
    """The message says which version it is and what to do."""
    path = Path(store.url) / "txnlog.json"
    text = path.read_text()
    path.write_text(text.replace('"format":1', '"format":2'))
    with pytest.raises(errors.UnsupportedVersion, match=r"version 2.*newer txnlog"):
        txnlog.open(store.url)
    path.write_text(text.replace("store_id", "stork_id"))
    with pytest.raises(errors.CorruptEntry, match=r"txnlog\.json is damaged"):
        txnlog.open(store.url)


def test_a_newer_entry_is_not_called_damage(store: Store) -> None:
    """An entry that a newer txnlog wrote: upgrade, do not restore a backup."""
    name = Path(store.url) / "topics/t/log/00000000000000000001.json"
    newer = envelope.FORMAT_VERSION + 1
    name.write_text(f'{{"format":{newer},"checksum":"00000000","kind":"telepathy"}}\n')
    with pytest.raises(
        errors.UnsupportedVersion, match=rf"0{{19}}1\.json has format version {newer}"
    ):
        store.scan("t")


def test_store_settings_are_fixed(store: Store) -> None:
    """Opening with other settings than it was created with says so."""
    with pytest.raises(errors.StoreExists, match="fixed when it is created"):
        txnlog.open(store.url, create=True, config={"transaction.max.timeout.ms": 5})
    with pytest.raises(errors.InvalidConfig, match=r"did you mean 'transaction\.max\.timeout\.ms'"):
        txnlog.open(store.url, config={"transaction.max.timeout": 5})


@pytest.mark.parametrize("key", ["log.cleanup.age.ms", "producer.id.expiration.ms"])
def test_what_a_transaction_needs_is_kept_for_the_longest_timeout(tmp_path: Path, key: str) -> None:
    """Shorter ages are refused, and not believed where a store's file has them."""
    config = {"transaction.max.timeout.ms": 60_000, key: 59_999}
    with pytest.raises(errors.InvalidConfig, match=f"{key}.* not be shorter than transaction.max"):
        txnlog.open(str(tmp_path / "new"), create=True, config=config)
    assert not (tmp_path / "new").exists()
    txnlog.open(str(tmp_path / "new"), create=True, config={**config, key: 60_000})
    old = StoreConfig.of({"transaction.max.timeout.ms": "60000", "log.cleanup.age.ms": "10"})
    assert old.log_cleanup_age_ms == 60_000


@pytest.mark.parametrize("url", ["ftp://host/x", "github://org:repo@/x", "http://host/x"])
def test_filesystems_without_put_if_absent_are_refused(url: str) -> None:
    """The message names the protocol, what is supported, and the flag."""
    with pytest.raises(errors.UnsupportedFilesystem, match=r"s3://.*unsafe_single_writer"):
        txnlog.open(url)


@pytest.mark.parametrize("url", ["", "s3://", "s3://key:secret@bucket/x", "nul\0"])
def test_malformed_urls_are_refused(url: str) -> None:
    """And no secret is repeated."""
    with pytest.raises(errors.InvalidOption) as caught:
        txnlog.open(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 250, "../t", "a\n"])
def test_topics_are_named_as_kafkas(store: Store, name: str) -> None:
    """Kafka's rules for names; nothing is created."""
    with pytest.raises(errors.InvalidTopic):
        store.topics.create(name)
    with pytest.raises(errors.InvalidTopic):
        store.scan(name)
    assert store.topics.list() == ["t"]


@pytest.mark.parametrize("name", ["..", "a/../../b", "ä ö", "%2e%2e", "-", "~", "a" * 80])
def test_ids_may_be_anything_and_stay_in_their_folder(store: Store, name: str) -> None:
    """Group and transactional ids are percent-encoded, and come back as they were."""
    with store.producer(transactional_id=name) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"x")
            producer.send_offsets_to_transaction({TopicPartition("t", 0): 0}, name)
    assert store.groups.list() == [name]
    assert [d.transactional_id for d in store.transactions.list()] == [name]
    root = Path(store.url)
    folders = {"groups", "topics", "transactions", ".tmp", ".probe"}
    assert {path.name for path in root.iterdir()} <= {*folders, "txnlog.json"}
    assert len(list((root / "groups").iterdir())) == 1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"compresion.type": "lz4"}, r"did you mean 'compression\.type'"),
        ({"compression.type": "brotli"}, "not one of"),
        ({"segment.bytes": "many"}, "an integer is needed"),
        ({"segment.bytes": 1}, "not between"),
        ({"segment.ms": 0}, "not between 1"),
        ({"cleanup.policy": "compact,compact"}, "names one twice"),
        ({"cleanup.policy": "keep"}, "'keep' is not one of delete, compact"),
        ({"cleanup.policy": ""}, "'' is not one of delete, compact"),
        ({"min.cleanable.dirty.ratio": "1.1"}, "1.1 is not between 0 and 1"),
        ({"min.cleanable.dirty.ratio": "half"}, "a number is needed, not 'half'"),
        ({"min.cleanable.dirty.ratio": "nan"}, "a number is needed, not 'nan'"),
        ({"max.compaction.lag.ms": 5, "min.compaction.lag.ms": 6}, "5 is less than"),
        ({"retention.ms": -2}, "not between -1"),
        ({"compression.lz4.level": 22}, r"compression\.lz4\.level: 22 is not between 1 and 12"),
    ],
)
def test_unknown_and_wrong_settings_are_errors(
    store: Store, config: dict[str, object], message: str
) -> None:
    """A setting is never ignored."""
    with pytest.raises(errors.InvalidConfig, match=message):
        store.topics.create("new", config=config)
    with pytest.raises(errors.InvalidConfig, match=message):
        store.topics.alter("t", config=config)
    assert store.topics.list() == ["t"]


NUMBERS = [
    pytest.param(check, setting.key, setting.default, id=setting.key)
    for check, settings in (
        (check_topic_config, topic_settings({})),
        (check_store_config, store_settings({})),
    )
    for setting in settings
    if setting.default[-1:].isdecimal()
]


@pytest.mark.parametrize(("check", "key", "number"), NUMBERS)
def test_settings_have_numbers_as_others_read_them(
    check: Callable[[Mapping[str, object]], dict[str, str]], key: str, number: str
) -> None:
    """They are stored as they were given: not all that Python takes for a number is one."""
    assert check({key: number}) == {key: number}
    arabic = number.translate({ord(str(n)): 0x660 + n for n in range(10)})
    for wrong in (f" {number}", f"{number}\n", f"+{number}", f"0_{number}", arabic, "", "9" * 5000):
        with pytest.raises(errors.InvalidConfig, match=key):
            check({key: wrong})


@pytest.mark.parametrize("schema", [None, pa.schema([("a", pa.int64())])], ids=["bytes", "typed"])
@pytest.mark.parametrize("key", [setting.key for setting in topic_settings({})])
def test_a_setting_taken_back_is_as_it_was(
    store: Store, key: str, schema: pa.Schema | None
) -> None:
    """It has the default that it has in a topic of this kind."""
    created = store.topics.create("new", schema=schema, key=schema and ["a"]).config
    some = (*setting_choices("topic")[key], "1", "5000", "delta:s3://bucket/table")
    for value in some:
        with suppress(errors.InvalidConfig):
            changed = store.topics.alter("new", config={key: value}).config
            assert changed == {**created, key: value}
    assert store.topics.alter("new", config={key: None}, dry_run=True).config == created
    assert store.topics.alter("new", config={key: None}).config == created


@pytest.mark.parametrize("partitions", [0, -1, 100_001, 1.5, True])
def test_partition_counts_are_checked(store: Store, partitions: int) -> None:
    """A topic has at least one partition, and never fewer than before."""
    with pytest.raises(errors.InvalidPartitions):
        store.topics.create("new", partitions=partitions)
    with pytest.raises(errors.InvalidPartitions, match="cannot shrink"):
        store.topics.alter("t", partitions=1)


def test_topics_come_and_go(store: Store) -> None:
    """Existing, missing, deleted and recreated; settings can be changed and taken back."""
    with pytest.raises(errors.TopicAlreadyExists):
        store.topics.create("t")
    with pytest.raises(errors.UnknownTopicOrPartition, match=r"store\.topics\.create"):
        store.scan("missing")
    altered = store.topics.alter("t", partitions=3, config={"compression.type": "zstd"})
    assert (len(altered.partitions), altered.config["compression.type"]) == (3, "zstd")
    assert (
        "compression.type" not in store.topics.alter("t", config={"compression.type": None}).config
    )
    with pytest.raises(errors.InvalidConfig, match=r"gzip needs record\.format=kafka"):
        store.topics.alter("t", config={"compression.type": "gzip"})
    producer = store.producer()
    producer.send("t", b"for the old one")
    store.topics.delete("t")
    store.topics.create("t")
    with pytest.raises(errors.UnknownTopicOrPartition, match="recreated"):
        producer.flush()
    assert store.scan("t").record_count == 0
    data = Path(store.url) / "topics/t/data"
    assert store.topics.list() == ["t"]
    assert data.exists()


@pytest.mark.parametrize(
    "batch",
    [
        pa.record_batch({"key": [b"no value"]}),
        pa.record_batch({"value": [1, 2]}),
        pa.record_batch({"value": [b"x"], "colour": ["red"]}),
        pa.record_batch({"value": [b"x"], "partition": [2]}),
        pa.record_batch({"value": [b"x"], "partition": [-1]}),
        pa.record_batch({"value": [b"x"] * 3, "partition": [None, 1, -2]}),
        pa.record_batch({"value": [b"x"], "partition": pa.array([2**63], pa.uint64())}),
        pa.record_batch({"value": [b"x"], "partition": ["first"]}),
        pa.record_batch({"value": [b"x"], "timestamp": ["today"]}),
        {"value": [b"x"]},
    ],
)
def test_batches_of_a_wrong_shape_are_refused(store: Store, batch: pa.RecordBatch) -> None:
    """The message names the column; nothing is written, and the producer goes on."""
    with store.producer() as producer:
        with pytest.raises(errors.InvalidRecord):
            producer.send_batch("t", batch)
        producer.send("t", b"good")
    assert store.scan("t").record_count == 1


def test_a_table_of_which_a_part_is_wrong_is_refused_whole(store: Store) -> None:
    """None of it is sent with the next flush, so it can be mended and sent again."""
    parts = [pa.record_batch({"value": [b"x"], "partition": [number]}) for number in (0, 7)]
    with store.producer() as producer:
        with pytest.raises(errors.InvalidRecord, match="'partition' has 7, but topic 't' has 2"):
            producer.send_batch("t", pa.Table.from_batches(parts))
        producer.send_batch("t", pa.Table.from_batches([parts[0], parts[0]]))
    assert store.scan("t").record_count == 2


@pytest.mark.parametrize(
    "arguments",
    [
        {"value": 5},
        {"value": b"x", "key": 1.5},
        {"value": b"x", "partition": 2},
        {"value": b"x", "partition": -1},
        {"value": b"x", "timestamp_ms": "now"},
        {"value": b"x", "headers": [("h", 1)]},
        {"value": b"x", "headers": ["h"]},
        {"value": "half \ud800"},
        {"value": b"x", "headers": [("half \ud800", b"")]},
        {"value": b"x", "timestamp_ms": True},
    ],
)
def test_records_of_a_wrong_shape_are_refused(store: Store, arguments: dict[str, object]) -> None:
    """The same for single records."""
    with store.producer() as producer:
        with pytest.raises(errors.InvalidRecord):
            producer.send("t", **arguments)  # type: ignore[arg-type]
        producer.send("t", b"good")
    assert store.scan("t").record_count == 1


def test_a_record_that_is_too_large_is_refused_alone(store: Store) -> None:
    """max.message.bytes bounds single records and those in batches; the producer goes on."""
    with store.producer() as producer:
        with pytest.raises(errors.RecordTooLarge, match="1000"):
            producer.send("t", b"x" * 1000)
        producer.send("t", b"x" * 900)
        for batch in (
            pa.record_batch({"value": [b"a", b"x" * 1000]}),
            [{"value": b"a"}, {"value": b"x" * 1000}],
            pa.Table.from_batches([pa.record_batch({"value": [b"x" * n]}) for n in (900, 1000)]),
        ):
            with pytest.raises(errors.RecordTooLarge, match="topic 't'"):
                producer.send_batch("t", batch)
        producer.send_batch("t", pa.record_batch({"value": [b"a" * 900, b"b"]}))
    assert store.scan("t").record_count == 3


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"columns": ["value", "colour"]}, errors.InvalidOption),
        ({"columns": "value"}, errors.InvalidOption),
        ({"columns": []}, errors.InvalidOption),
        ({"starting_offsets": "first"}, errors.InvalidOption),
        ({"starting_offsets": {5: 0}}, errors.InvalidOption),
        ({"starting_offsets": {0: "x"}}, errors.InvalidOption),
        ({"starting_offsets": {TopicPartition("other", 0): 0}}, errors.InvalidOption),
        ({"ending_offsets": {0: 1}}, errors.OffsetOutOfRange),
        ({"isolation_level": "serializable"}, errors.InvalidOption),
    ],
)
def test_scans_of_what_is_not_there(
    store: Store, arguments: dict[str, object], error: type[Exception]
) -> None:
    """Wrong columns, offsets and levels are named."""
    with pytest.raises(error):
        store.scan("t", **arguments)  # type: ignore[arg-type]


def test_consumers_check_their_arguments(store: Store) -> None:
    """Unknown policies and levels, and calls that need a group or an assignment."""
    for arguments in ({"auto_offset_reset": "first"}, {"isolation_level": "x"}):
        with pytest.raises(errors.InvalidOption):
            store.consumer("t", **arguments)  # type: ignore[arg-type]
    misplaced: dict[str, Any] = {"fetch_max_bytes": 1 << 20, "client_id": "a"}
    told = r"config=txnlog\.ConsumerConfig\(client_id=\.\.\., fetch_max_bytes=\.\.\.\)"
    with pytest.raises(errors.InvalidOption, match=told):
        store.consumer("t", **misplaced)
    with pytest.raises(TypeError, match="'consumer_timeout_ms'"):
        store.consumer("t", consumer_timeout_ms=1)  # type: ignore[call-arg]
    with pytest.raises(errors.IllegalState, match="group_id"):
        store.consumer("t").commit()
    with pytest.raises(errors.IllegalState, match="subscribe"):
        store.consumer().poll()
    with pytest.raises(errors.UnknownTopicOrPartition, match="no partition 9"):
        store.consumer().assign([TopicPartition("t", 9)])
    with pytest.raises(errors.InvalidGroupId):
        store.consumer("t", group_id="")
    consumer = store.consumer("t")
    consumer.close()
    with pytest.raises(errors.IllegalState, match="closed"):
        consumer.poll()


@pytest.mark.parametrize("value", [True, 1.0, "1", None, float("nan"), 0, 4])
def test_what_is_no_whole_number_is_refused(value: Any) -> None:
    """One check for all numbers that callers give: a bool is none, and bounds count."""
    for number in (1, 2, 3):
        assert check_whole_number(number, "n", errors.InvalidOption, least=1, most=3) == number
    with pytest.raises(errors.InvalidOption, match=r"^n must be a whole number from 1 to 3, not"):
        check_whole_number(value, "n", errors.InvalidOption, least=1, most=3)


def test_whole_numbers_may_have_one_bound_or_none() -> None:
    """The message names the bounds that there are."""
    assert check_whole_number(-5, "n", errors.InvalidOption) == -5
    assert check_whole_number(1 << 70, "n", errors.InvalidOption, least=1) == 1 << 70
    with pytest.raises(errors.InvalidOption, match=r"^n must be a whole number, not '5'$"):
        check_whole_number("5", "n", errors.InvalidOption)
    with pytest.raises(errors.InvalidOption, match=r"whole number of at least 1, not 0$"):
        check_whole_number(0, "n", errors.InvalidOption, least=1)


@pytest.mark.parametrize("partition", ["0", True, 1.0, -1, None])
def test_offsets_of_what_is_no_partition_are_refused(store: Store, partition: Any) -> None:
    """A group's log holds nothing that another process could not read."""
    where = TopicPartition("t", partition)
    consumer = store.consumer("t", group_id="g")
    with pytest.raises(errors.InvalidOption, match="a partition to commit an offset"):
        consumer.commit({where: 0})
    with pytest.raises(errors.TxnlogError):
        store.groups.reset_offsets("g", to={where: 0})
    with store.producer(transactional_id="p") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        with pytest.raises(errors.InvalidOption, match="a partition to commit an offset"):
            producer.send_offsets_to_transaction({where: 0}, "g")
    assert txnlog.open(store.url).groups.list() == []


@pytest.mark.parametrize("offset", [True, 0.5, "0", None, 1 << 63])
def test_what_is_no_offset_is_refused(store: Store, offset: Any) -> None:
    """Nor does a topic's log hold what would make it unreadable for everybody."""
    first = TopicPartition("t", 0)
    with store.producer() as producer:
        producer.send("t", b"x", partition=0)
        producer.send("t", b"y", partition=0)
    with pytest.raises((errors.InvalidOption, errors.OffsetOutOfRange)):
        store.topics.delete_records({first: offset})
    with pytest.raises(errors.InvalidOption):
        store.consumer("t", group_id="g").commit({first: offset})
    assert txnlog.open(store.url).scan("t").record_count == 2
    assert txnlog.open(store.url).groups.list() == []


def test_an_entry_that_nobody_could_read_is_not_written(store: Store) -> None:
    """Whatever slips through the checks of the calls stops before the log."""
    log = store.logs.topic("t")
    for wrong in ({0: "1"}, {0: 0.5}, {"first": 0}, {0: object()}):
        with pytest.raises(errors.InvalidOption, match=r"topic 't': nothing was written"):
            log.append(lambda _, wrong=wrong: Trimmed("nonce", 0, wrong))  # type: ignore[misc]
    with pytest.raises(errors.InvalidOption, match="surrogates"):
        store.consumer("t", group_id="g").commit({TopicPartition("t", 0): 0}, "half \ud800")
    assert store.storage.list_names("topics/t/log") == [f"{0:020d}.json"]


def test_ids_that_are_no_text_are_refused(store: Store) -> None:
    """Half of a surrogate pair can stand in no file."""
    with pytest.raises(errors.InvalidTransactionalId, match="not valid text"):
        store.producer(transactional_id="half \ud800")
    with pytest.raises(errors.InvalidGroupId, match="not valid text"):
        store.consumer("t", group_id="half \ud800")


def test_names_of_versions_and_reasons_that_are_no_text_are_refused(store: Store) -> None:
    """Half of a surrogate pair cannot be written: an error of our own, before anything is."""
    producer = store.producer(transactional_id="x")
    producer.init_transactions()
    with pytest.raises(errors.InvalidOption, match=r"application id .* is not valid text"):
        producer.begin_transaction(application_id="half \ud800", version=1)
    producer.begin_transaction()
    with pytest.raises(errors.InvalidOption, match=r"reason .* is not valid text"):
        store.transactions.abort("x", reason="half \ud800")


def test_what_kafkas_users_leave_out_may_be_left_out(store: Store) -> None:
    """headers=None means no headers, and one topic needs no list around it."""
    store.topics.create("one")
    with store.producer() as producer:
        producer.send("one", value=b"v", headers=None)
    snapshot = store.snapshot("one")
    assert snapshot.topics == ["one"]
    assert snapshot.scan("one").to_arrow().column("headers").to_pylist() == [[]]


def test_nothing_in_a_store_is_executed(store: Store) -> None:
    """A pickle where an entry should be is damage, not a program."""
    name = Path(store.url) / "topics/t/log/00000000000000000001.json"
    name.write_bytes(pickle.dumps({"kind": "append"}))
    with pytest.raises(errors.CorruptEntry):
        store.scan("t")


def test_every_error_is_a_txnlog_error_and_documented() -> None:
    """One base class for all, so that a job can catch them; each says what it means."""
    for name in errors.__all__:
        error = getattr(errors, name)
        assert issubclass(error, errors.TxnlogError), name
        assert error.__doc__, name
        assert isinstance(error.retriable, bool), name


def test_entries_are_json_that_people_can_read(store: Store) -> None:
    """An entry is one line of JSON with its version first."""
    text = (Path(store.url) / "topics/t/log/00000000000000000000.json").read_text()
    entry = json.loads(text)
    assert list(entry)[:3] == ["format", "checksum", "kind"]
    assert entry["partitions"] == 2
    assert text.count("\n") == 1
