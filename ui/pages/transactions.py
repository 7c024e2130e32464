"""Transactional ids, and the life of one: what each step has put into the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from txnlog import names
from txnlog.admin.transactions import why_hanging
from txnlog.errors import TxnlogError
from txnlog.inspect.descriptions import TransactionDescription
from txnlog.names import LogFile
from txnlog.state.transaction import EntryRef
from txnlog.ui.console import Console, named_in
from txnlog.ui.page import page_of

_PICTURE_WIDTH = 1000
_SHOWN_STATES = 200
_LANES = 5
"""Beneath each other are so many epochs; a later one has the place of an older one again."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of a transaction has put: the files, and what they mean."""

    what: str
    files: Sequence[str]


@dataclass(frozen=True, slots=True)
class StateMark:
    """A state of an id in the picture of its life."""

    x: float
    lane: int
    state: TransactionDescription


def list_transactions(console: Console, request: Request) -> Response:
    """Transactional ids with their newest states, those that are open first."""
    store = console.store
    wanted = request.query_params.get("find", "").strip()
    found = [*store.transactions.list().with_errors()]
    known = [item for item in found if not isinstance(item, TxnlogError)]
    shown = [item for item in known if wanted.lower() in item.transactional_id.lower()]
    shown.sort(key=lambda item: (item.ends_by_ms is None, -item.updated_at_ms))
    now_ms = store.logs.clock.now_ms()
    overdue = {item.transactional_id: why_hanging(item, now_ms) for item in shown}
    return console.page(
        request,
        "transactions.html",
        {
            "title": "Transactions",
            "paged": page_of(request, shown),
            "count": len(shown),
            "now_ms": now_ms,
            "hanging": {name: hung for name, hung in overdue.items() if hung is not None},
            "errors": [item for item in found if isinstance(item, TxnlogError)],
            "find": wanted,
        },
    )


def show_transaction(console: Console, request: Request) -> Response:
    """The states of one id, as far back as its log reaches, and the files of the newest one."""
    transactional_id = named_in(request, "transactional_id")
    history = console.store.transactions.history(transactional_id, newest=_SHOWN_STATES)
    found = [*history.with_errors()]
    states = [item for item in found if not isinstance(item, TxnlogError)]
    marks = draw_marks(states)
    return console.page(
        request,
        "transaction.html",
        {
            "title": transactional_id,
            "transactional_id": transactional_id,
            "states": states[::-1],
            "newest": states[-1] if states else None,
            "marks": marks,
            "lanes": name_lanes(marks),
            "width": _PICTURE_WIDTH,
            "height": 22 + 18 * min(len({mark.lane for mark in marks}), _LANES) + 18,
            "steps": [*walk(states)],
            "errors": [item for item in found if isinstance(item, TxnlogError)],
        },
    )


def draw_marks(states: Sequence[TransactionDescription]) -> list[StateMark]:
    """States along their order: times may be equal, or run backwards on another host."""
    if not states:
        return []
    epochs = sorted({(state.producer_id, state.producer_epoch) for state in states})
    step = _PICTURE_WIDTH / len(states)
    return [
        StateMark(
            (position + 0.5) * step,
            epochs.index((state.producer_id, state.producer_epoch)) % _LANES,
            state,
        )
        for position, state in enumerate(states)
    ]


def name_lanes(marks: Sequence[StateMark]) -> list[tuple[int, str]]:
    """Each line of the picture with the epochs that are on it, oldest first."""
    found: dict[int, list[str]] = {}
    for mark in marks:
        epochs = found.setdefault(mark.lane, [])
        if (epoch := str(mark.state.producer_epoch)) not in epochs[-1:]:
            epochs.append(epoch)
    return [(lane, ", ".join(epochs)) for lane, epochs in sorted(found.items())]


def walk(states: Sequence[TransactionDescription]) -> Iterator[Step]:
    """The files of the newest transaction, in the order in which its steps put them."""
    if not states:
        return
    number = states[-1].number
    mine = [state for state in states if state.number == number]
    folder = names.transaction_log(mine[-1].transactional_id)
    open_already = False
    for state in mine:
        outcome = LogFile.COMMIT if "Commit" in state.status else LogFile.ABORT
        own = f"{folder}/{names.log_file(state.log_entry, LogFile.ENTRY)}"
        match state.status:
            case "Ongoing":
                logs = ", ".join((*state.topics, *state.groups))
                what = "Announced: it may write more" if open_already else "Begun: it may write"
                yield Step(f"{what}, to {logs}." if logs else f"{what}.", [own])
                open_already = True
            case "PrepareCommit" | "PrepareAbort":
                placed = [_entry_file(entry, LogFile.ENTRY) for entry in state.entries]
                if placed:
                    yield Step("Placed: what the transaction writes, undecided so far.", placed)
                decided = "commit" if outcome is LogFile.COMMIT else "abort"
                yield Step(f"Decided to {decided}: this one file settles all of it.", [own])
                markers = [_entry_file(entry, outcome) for entry in state.entries]
                if markers:
                    yield Step("Marked: readers need not ask any more.", markers)
            case "CompleteCommit" | "CompleteAbort":
                yield Step("Complete: the id can begin its next transaction.", [own])
            case _:
                yield Step(f"{state.status}.", [own])


def _entry_file(entry: EntryRef, kind: LogFile) -> str:
    is_topic = entry.log == "topic"
    folder = names.topic_log(entry.name) if is_topic else names.group_log(entry.name)
    return f"{folder}/{names.log_file(entry.number, kind)}"
