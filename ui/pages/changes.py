"""Forms that change something, with ``--allow-changes``: first they say what they would do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from txnlog.admin.resets import Target
from txnlog.config import topic_settings
from txnlog.errors import TxnlogError
from txnlog.names import TopicPartition
from txnlog.store import Store
from txnlog.ui.access import same_secret
from txnlog.ui.changes import MOST_CHARS, Field, Form, Plan, WrongField
from txnlog.ui.console import Console, named_in
from txnlog.ui.record_query import choose_partitions, find_zone, parse_time
from txnlog.ui.rendering import address_of, show_count, show_setting, show_size

Typed = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of change: its form, and how to plan what is asked for.

    ``blamed`` is the field beside which errors are said that are about none in particular.
    """

    title: str
    verb: str
    fields: Sequence[Field]
    blamed: str
    plan: Callable[[Store, str, Typed], Plan]


def plan_record(store: Store, topic: str, typed: Typed) -> Plan:
    """One record."""
    described = store.describe_topic(topic)
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
    value = None if typed["kind"] == "null" else _value(typed, typed_topic=bool(described.schema))
    if described.schema is not None and key is not None:
        raise WrongField("key", "the topic has columns: leave it out")

    def send() -> str:
        with store.producer() as producer:
            sent = producer.submit(topic, value, key, partition, headers=headers or None)
            producer.flush()
        placed = sent.result()
        return f"wrote a record to {topic}:{placed.partition} at offset {placed.offset}"

    where = "the partition of its key" if partition is None else f"partition {partition}"
    if partition is None and key is None and not described.schema:
        where = "any partition"
    size = (
        "null, which deletes its key"
        if value is None
        else show_size(len(typed["value"].encode(errors="replace")))
    )
    says = [f"One record is written to {topic}, into {where}. Its value: {size}."]
    return Plan(says, described.topic_id, send)


def _value(typed: Typed, *, typed_topic: bool) -> bytes | dict[str, object]:
    text = typed["value"].replace("\r\n", "\n")  # as browsers send ends of lines
    if not typed_topic:
        return text.encode(errors="surrogateescape")
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WrongField("value", f"it is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise WrongField("value", "the topic has columns: give an object of them, in JSON")
    return row


def plan_settings(store: Store, topic: str, typed: Typed) -> Plan:
    """Other settings, or more partitions."""
    config: dict[str, str | None] = {}
    for line in typed["config"].splitlines():
        key, equals, value = (part.strip() for part in line.partition("="))
        if key:
            config[key] = value if equals else None
    count = _number(typed, "partitions")
    before = store.describe_topic(topic)
    after = store.alter_topic(topic, partitions=count, config=config, dry_run=True)
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
        store.alter_topic(topic, partitions=count, config=config)
        return f"altered {topic}: {'; '.join(says)}"

    return Plan(says, [before.topic_id, before.config, had], alter)


def plan_trim(store: Store, topic: str, typed: Typed) -> Plan:
    """Delete the oldest records."""
    described = store.describe_topic(topic)
    count = len(described.partitions)
    chosen = _partitions(typed, count)
    text = typed["below"].strip()
    before = _number(typed, "below") if text.isdecimal() and len(text) < 12 else None
    if before is not None and len(chosen) != 1:
        raise WrongField("below", "an offset is one of a single partition: name that one, too")
    at_ms = None
    if before is None and text != "latest":
        at_ms = _time(store, typed, "below", "an offset, latest, or a time")
    planned = store.plan_delete_records(
        [TopicPartition(topic, number) for number in chosen], before=before, timestamp_ms=at_ms
    )
    doomed = [plan for plan in planned if plan.offset_count]
    if not doomed:
        raise WrongField("below", "nothing would be deleted")
    says = [
        f"Partition {plan.partition}: {show_count(plan.offset_count)} offsets go, and it begins at "
        f"{show_count(plan.new_log_start_offset)}."
        for plan in doomed
    ]

    def trim() -> str:
        starts = {
            TopicPartition(topic, plan.partition): plan.new_log_start_offset for plan in doomed
        }
        store.delete_records(starts)
        gone = sum(plan.offset_count for plan in doomed)
        return f"trimmed {topic}: {gone} offsets of {len(doomed)} partitions"

    return Plan([*says, "They cannot be brought back."], [described.topic_id, doomed], trim)


def plan_reset(store: Store, group_id: str, typed: Typed) -> Plan:
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
        at_ms = _time(store, typed, "to", "earliest, latest, +10 or -10, an offset, or a time")

    def reset(*, dry_run: bool) -> list[str]:
        moved = store.reset_group_offsets(
            group_id, topics or None, to=to, shift_by=shift, timestamp_ms=at_ms, dry_run=dry_run
        )
        found[:] = [[each.topic, each.partition, each.before] for each in moved]
        return [
            f"{each.topic}:{each.partition} from {show_count(each.before)} to "
            f"{show_count(each.after)}"
            for each in moved
            if each.before != each.after
        ]

    found: list[list[object]] = []
    says = reset(dry_run=True)
    if not says:
        raise WrongField("to", "nothing would be moved")
    return Plan(
        says, [*found], lambda: f"moved group {group_id}: {'; '.join(reset(dry_run=False))}"
    )


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


def _time(store: Store, typed: Typed, name: str, known: str) -> int:
    text, now_ms = typed[name].strip(), store.logs.clock.now_ms()
    try:
        return parse_time(text, find_zone(typed["zone"]), now_ms)
    except (ValueError, OverflowError) as error:
        raise WrongField(name, f"{text!r} is none of these: {known}") from error


KINDS: Final[Mapping[str, Kind]] = {
    "produce": Kind(
        "Write a record",
        "Write it",
        (
            Field("key", "Key"),
            Field("partition", "Partition", "by its key"),
            Field(
                "kind", "Value is", options=(("text", "as typed"), ("null", "null: a tombstone"))
            ),
            Field("value", "Value", rows=8),
            Field("headers", "Headers", "name=value, one a line", rows=3),
        ),
        "value",
        plan_record,
    ),
    "alter": Kind(
        "Change settings",
        "Change them",
        (
            Field("config", "Settings", "retention.ms=604800000\nsegment.bytes", rows=6),
            Field("partitions", "Partitions", "as many as there are"),
        ),
        "config",
        plan_settings,
    ),
    "trim": Kind(
        "Delete the oldest records",
        "Delete them",
        (
            Field("partitions", "Partitions", "all of them, or 0,3,5-9"),
            Field("below", "Before", "an offset, a time, 7d, or latest"),
        ),
        "below",
        plan_trim,
    ),
    "reset": Kind(
        "Move offsets",
        "Move them",
        (
            Field("topics", "Topics or partitions", "all that it reads, or orders:0"),
            Field("to", "To", "earliest, latest, +10, a time, an offset"),
        ),
        "to",
        plan_reset,
    ),
}


def show_form(kind: str) -> Callable[[Console, Request], Response]:
    """The page of an empty form."""

    def show(console: Console, request: Request) -> Response:
        typed = {field.name: "" for field in KINDS[kind].fields} | {"zone": ""}
        return _page(console, request, kind, Form(typed))

    return show


def answer_form(kind: str) -> Callable[[Console, Request, dict[str, str]], Response]:
    """What a form leads to: what is wrong, what it would do, or that it is done.

    It is done if the form says that this very plan was seen.
    """

    def answer(console: Console, request: Request, sent: dict[str, str]) -> Response:
        names = [*(field.name for field in KINDS[kind].fields), "zone"]
        form = Form({name: sent.get(name, "") for name in names})
        _check(kind, form)
        store, name = console.store, _name_of(request)
        if not form.errors:
            try:
                form.plan = KINDS[kind].plan(store, name, form.typed)
            except WrongField as error:
                form.errors[error.name] = str(error)
            except TxnlogError as error:
                form.errors[KINDS[kind].blamed] = str(error)
        if form.plan is None or not same_secret(sent.get("seen", ""), form.seal):
            return _page(console, request, kind, form, was_seen=bool(sent.get("seen")))
        try:
            console.log_change(request, form.plan.apply())
        except TxnlogError as error:
            console.log_change(request, f"{KINDS[kind].title} of {name} failed: {error}")
            form.plan = None
            form.errors[KINDS[kind].blamed] = str(error)
            return _page(console, request, kind, form)
        return RedirectResponse(_back(kind, name), status_code=303)

    return answer


def _check(kind: str, form: Form) -> None:
    for field in KINDS[kind].fields:
        text, options = form.typed[field.name], [value for value, _ in field.options]
        if len(text) > MOST_CHARS:
            form.errors[field.name] = f"more than {MOST_CHARS} characters"
        elif options and text not in options:
            form.errors[field.name] = f"none of {', '.join(options)}"


def _name_of(request: Request) -> str:
    topic: str | None = request.path_params.get("topic")
    return named_in(request, "group_id") if topic is None else topic


def _back(kind: str, name: str) -> str:
    if kind == "reset":
        return address_of("groups", name)
    return address_of("topics", name, {"produce": "/records", "alter": "/settings"}.get(kind, ""))


def _page(
    console: Console, request: Request, kind: str, form: Form, *, was_seen: bool = False
) -> Response:
    name = _name_of(request)
    content = {
        "title": f"{KINDS[kind].title}, {name}",
        "kind": KINDS[kind],
        "name": name,
        "form": form,
        "was_seen": was_seen,
        "back": _back(kind, name),
    }
    return console.page(request, "change.html", content, status=400 if form.errors else 200)
