"""Changes that are made from pages: forms that say first what they would do, and a log of them."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from txnlog.ui.render import show_time, write_out

MOST_REMEMBERED: Final = 200
MOST_CHARS: Final = 32_000
"""Of a field."""
_PATIENCE_S: Final = 30.0
"""So long a form waits for the same one, which was sent before."""

_logger = logging.getLogger(__name__)


class WrongField(Exception):
    """A field of a form is wrong: its name, and what to say beside it."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(what)
        self.name = name


@dataclass(frozen=True, slots=True)
class FormField:
    """A field of a form. ``rows``: how high it is; ``options``: what it can be, with its words.

    With ``of_replicas`` it is only there for a store on several roots.
    """

    name: str
    label: str
    hint: str = ""
    rows: int = 1
    options: Sequence[tuple[str, str]] = ()
    of_replicas: bool = False


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """What a change would do, in sentences, and how it is done.

    ``basis`` is the state that it was made for: if another plan has another basis, it is not the
    one that the user has seen. ``apply`` does it, and returns a line for the log.
    """

    says: Sequence[str]
    basis: object
    apply: Callable[[], str]

    def seal(self, typed: Mapping[str, str]) -> str:
        """A hash of the plan's basis and of what was typed; a form sends it back to confirm it."""
        known = json.dumps([self.basis, sorted(typed.items())], default=str)
        return hashlib.sha256(known.encode(errors="surrogatepass")).hexdigest()


@dataclass(slots=True)
class Form:
    """A form as it was typed, what is wrong with it, and what it would do.

    ``typed`` also has ``now``, in ms: times such as 7d are those before it.
    """

    typed: Mapping[str, str]
    errors: dict[str, str] = field(default_factory=dict)
    plan: ChangePlan | None = None

    @property
    def seal(self) -> str:
        """The plan's seal after the form's ``now``; empty without a plan."""
        return "" if self.plan is None else f"{self.typed['now']}_{self.plan.seal(self.typed)}"


def moment_of(seal: str) -> str | None:
    """The ``now`` in a form's seal; None if the seal is not valid."""
    found = re.fullmatch(r"([0-9]{1,13})_[0-9a-f]{64}", seal)
    return found[1] if found else None


class StillUnderWay(Exception):
    """What was confirmed is being done, and has taken long already."""


class Confirmed:
    """The newest forms by which a plan was confirmed, by any name that no other one has.

    What is sent again, as by a second click, was done.
    """

    def __init__(self) -> None:
        self._done: OrderedDict[str, None] = OrderedDict()
        self._under_way: set[str] = set()
        self._ended = threading.Condition()

    @contextmanager
    def alone(self, form: str) -> Generator[bool]:
        """Whether a form was applied already. Another request with it waits until the block ends.

        Raises StillUnderWay: that takes too long.
        """
        with self._ended:
            if not self._ended.wait_for(lambda: form not in self._under_way, _PATIENCE_S):
                raise StillUnderWay
            self._under_way.add(form)
            was_done = form in self._done
        try:
            yield was_done
        finally:
            with self._ended:
                self._under_way.discard(form)
                self._ended.notify_all()

    def add(self, form: str) -> None:
        """Note that a form was applied."""
        with self._ended:
            self._done[form] = None
            if len(self._done) > MOST_REMEMBERED:
                self._done.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Made:
    """A change that was made, or failed."""

    at_ms: int
    client: str
    what: str


class ChangeLog:
    """The newest changes of a console; each is also a line for ``tell``, and for logging."""

    def __init__(self, tell: Callable[[str], object] | None = None) -> None:
        self._tell = tell
        self._made: deque[Made] = deque(maxlen=MOST_REMEMBERED)
        self._lock = threading.Lock()

    def add(self, at_ms: int, client: str, what: str) -> None:
        """One more."""
        seen = str(write_out(" ".join(what.split())))
        with self._lock:
            self._made.append(Made(at_ms, client, seen))
        line = f"{show_time(at_ms)} {client}: {seen}"
        _logger.info("%s", line)
        if self._tell is not None:
            self._tell(line)

    def newest(self) -> list[Made]:
        """Newest first."""
        with self._lock:
            return [*self._made][::-1]
