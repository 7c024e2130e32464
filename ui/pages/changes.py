"""Forms that change something, with ``--allow-changes``: first they say what they would do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from txnlog.errors import TxnlogError
from txnlog.store import Store
from txnlog.ui import plans
from txnlog.ui.access import same_secret
from txnlog.ui.changes import (
    MOST_CHARS,
    ChangePlan,
    Form,
    FormField,
    StillUnderWay,
    WrongField,
    moment_of,
)
from txnlog.ui.console import Console, named_in
from txnlog.ui.render import address_of

_OF_IDS: Final = {"reset": "groups", "abort": "transactions"}
"""Forms about what has an id that may hold anything, and where these are shown."""
_TABS: Final = {"produce": "/records", "alter": "/settings"}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of change: its form, and how to plan what is asked for.

    ``blamed`` is the field beside which errors are said that are about none in particular, and
    ``of`` stands between the title and what the change is about.
    """

    title: str
    verb: str
    fields: Sequence[FormField]
    blamed: str
    plan: Callable[[Store, str, plans.Typed], ChangePlan]
    of: str = " of "

    def fields_for(self, store: Store) -> list[FormField]:
        """Those that its form has for the store."""
        has_replicas = store.storage.kind() == "replicated"
        return [field for field in self.fields if has_replicas or not field.of_replicas]


KINDS: Final[Mapping[str, Kind]] = {
    "create": Kind(
        "Create topic",
        "Create it",
        (
            FormField("topic", "Name"),
            FormField("partitions", "Partitions", "1"),
            FormField("factor", "Replication factor", "that of the store", of_replicas=True),
            FormField(
                "columns",
                "Columns; empty: records have a key and a value",
                "carrier string not null, flight int default 0\n"
                "or the JSON of a schema of Avro, Spark or Arrow",
                rows=6,
            ),
            FormField("key", "Columns that are the key", "carrier, flight"),
            FormField("config", "Settings", "retention.ms=7 days\ncompression.type=zstd", rows=4),
        ),
        "topic",
        plans.plan_creation,
        of=" ",
    ),
    "delete": Kind(
        "Delete topic",
        "Delete it",
        (FormField("topic", "Type the topic\u2019s name"),),
        "topic",
        plans.plan_deletion,
        of=" ",
    ),
    "abort": Kind(
        "Abort the transaction",
        "Do it",
        (FormField("reason", "Reason", "kept with the id; its producer is told"),),
        "reason",
        plans.plan_abort,
    ),
    "produce": Kind(
        "Write a record",
        "Write it",
        (
            FormField("key", "Key"),
            FormField("partition", "Partition", "by its key"),
            FormField(
                "kind", "Value is", options=(("text", "as typed"), ("null", "null: a tombstone"))
            ),
            FormField("value", "Value", rows=8),
            FormField("headers", "Headers", "name=value, one a line", rows=3),
        ),
        "value",
        plans.plan_record,
        of=" to ",
    ),
    "alter": Kind(
        "Change settings",
        "Change them",
        (
            FormField("config", "Settings", "retention.ms=7 days\nsegment.bytes", rows=6),
            FormField("partitions", "Partitions", "as many as there are"),
        ),
        "config",
        plans.plan_settings,
    ),
    "trim": Kind(
        "Delete the oldest records",
        "Delete them",
        (
            FormField("partitions", "Partitions", "all of them, or 0,3,5-9"),
            FormField("below", "Before", "an offset, a time, 7d, or latest"),
        ),
        "below",
        plans.plan_trim,
    ),
    "reset": Kind(
        "Move offsets",
        "Move them",
        (
            FormField("topics", "Topics or partitions", "all that it reads, or orders:0"),
            FormField("to", "To", "earliest, latest, +10, a time, an offset"),
        ),
        "to",
        plans.plan_reset,
    ),
}


def show_form(kind: str) -> Callable[[Console, Request], Response]:
    """The page of an empty form."""

    def show(console: Console, request: Request) -> Response:
        typed = {field.name: "" for field in KINDS[kind].fields} | {"zone": ""}
        return _page(console, request, kind, Form(typed))

    return show


def answer_form(kind: str) -> Callable[[Console, Request, dict[str, str]], Response]:
    """Make the function that answers a form: with errors, with a plan, or by applying it.

    A plan is applied only if the form says that this very plan was seen, and only once. That is
    checked before it is planned again, since afterwards there may be nothing left to plan.
    """

    def answer(console: Console, request: Request, sent: dict[str, str]) -> Response:
        store, name, seen = console.store, _name_of(request), sent.get("seen", "")
        shown = moment_of(seen)
        if shown is None:
            form = _planned(store, kind, name, sent, str(store.logs.clock.now_ms()))
            return _page(console, request, kind, form, was_seen=bool(seen))
        known = json.dumps([kind, name, sorted(sent.items())])
        confirmed = hashlib.sha256(known.encode()).hexdigest()
        try:
            with console.confirmed.alone(confirmed) as was_done:
                refused = None if was_done else _refused(console, request, kind, sent, shown)
                if refused is not None:
                    return refused
                console.confirmed.add(confirmed)
        except StillUnderWay:
            form = _form_of(kind, sent, shown)
            form.errors[KINDS[kind].blamed] = (
                "it is still being done: look before you send it again"
            )
            return _page(console, request, kind, form)
        where = _done(kind, name or sent.get("topic", "").strip())
        return RedirectResponse(where, status_code=303)

    return answer


def _refused(
    console: Console, request: Request, kind: str, sent: Mapping[str, str], shown: str
) -> Response | None:
    """Do what a form confirms; a page if it was not this plan, or has failed."""
    store, name = console.store, _name_of(request)
    form = _planned(store, kind, name, sent, shown)
    if form.plan is None or not same_secret(sent["seen"], form.seal):
        form = _planned(store, kind, name, sent, str(store.logs.clock.now_ms()))
        return _page(console, request, kind, form, was_seen=True)
    try:
        console.log_change(request, form.plan.apply())
    except TxnlogError as error:
        what = f"{KINDS[kind].title}{KINDS[kind].of}{name or form.typed['topic'].strip()}"
        console.log_change(request, f"{what} failed: {error}")
        form.plan = None
        form.errors[KINDS[kind].blamed] = str(error)
        return _page(console, request, kind, form)
    return None


def _form_of(kind: str, sent: Mapping[str, str], now: str) -> Form:
    names = [*(field.name for field in KINDS[kind].fields), "zone"]
    return Form({name: sent.get(name, "") for name in names} | {"now": now})


def _planned(store: Store, kind: str, name: str, sent: Mapping[str, str], now: str) -> Form:
    """The form as it was sent, with what is wrong with it or what it would do; ``now`` in ms."""
    form = _form_of(kind, sent, now)
    _check(kind, form)
    if not form.errors:
        try:
            form.plan = KINDS[kind].plan(store, name, form.typed)
        except WrongField as error:
            form.errors[error.name] = str(error)
        except TxnlogError as error:
            form.errors[KINDS[kind].blamed] = str(error)
    return form


def _check(kind: str, form: Form) -> None:
    for field in KINDS[kind].fields:
        text, options = form.typed[field.name], [value for value, _ in field.options]
        if len(text) > MOST_CHARS:
            form.errors[field.name] = f"more than {MOST_CHARS} characters"
        elif options and text not in options:
            form.errors[field.name] = f"none of {', '.join(options)}"


def path_of(kind: str) -> str:
    """The address of a form, with what it is about."""
    if kind == "create":
        return "/create"
    if kind in _OF_IDS:
        return f"/{kind}/{{id:anything}}"
    return f"/topics/{{topic}}/{kind}"


def _name_of(request: Request) -> str:
    """The topic, group or id that a form is about, from its URL; empty where it is typed."""
    if "id" in request.path_params:
        return named_in(request, "id")
    topic: str = request.path_params.get("topic", "")
    return topic


def _back(kind: str, name: str) -> str:
    """The page from which a form is reached."""
    if kind == "create":
        return "/"
    if kind in _OF_IDS:
        return address_of(_OF_IDS[kind], name)
    return address_of("topics", name, _TABS.get(kind, ""))


def _done(kind: str, name: str) -> str:
    """The page that shows what was done."""
    if kind == "create":
        return address_of("topics", name)
    return "/" if kind == "delete" else _back(kind, name)


def _page(
    console: Console, request: Request, kind: str, form: Form, *, was_seen: bool = False
) -> Response:
    name = _name_of(request)
    content = {
        "title": f"{KINDS[kind].title}{KINDS[kind].of if name else ''}{name}",
        "kind": KINDS[kind],
        "fields": KINDS[kind].fields_for(console.store),
        "name": name,
        "form": form,
        "was_seen": was_seen,
        "back": _back(kind, name),
        "section": _back(kind, name),
    }
    return console.page(request, "change.html", content, status=400 if form.errors else 200)
