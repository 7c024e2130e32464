"""What each form would do to the store: plans, which say so before they do it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from txnlog.admin.resets import Target
from txnlog.columns.schema_files import parse_description
from txnlog.config import topic_settings
from txnlog.display import parse_setting, show_count, show_setting
from txnlog.errors import (
    InvalidConfig,
    InvalidOption,
    InvalidPartitions,
    InvalidRecord,
    InvalidSchema,
    InvalidTopic,
    TopicAlreadyExists,
)
from txnlog.inspect.descriptions import TopicDescription
from txnlog.inspect.group_lag import OffsetReset
from txnlog.names import TopicPartition
from txnlog.schema import DELETED, HEADERS, PARTITION, TIMESTAMP, TopicSchema
from txnlog.state.transaction import Status
from txnlog.store import Store
from txnlog.ui.changes import ChangePlan, WrongField
from txnlog.ui.record_query import choose_partitions, find_zone, parse_time
from txnlog.ui.render import (
    show_counted,
    show_size,
    show_time,
)
from txnlog.write.typed_lines import read_typed_row

Typed = Mapping[str, str]
_MOST_REASON_CHARS = 2000


def plan_creation(store: Store, _name: str, typed: Typed) -> ChangePlan:
    """A new topic, of keys and values or with columns."""
    topic, columns = typed["topic"].strip(), typed["columns"].strip()
    if not topic:
        raise WrongField("topic", "a topic needs a name")
    config = _settings(typed["config"])
    for name, value in config.items():
        if value is None:
            raise WrongField("config", f"{name} has no value: give {name}=value")
    count, factor = _number(typed, "partitions"), _number(typed, "factor")
    if factor == 0:
        raise WrongField("factor", "it is at least 1")
    key = [name.strip() for name in typed["key"].split(",") if name.strip()]
    try:
        written = parse_description(columns) if columns else None
        if key and written is None:
            raise WrongField("key", "it is made of columns: without any, each record has its own")
        for name in key:
            if written is not None and name not in written.columns.names:
                known = ", ".join(written.columns.names)
                raise WrongField("key", f"there is no column {name!r}; there are {known}")

        def create(*, dry_run: bool) -> TopicDescription:
            return store.topics.create(
                topic,
                partitions=1 if count is None else count,
                config=config,
                schema=None if written is None else written.columns,
                key=key or None,
                defaults=None if written is None else written.defaults or None,
                replication_factor=factor,
                dry_run=dry_run,
            )

        planned = create(dry_run=True)
    except (InvalidTopic, TopicAlreadyExists) as error:
        raise WrongField("topic", str(error)) from error
    except InvalidPartitions as error:
        raise WrongField("partitions", str(error)) from error
    except InvalidConfig as error:
        raise WrongField("config", str(error)) from error
    except InvalidOption as error:
        raise WrongField("factor", str(error)) from error
    except InvalidSchema as error:
        raise WrongField("columns", str(error)) from error
    number = len(planned.partitions)
    says = [f"Topic {topic} is created, with {show_counted(number, 'partition')}."]
    if factor is not None:
        says.append(f"Its data is placed at {show_counted(factor, 'root')}.")
    if planned.schema is None:
        says.append("Its records have a key and a value.")
    else:
        says.append(f"Its records have {show_counted(len(planned.schema.columns), 'column')}:")
        for field in planned.schema.columns:
            default = "" if written is None else written.defaults.get(field.name, "")
            says.append(
                f"{field.name}: {field.type}"
                f"{'' if field.nullable else ', not null'}"
                f"{f', default {default}' if default != '' else ''}"
                f"{', of the key' if field.name in planned.schema.key else ''}"
            )
    says += [f"{name}: {show_setting(value, name)}" for name, value in planned.config.items()]

    def make() -> str:
        create(dry_run=False)
        return f"created topic {topic}: {' '.join(says[1:])}"

    return ChangePlan(says, None, make)


def plan_deletion(store: Store, topic: str, typed: Typed) -> ChangePlan:
    """Plan to delete a topic. Records that come in before it is confirmed change nothing."""
    described = store.topics.describe(topic)
    if typed["topic"].strip() != topic:
        raise WrongField("topic", f"type {topic}, the name of what is deleted")
    count, size = show_counted(described.offset_count, "offset"), show_size(described.size_bytes)
    of = f"{count} as of now, {size}"
    says = [f"Topic {topic} is deleted, with its settings and all its records: {of}."]
    if described.open_transactions:
        found = ", ".join(ref.transactional_id for ref in described.open_transactions)
        says.append(f"What open transactions have written to it is lost, too: {found}.")
    says.append("It cannot be brought back.")

    def delete() -> str:
        store.topics.delete(topic, topic_id=described.topic_id)
        return f"deleted topic {topic}: {show_counted(described.offset_count, 'offset')}"

    return ChangePlan(says, described.topic_id, delete)


def plan_abort(store: Store, transactional_id: str, typed: Typed) -> ChangePlan:
    """The open transaction of an id; one that is decided can only be completed."""
    reason = typed["reason"].strip()
    if not reason:
        raise WrongField("reason", "say why: it is kept with the id, and its producer is told")
    if len(reason) > _MOST_REASON_CHARS:
        raise WrongField("reason", f"more than {_MOST_REASON_CHARS} characters")
    found = store.transactions.abort(transactional_id, reason=reason, dry_run=True)
    which = f"Transaction {found.number} of {transactional_id}"
    logs = ", ".join((*found.topics, *(f"group {name}" for name in found.groups)))
    if found.status == Status.ONGOING.value:
        since, written = show_time(found.since_ms), logs or "nothing so far"
        producer = f"{found.producer_id} with epoch {found.producer_epoch}"
        says = [
            f"{which}, open since {since}, is aborted.",
            f"What it has written to {written} is never shown as committed.",
            f"Its producer, {producer}, is fenced: its next call fails, with the reason.",
        ]
        done = f"aborted transaction {found.number} of {transactional_id}: {reason}"
    elif found.ends_by_ms is not None:
        outcome = "commit" if found.status == Status.PREPARE_COMMIT.value else "abort"
        says = [f"{which} is decided already: its {outcome} is completed, and no producer fenced."]
        done = f"completed the {outcome} of transaction {found.number} of {transactional_id}"
    else:
        raise WrongField("reason", f"{which} is {found.status}: nothing is open")

    def abort() -> str:
        store.transactions.abort(transactional_id, reason=reason, number=found.number)
        return done

    return ChangePlan(says, [found.producer_id, found.producer_epoch, found.number, says], abort)


def plan_record(store: Store, topic: str, typed: Typed) -> ChangePlan:
    """One record."""
    described = store.topics.describe(topic)
    partition = _number(typed, "partition")
    if partition is not None and partition >= len(described.partitions):
        raise WrongField("partition", f"the topic has {len(described.partitions)} partitions")
    headers = []
    for line in typed["headers"].splitlines():
        name, equals, content = line.partition("=")
        if not equals:
            raise WrongField("headers", f"{line!r} is not a header: give name=value")
        headers.append((name, content.encode(errors="surrogateescape")))
    key = typed["key"].encode(errors="surrogateescape") or None
    value = None if typed["kind"] == "null" else _value(typed, topic, described.schema)
    is_tombstone = value is None or (isinstance(value, dict) and value.get(DELETED) is True)
    if described.schema is not None and key is not None:
        raise WrongField("key", "the topic has columns: leave it out")

    def send() -> str:
        with store.producer() as producer:
            sent = producer.send(topic, value, key, partition, headers=headers or None)
            producer.flush()
        placed = sent.result()
        return f"wrote a record to {topic}:{placed.partition} at offset {placed.offset}"

    where = "the partition of its key" if partition is None else f"partition {partition}"
    if partition is None and key is None and not described.schema:
        where = "any partition"
    size = (
        "null, which deletes its key"
        if is_tombstone
        else show_size(len(typed["value"].encode(errors="replace")))
    )
    says = [f"One record is written to {topic}, into {where}. Its value: {size}."]
    return ChangePlan(says, described.topic_id, send)


def _value(typed: Typed, topic: str, schema: TopicSchema | None) -> bytes | dict[str, object]:
    text = typed["value"].replace("\r\n", "\n")  # as browsers send ends of lines
    value = text.encode(errors="surrogateescape")
    if schema is None:
        return value
    try:
        row = read_typed_row(value, topic, schema)
    except InvalidRecord as error:
        raise WrongField("value", str(error)) from error
    if others := sorted(row.keys() & {TIMESTAMP, HEADERS, PARTITION}):
        raise WrongField("value", f"it has {', '.join(others)}: give columns alone")
    return row


def plan_settings(store: Store, topic: str, typed: Typed) -> ChangePlan:
    """Other settings, or more partitions."""
    config = _settings(typed["config"])
    count = _number(typed, "partitions")
    before = store.topics.describe(topic)
    after = store.topics.alter(topic, partitions=count, config=config, dry_run=True)
    settings = {
        number: {s.key: s.value for s in topic_settings(described.config)}
        for number, described in enumerate((before, after))
    }
    says = [
        f"{key}: {show_setting(settings[0][key], key) or 'none'} becomes "
        f"{show_setting(value, key) or 'none'}"
        for key, value in settings[1].items()
        if settings[0][key] != value
        or (key in config and (key in before.config) != (key in after.config))
    ]
    had, has = len(before.partitions), len(after.partitions)
    if had != has:
        says.append(f"{had} partitions become {has}: keys go to other partitions than before")
    if not says:
        raise WrongField("config", "nothing would change")

    def alter() -> str:
        store.topics.alter(topic, partitions=count, config=config)
        return f"altered {topic}: {'; '.join(says)}"

    return ChangePlan(says, [before.topic_id, before.config, had], alter)


def plan_trim(store: Store, topic: str, typed: Typed) -> ChangePlan:
    """Delete the oldest records."""
    described = store.topics.describe(topic)
    count = len(described.partitions)
    chosen = _partitions(typed, count)
    text = typed["below"].strip()
    before = _number(typed, "below") if text.isdecimal() and len(text) < 12 else None
    if before is not None and len(chosen) != 1:
        raise WrongField("below", "an offset is one of a single partition: name that one, too")
    at_ms = None
    if before is None and text != "latest":
        at_ms = _time(typed, "below", "an offset, latest, or a time")
    where = [TopicPartition(topic, number) for number in chosen]
    plan_trim_to = partial(store.topics.plan_delete_records, where)
    ends: dict[int, int] = {}
    if before is None:
        ends = {plan.partition: plan.new_log_start_offset for plan in plan_trim_to()}
    planned = plan_trim_to(before=before, timestamp_ms=at_ms)
    doomed = [plan for plan in planned if plan.offset_count]
    if not doomed:
        raise WrongField("below", "nothing would be deleted")
    # That of a topic that is written to all the time is another one when this is confirmed.
    to_end = [plan.new_log_start_offset >= ends.get(plan.partition, math.inf) for plan in doomed]
    says = [
        f"Partition {plan.partition}: {show_counted(plan.offset_count, 'offset')} "
        f"{'is' if plan.offset_count == 1 else 'are'} deleted, and it begins at "
        f"{'the end, now ' if is_end else ''}{show_count(plan.new_log_start_offset)}."
        for plan, is_end in zip(doomed, to_end, strict=True)
    ]
    basis = [
        [plan.partition, None if is_end else plan.new_log_start_offset]
        for plan, is_end in zip(doomed, to_end, strict=True)
    ]

    def trim() -> str:
        starts = {
            TopicPartition(topic, plan.partition): plan.new_log_start_offset for plan in doomed
        }
        store.topics.delete_records(starts, topic_ids={topic: doomed[0].topic_id})
        gone = sum(plan.offset_count for plan in doomed)
        return (
            f"trimmed {topic}: {show_counted(gone, 'offset')} of "
            f"{show_counted(len(doomed), 'partition')}"
        )

    says.append("They cannot be brought back.")
    return ChangePlan(says, [described.topic_id, basis], trim)


def plan_reset(store: Store, group_id: str, typed: Typed) -> ChangePlan:
    """Move a group's offsets."""
    topics = [_topic_or_partition(text) for text in typed["topics"].replace(",", " ").split()]
    text = typed["to"].strip()
    to: Target | None = None
    shift = at_ms = None
    if text in ("earliest", "latest"):
        to = text
    elif text[:1] in ("+", "-") and text[1:].isdecimal() and text.isascii() and len(text) < 19:
        shift = int(text)
    elif text.isdecimal() and text.isascii() and len(text) < 12:
        to = int(text)
    else:
        at_ms = _time(typed, "to", "earliest, latest, +10 or -10, an offset, or a time")

    reset = partial(store.groups.reset_offsets, group_id, topics or None)
    reset_so = partial(reset, to=to, shift_by=shift, timestamp_ms=at_ms)
    ends: dict[tuple[str, int], int] = {}
    if at_ms is not None:
        ends = {
            (each.topic, each.partition): each.after for each in reset(to="latest", dry_run=True)
        }

    def is_end(each: OffsetReset) -> bool:
        """Whether an offset is reset to the partition's end, which moves while others write."""
        if shift is not None:
            return each.before is not None and each.before + shift > each.after
        if isinstance(to, int):
            return to > each.after
        return to == "latest" or each.after >= ends.get((each.topic, each.partition), math.inf)

    def show(moved: Sequence[OffsetReset], end: str = "") -> list[str]:
        return [
            f"{each.topic}:{each.partition} from {show_count(each.before)} to "
            f"{end if is_end(each) else ''}{show_count(each.after)}"
            for each in moved
            if each.before != each.after
        ]

    planned = reset_so(dry_run=True)
    says = show(planned, "the end, now ")
    if not says:
        raise WrongField("to", "nothing would be moved")
    basis = [
        [each.topic, each.partition, each.before, None if is_end(each) else each.after]
        for each in planned
    ]

    def move() -> str:
        return f"moved group {group_id}: {'; '.join(show(reset_so()))}"

    return ChangePlan(says, basis, move)


def _settings(text: str) -> dict[str, str | None]:
    """``key=value``, one a line, also in words; a key alone is to have its default."""
    config: dict[str, str | None] = {}
    for line in text.splitlines():
        key, equals, value = (part.strip() for part in line.partition("="))
        if key in config:
            raise WrongField("config", f"{key} is there twice")
        if key:
            config[key] = parse_setting(value, key) if equals else None
    return config


def _topic_or_partition(text: str) -> str | TopicPartition:
    topic, colon, number = text.rpartition(":")
    if not colon:
        return text
    if not (number.isdecimal() and number.isascii() and len(number) < 10):
        raise WrongField("topics", f"{text!r} is no partition: give topic:0")
    return TopicPartition(topic, int(number))


def _number(typed: Typed, name: str) -> int | None:
    text = typed[name].strip()
    if text and not (text.isdecimal() and text.isascii() and len(text) < 19):
        raise WrongField(name, f"{text!r} is not a number")
    return int(text) if text else None


def _partitions(typed: Typed, count: int) -> Sequence[int]:
    try:
        return choose_partitions(typed["partitions"], count) or range(count)
    except ValueError as error:
        raise WrongField("partitions", str(error)) from error


def _time(typed: Typed, name: str, known: str) -> int:
    text = typed[name].strip()
    try:
        return parse_time(text, find_zone(typed["zone"]), int(typed["now"]))
    except (ValueError, OverflowError) as error:
        raise WrongField(name, f"{text!r} is none of these: {known}") from error
