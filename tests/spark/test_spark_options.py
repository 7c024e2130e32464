"""Options: names, values, and errors that name the option and the remedy. No JVM."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest

from txnlog.errors import InvalidConfig, InvalidGroupId, InvalidOption, InvalidTopic
from txnlog.spark.options.columns import meant_names, parse_columns
from txnlog.spark.options.option_names import (
    RATE_OPTIONS,
    READ_OPTIONS,
    STAGING,
    WRITE_OPTIONS,
)
from txnlog.spark.options.positions import ByTime, parse_offsets
from txnlog.spark.options.read_options import parse_read
from txnlog.spark.options.stream_options import check_rates, parse_stream, warn_of_rates
from txnlog.spark.options.write_options import parse_write
from txnlog.spark.transactions.read_options import merge_read_options

READ = {"path": "/store", "subscribe": "orders"}
S = {"path": "/store"}


def test_defaults_are_those_of_the_kafka_source_in_batches() -> None:
    """A read with a path and topics goes from earliest to latest, committed data only."""
    options = parse_read({"path": "/store", "subscribe": "orders, paid"})
    assert list(options.subscription.topics) == ["orders", "paid"]
    assert (options.starting, options.ending) == (None, "latest")
    assert options.isolation_level == "read_committed"
    assert options.fail_on_data_loss
    columns = options.columns.of(None).names
    assert "headers" not in columns
    assert len(columns) == 7


def test_names_are_found_whatever_their_case() -> None:
    """Spark lower-cases option names, so every name is known in lower case."""
    options = parse_read({**READ, "startingoffsets": "latest", "INCLUDEHEADERS": "TRUE"})
    assert options.starting == "latest"
    assert options.columns.of(None).names[-1] == "headers"


def test_storage_options_are_passed_on_without_their_prefix() -> None:
    """Options storage.* go to the filesystem, unparsed."""
    options = parse_read({**READ, "storage.endpoint_url": "http://x", "storage.secret": "s"})
    assert options.address.options == {"endpoint_url": "http://x", "secret": "s"}


def test_kafka_spellings_mean_the_same() -> None:
    """The option kafka.isolation.level and its like of a Kafka job keep working."""
    options = parse_read({**READ, "kafka.isolation.level": "read_uncommitted"})
    assert options.isolation_level == "read_uncommitted"
    with pytest.raises(InvalidOption, match="contradict"):
        parse_read({**READ, "isolation.level": "a", "kafka.isolation.level": "b"})
    assert parse_write({"path": "/s", "kafka.transactional.id": "t"}).transactional_id == "t"


def test_damage_is_an_error_unless_it_is_to_be_skipped() -> None:
    """In batches and in streams."""
    assert not parse_read(READ).skip_damaged
    assert parse_read({**READ, "onCorrupt": "Skip"}).skip_damaged
    assert not parse_read({**READ, "onCorrupt": "raise"}).skip_damaged
    assert parse_stream({**READ, "oncorrupt": "skip"}).read.skip_damaged
    with pytest.raises(InvalidOption, match="onCorrupt must be raise or skip, not 'ignore'"):
        parse_read({**READ, "onCorrupt": "ignore"})


def test_kafka_group_id_follows_no_group() -> None:
    """As in Spark's Kafka source it is a client's name, and no place to start or to move."""
    assert parse_read({**READ, "kafka.group.id": "g"}).group_id is None
    assert parse_stream({**READ, "kafka.group.id": "g"}).read.group_id is None
    both = parse_read({**READ, "kafka.group.id": "g", "group.id": "g"})
    assert (both.group_id, both.starting) == ("g", None)
    with pytest.raises(InvalidOption, match=r"group\.id and kafka\.group\.id contradict"):
        parse_read({**READ, "group.id": "a", "kafka.group.id": "b"})
    with pytest.raises(InvalidGroupId):
        parse_read({**READ, "kafka.group.id": ""})
    with pytest.raises(InvalidOption, match=r"needs group\.id.*; kafka\.group\.id does not say"):
        parse_read({**READ, "kafka.group.id": "g", "transactional.id": "t"})


@pytest.mark.parametrize("name", ["group.id", "kafka.group.id"])
def test_a_read_that_asks_for_it_starts_at_the_groups_offsets(name: str) -> None:
    """With startingOffsets=group a read follows the group, whichever way it is named."""
    options = parse_read({**READ, "startingOffsets": "Group", name: "g", "transactional.id": "t"})
    assert (options.group_id, options.starting) == ("g", None)
    timed = parse_read({**READ, "startingOffsets": "group", "startingTimestamp": "5", name: "g"})
    assert isinstance(timed.starting, ByTime)
    with pytest.raises(InvalidOption, match="startingOffsets=group is for a batch read"):
        parse_stream({**READ, "startingOffsets": "group", name: "g"})


def test_a_snapshot_is_for_batches_that_follow_no_group() -> None:
    """Offsets cannot tell what was read behind an open transaction, so nothing moves them."""
    for name in ("isolation.level", "kafka.isolation.level"):
        options = parse_read({**READ, name: "snapshot", "kafka.group.id": "g"})
        assert options.isolation_level == "snapshot"
    snapshot = {**READ, "isolation.level": "snapshot"}
    for more in ({"group.id": "g"}, {"kafka.group.id": "g", "startingOffsets": "group"}):
        with pytest.raises(InvalidOption, match="snapshot is for a read that follows no group"):
            parse_read({**snapshot, **more})
        with pytest.raises(InvalidOption, match="snapshot is for a read that follows no group"):
            parse_read({**snapshot, **more, "transactional.id": "t"})
    with pytest.raises(InvalidOption, match="what of a snapshot was read"):
        parse_read({**snapshot, "transactional.id": "t"})
    with pytest.raises(InvalidOption, match="snapshot is for a batch read"):
        parse_stream(snapshot)


def test_writes_outside_of_a_transaction_are_in_none() -> None:
    """The option is refused where it would contradict what the write is."""
    assert parse_write({"path": "/s", "outsideTransaction": "true"}).outside_transaction
    outside = {"path": "/s", "outsideTransaction": "true"}
    with pytest.raises(InvalidOption, match=r"it has transactional\.id 't'"):
        parse_write({**outside, "transactional.id": "t"})
    for given, streaming in ((outside, True), ({**outside, STAGING: "staging/x"}, False)):
        with pytest.raises(InvalidOption, match="a batch of a stream, or a write of transaction"):
            parse_write(given, streaming=streaming)


def test_a_view_of_a_kafka_job_is_written_to() -> None:
    """What a view reads with, in Kafka's spelling too, is nothing to INSERT INTO it."""
    read = {**READ, "kafka.group.id": "g", "kafka.isolation.level": "read_uncommitted"}
    assert parse_write(read).topic == "orders"
    for name in {*READ_OPTIONS, *RATE_OPTIONS} - {*WRITE_OPTIONS, "subscribePattern", "assign"}:
        assert parse_write({**READ, name: READ.get(name, "1")}).topic == "orders"


_DIGITS = "9" * 5000
TOO_LONG = [
    *(
        (name, digits)
        for name in ("maxRecords", "startingTimestamp", "minPartitions")
        for digits in (_DIGITS, str(1 << 63))
    ),
    ("maxBytesPerPartition", _DIGITS),
    ("openCostInBytes", f"{_DIGITS}g"),
    ("atTimestamp", _DIGITS),
    ("startingOffsets", f'{{"a":{{"{_DIGITS}":1}}}}'),
    ("endingOffsets", f'{{"a":{{"0":{_DIGITS}}}}}'),
    ("startingOffsetsByTimestamp", f'{{"a":{{"{_DIGITS}":1}}}}'),
]
"""Numbers of more digits than Python reads, or than a long has."""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subscribe": "a"}, "option path is missing"),
        ({"path": "/s"}, "exactly one of the options subscribe"),
        ({**READ, "assign": '{"a":[0]}'}, "exactly one of the options subscribe"),
        ({"path": "/s", "assign": '{"a":0}'}, "option assign must be JSON"),
        ({"path": "/s", "assign": "nonsense"}, "option assign must be JSON"),
        ({**READ, "startingofsets": "latest"}, "did you mean startingOffsets"),
        ({**READ, "colour": "red"}, "unknown option 'colour' for a read"),
        (
            {**READ, "latest": "true"},
            "it is an argument: txnlog.spark.read(..., ",
        ),
        ({**READ, "topic": "x"}, "option topic is for a write"),
        ({**READ, "subscribepattern": ".*"}, "exactly one of the options subscribe"),
        ({"path": "/s", "subscribepattern": "a("}, "is not a regular expression"),
        ({**READ, "groupidprefix": "x"}, "groupIdPrefix names the consumer groups that Spark"),
        ({**READ, "startingtimestamp": "yesterday"}, "startingTimestamp must be milliseconds"),
        ({**READ, "startingoffsetsbytimestamp": "1"}, "startingOffsetsByTimestamp must be JSON"),
        ({**READ, "endingoffsetsbytimestamp": '{"a":{"0":-1}}'}, "endingOffsetsByTimestamp must"),
        ({**READ, "startingoffsetsbytimestampstrategy": "latest"}, "has no effect without"),
        ({**READ, "startingoffsetsbytimestampstrategy": "x"}, "must be error or latest"),
        ({**READ, "maxrecordsperpartition": "0"}, "maxRecordsPerPartition must be a whole number"),
        ({**READ, "maxbytesperpartition": "64q"}, "maxBytesPerPartition must be a number of bytes"),
        ({**READ, "kafka.bootstrap.servers": "h:9"}, "there is no broker"),
        ({**READ, "kafka.fetch.min.bytes": "1"}, "for Kafka's client"),
        ({**READ, "startingoffsets": "sooner"}, "option startingOffsets must be earliest"),
        ({**READ, "startingoffsets": '{"a":{"0":-3}}'}, "option startingOffsets must be"),
        ({**READ, "endingoffsets": '{"a":[1]}'}, "option endingOffsets must be"),
        ({**READ, "maxrecords": "0"}, "maxRecords must be a whole number above 0"),
        ({**READ, "minpartitions": "many"}, "minPartitions must be a whole number"),
        ({**READ, "includeheaders": "yes"}, "includeHeaders must be true or false"),
        ({**READ, "columns": '["value", 1]'}, "must be a JSON list of names"),
        ({**READ, "columns": "value,value"}, "names a column twice"),
        ({**READ, "isolation.level": "serializable"}, "isolation.level must be read_committed"),
        ({**READ, "transactional.id": "t"}, "also needs group.id"),
        ({**READ, "startingoffsets": "group"}, "give group.id to say whose"),
        ({**READ, "endingoffsets": "group"}, "option endingOffsets must be earliest, latest"),
        ({**READ, "storage.json": "[]"}, "option storage.json is set by txnlog itself"),
        ({**READ, "transaction.timeout.ms": "9"}, "no effect without transactional.id"),
        *(({**READ, name: text}, f"option {name} must be") for name, text in TOO_LONG),
        *(
            ({"path": "/s", "subscribepattern": pattern}, "subscribePattern 'a")
            for pattern in ("a{99999999999999999999}", "a" + "(" * 5000 + ")" * 5000)
        ),
    ],
)
def test_bad_read_options_are_named(given: dict[str, str], said: str) -> None:
    """Whatever is wrong, the message names the option and what it should be."""
    with pytest.raises(InvalidOption) as caught:
        parse_read(given)
    assert said in str(caught.value)


def test_all_that_is_wrong_is_said_at_once() -> None:
    """A job that is moved over has several wrong options: all are in one error."""
    given = {
        "kafka.bootstrap.servers": "broker:9092",
        "kafka.sasl.jaas.config": "password='hunter2';",
        "kafka.interceptor.classes": "a.B",
        "startingofsets": "latest",
        "shade": "red",
        "topic": "x",
        "maxrecords": "0",
        "failondataloss": "no",
        "subscribe": "orders",
        "assign": '{"orders":[0]}',
        "isolation.level": "serializable",
        "transactional.id": "t",
    }
    with pytest.raises(InvalidOption) as caught:
        parse_read(given)
    said = str(caught.value)
    assert said.startswith("11 things are wrong with the options of this read:\n  - ")
    for part in (
        "options kafka.bootstrap.servers, kafka.sasl.jaas.config: there is no broker",
        "option kafka.interceptor.classes is for Kafka's client",
        "'startingofsets' for a read; did you mean startingOffsets?\n",
        "unknown option 'shade' for a read; known are path",
        "option topic is for a write",
        "option maxRecords must be a whole number above 0, not '0'",
        "option failOnDataLoss must be true or false, not 'no'",
        "exactly one of the options subscribe",
        "option isolation.level must be read_committed, read_uncommitted or snapshot",
        "option path is missing",
        "option transactional.id on a read also needs group.id",
    ):
        assert said.count(part) == 1, part
    assert "hunter2" not in said
    assert said.count("known are") == 1


def test_all_that_is_wrong_with_a_write_or_a_stream_is_said_at_once() -> None:
    """The same for the other two."""
    with pytest.raises(InvalidOption) as caught:
        parse_write({"startingOffsets": "latest", "topic": "a b", "partitioner": "best"})
    for part in ("option startingOffsets is for a read", "path is missing", "'a b'", "'best'"):
        assert part in str(caught.value)
    with pytest.raises(InvalidOption) as caught:
        parse_stream(
            {**READ, "endingOffsets": "latest", "maxOffsetsPerTrigger": "x", "colour": "r"}
        )
    for part in ("option endingOffsets is for a batch read", "maxOffsetsPerTrigger must", "colour"):
        assert part in str(caught.value)
    assert str(caught.value).startswith("3 things are wrong with the options of this stream")


CLIENT = {
    "kafka.bootstrap.servers": "b:9",
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.jaas.config": "secret",
    "kafka.ssl.truststore.location": "/t",
    "kafka.fetch.min.bytes": "1",
    "kafka.max.poll.records": "5",
    "kafka.batch.size": "9",
    "kafka.linger.ms": "5",
    "kafka.acks": "all",
    "kafkaConsumer.pollTimeoutMs": "100",
    "groupIdPrefix": "p",
}


def test_options_of_kafkas_client_are_passed_over_where_that_is_asked_for() -> None:
    """With one option more a job's connection settings may stay; without it they are refused."""
    ignore = {"ignoreKafkaClientOptions": "true"}
    for given in (parse_read({**READ, **CLIENT, **ignore}), parse_write({**CLIENT, **ignore, **S})):
        assert {name.lower() for name in given.passed_over} == {name.lower() for name in CLIENT}
    assert len(parse_stream({**READ, **CLIENT, **ignore}).read.passed_over) == len(CLIENT)
    for refused in ({**READ, **CLIENT}, {**READ, **CLIENT, "ignoreKafkaClientOptions": "false"}):
        with pytest.raises(InvalidOption, match=r"ignore .* with ignoreKafkaClientOptions=true"):
            parse_read(refused)
    for name in ("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "groupIdPrefix"):
        with pytest.raises(InvalidOption, match=rf"{name}.* with ignoreKafkaClientOptions=true"):
            parse_read({**READ, name: "1"})


@pytest.mark.parametrize(
    "name", ["kafka.partitioner.class", "kafka.interceptor.classes", "kafka.x"]
)
def test_what_says_what_is_read_or_written_is_never_passed_over(name: str) -> None:
    """Only what tells Kafka's client how to do its work is; what means something still does."""
    ignore = {**READ, "ignoreKafkaClientOptions": "true"}
    with pytest.raises(InvalidOption, match=f"option {re.escape(name)} "):
        parse_read({**ignore, name: "a.B"})
    assert parse_read({**ignore, "kafka.isolation.level": "read_uncommitted"}).isolation_level == (
        "read_uncommitted"
    )


def test_rates_have_no_effect_in_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    """As in Spark's Kafka source they are a warning there, and their values are looked at."""
    rated = {**READ, "maxoffsetspertrigger": "1", "minOffsetsPerTrigger": "1"}
    assert parse_read(rated) == parse_read(READ)
    warn_of_rates(rated)
    assert "minOffsetsPerTrigger" in caplog.text
    assert "maxOffsetsPerTrigger" in caplog.text
    warn_of_rates(READ)
    assert len(caplog.records) == 1
    check_rates(rated)
    for text in ("x", _DIGITS):
        with pytest.raises(InvalidOption, match="maxOffsetsPerTrigger must be"):
            check_rates({**READ, "maxOffsetsPerTrigger": text})
    with pytest.raises(InvalidOption, match="maxTriggerDelay must be"):
        check_rates({**rated, "maxTriggerDelay": _DIGITS})


def test_reads_of_our_own_take_columns_as_the_option_does(caplog: pytest.LogCaptureFixture) -> None:
    """``columns="key,value"`` is not six columns of one letter; and rates are refused in them."""
    merged = partial(merge_read_options, include_headers=False, starting_offsets=None)
    columns: tuple[str | list[str], ...] = ("key,value", '["key", "value"]', ["key", "value"])
    for chosen in columns:
        options = parse_read({**READ, **merged({}, columns=chosen)})
        assert options.columns.of(None).names == ("key", "value")
    for in_block, said in ((True, "has max_records"), (False, "give maxRecords")):
        with pytest.raises(InvalidOption, match=said):
            merged({"maxOffsetsPerTrigger": 5}, columns=None, in_block=in_block)
    client: dict[str, bool | int | str] = {**CLIENT, "ignoreKafkaClientOptions": True}
    assert parse_read({**READ, **merged(client, columns=None)}).passed_over == ()
    [warning] = caplog.records
    assert "kafka.sasl.jaas.config" in warning.getMessage()
    assert "secret" not in warning.getMessage()


ARGUMENTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "columns": ({"columns": ["key"]}, ["columns"]),
    "include_headers": ({"include_headers": True}, ["includeHeaders"]),
    "starting_offsets": (
        {"starting_offsets": "latest"},
        ["startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"],
    ),
    "ending_offsets": (
        {"ending_offsets": "latest"},
        ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"],
    ),
    "at": ({"at": 1}, ["atTimestamp", "atToken"]),
}


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_an_option_beside_its_argument_is_refused(argument: str) -> None:
    """In any case, and whichever would have won; by itself it is taken."""
    none: dict[str, Any] = {"columns": None, "include_headers": False, "starting_offsets": None}
    given, options = ARGUMENTS[argument]
    said = f": give read.* {argument}=... instead"
    for option in (each for name in options for each in (name, name.lower(), name.upper())):
        assert merge_read_options({option: "1"}, **none, in_block=False) == {option: "1"}
        with pytest.raises(InvalidOption, match=f"option {option}{said}"):
            merge_read_options({option: "1"}, **{**none, **given}, in_block=False)
    if argument in ("columns", "include_headers"):
        with pytest.raises(InvalidOption, match=said):
            merge_read_options({options[0]: "1"}, **{**none, "columns": ["value"]}, decoded=True)


def test_columns_are_those_of_the_topic_and_no_others() -> None:
    """The row of Spark's Kafka source for untyped topics; names in JSON may have commas."""
    assert parse_columns(' ["a, b"]', include_headers=False).names == ("a, b",)
    for text, headers, said in (
        ("value,colour", False, "there is no 'colour'"),
        ("value", True, "columns leaves headers out"),
    ):
        with pytest.raises(InvalidOption, match=said):
            parse_columns(text, headers).of(None)


@pytest.mark.parametrize(
    ("names", "meant"),
    [
        (["ID", "NAME"], ["Id", "name"]),
        (["name", "NAME"], ["name", "NAME"]),
        (["NAME", "Name"], ["NAME", "Name"]),
        (["TwO"], ["TwO"]),
        (["other"], ["other"]),
        (["_OFFSET"], ["_offset"]),
    ],
    ids=" ".join,
)
def test_names_of_columns_may_differ_in_case(names: list[str], meant: list[str]) -> None:
    """If one alone can be meant."""
    known = ("Id", "name", "two", "Two", "_offset")
    assert meant_names(names, known) == tuple(meant)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "option path is missing"),
        ({"path": "/s", "assign": "a"}, "option assign is for a read"),
        ({"location": "/s", "provider": "txnlog"}, "CREATE TEMPORARY VIEW"),
        ({"path": "/s", "topik": "a"}, "did you mean topic?"),
        ({"path": "/s", "transaction.timeout.ms": "9"}, "no effect without transactional.id"),
        ({"path": "/s", "partitioner": "best"}, "'best' is not one of murmur2, crc32"),
        ({"path": "/s", "partitioner": "no.module:f"}, "cannot be loaded"),
        ({"path": "/s", "kafka.partitioner.class": "a.B"}, "use the option partitioner with"),
        ({"path": "/s", "compression.type": "lzo"}, "'lzo' is not one of"),
        ({"path": "/s", "compression.level": "3"}, "no effect without compression.type"),
        ({"path": "/s", "compression.level": "x"}, "compression.level must be a whole number"),
    ],
)
def test_bad_write_options_are_named(given: dict[str, str], said: str) -> None:
    """The same for writes."""
    with pytest.raises((InvalidOption, InvalidConfig)) as caught:
        parse_write(given)
    assert said in str(caught.value)


def test_bad_names_are_refused_before_anything_is_opened() -> None:
    """Topics and groups obey Kafka's rules."""
    with pytest.raises(InvalidTopic):
        parse_read({"path": "/s", "subscribe": "a,../b"})
    with pytest.raises(InvalidTopic):
        parse_write({"path": "/s", "topic": "a b"})
    with pytest.raises(InvalidGroupId):
        parse_read({**READ, "group.id": ""})


def test_secrets_are_not_in_messages() -> None:
    """An error about other options shows no value of storage.*."""
    with pytest.raises(InvalidOption) as caught:
        parse_read({**READ, "storage.secret": "hunter2", "colour": "red"})
    assert "hunter2" not in str(caught.value)


def test_offsets_are_parsed_as_kafka_writes_them() -> None:
    """{"topic":{"0":23}} with -2 and -1 for the edges."""
    assert parse_offsets("startingOffsets", '{"a":{"0":23,"1":-2},"b":{"0":-1}}') == {
        "a": {0: 23, 1: -2},
        "b": {0: -1},
    }
