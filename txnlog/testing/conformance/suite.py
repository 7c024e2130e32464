"""All checks over the storage at a URL, each in its own folder, and their results."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from txnlog.storage import open_storage
from txnlog.storage.base import Storage
from txnlog.testing.conformance.forks import a_connection_survives_a_fork
from txnlog.testing.conformance.interface import CHECKS
from txnlog.testing.conformance.lost_responses import (
    LostResponses,
    create_over_cut_connections,
    describe_cuts,
    through_proxy,
)
from txnlog.testing.conformance.races import ROUNDS, race
from txnlog.testing.conformance.speed import measure_speed
from txnlog.testing.conformance.ways import ENDPOINT, Way

State = Literal["passed", "failed", "skipped"]


class _Skipped(Exception):
    """A check is impossible here; the text says why."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one check. ``figures`` are its measurements, in a class of its own."""

    check: str
    state: State
    detail: str
    took_s: float
    figures: object = None


@dataclass(frozen=True, slots=True)
class Suite:
    """The checks of one filesystem or server.

    Args:
        url: a folder below which the checks make theirs, as ``txnlog.open`` takes it.
        options: the storage options.
        proxy_url: a way on which connections are cut: ``http://host:port`` of a proxy in front of
            the server, or another URL of the same folder; "" for the suite's own proxy, if the
            server is named and its connections are not encrypted.
        rounds: of the race.

    Raises InvalidOption: by ``proxy_url`` the folder cannot be reached.
    """

    url: str
    options: Mapping[str, object] = field(default_factory=dict)
    proxy_url: str = ""
    rounds: int = ROUNDS

    def __post_init__(self) -> None:
        self._disturbed_way()

    def _disturbed_way(self) -> Way | None:
        """The given way."""
        return Way(self.url, self.options).by(self.proxy_url) if self.proxy_url else None

    def names(self) -> list[str]:
        """The names of the checks, in the order in which they run."""
        return list(self._calls())

    def run(self, chosen: Callable[[str], bool] = lambda _: True) -> Iterator[Result]:
        """Run the selected checks; yield their results."""
        for name, call in self._calls().items():
            if chosen(name):
                yield self._run(name, call)

    def _calls(self) -> dict[str, Callable[[Storage], object]]:
        calls: dict[str, Callable[[Storage], object]] = {c.__name__: c for c in CHECKS}
        return calls | {
            "a_connection_survives_a_fork": self._shared(a_connection_survives_a_fork),
            "processes_that_race_have_one_winner": self._shared(self._race),
            "creates_over_cut_connections_are_found_out": self._lose_responses,
            "speed": measure_speed,
        }

    def _run(self, name: str, call: Callable[[Storage], object]) -> Result:
        begun_s = time.perf_counter()
        folder = f"conformance-{secrets.token_hex(8)}"
        figures: object = None
        state: State = "passed"
        try:
            storage = self._open(folder)
            try:
                figures = call(storage)
                detail = str(figures) if figures is not None else ""
            finally:
                storage.delete([path for path, _ in storage.list_all("")])
        except _Skipped as why:
            state, detail = "skipped", str(why)
        # Any error of a third-party storage is a finding about it.
        except Exception as error:  # noqa: BLE001
            state, detail = "failed", f"{type(error).__name__}: {error}"
        return Result(name, state, detail, time.perf_counter() - begun_s, figures)

    def _open(self, folder: str, way: Way | None = None) -> Storage:
        given = way or Way(self.url, self.options)
        storage = open_storage(f"{given.url.rstrip('/')}/{folder}", given.options)
        # The shorter check before a first write is covered here in full.
        storage.trust()
        return storage

    def _shared(self, check: Callable[[Storage], object]) -> Callable[[Storage], object]:
        """A check that needs other processes."""

        def run(storage: Storage) -> object:
            if storage.url.startswith("memory:"):
                raise _Skipped("it is in this process alone")
            return check(storage)

        return run

    def _race(self, storage: Storage) -> object:
        figures = race(storage, self.rounds)
        figures.judge()
        return figures

    def _lose_responses(self, storage: Storage) -> object:
        folder = storage.url.rpartition("/")[2]
        given = self._disturbed_way()
        if given is not None:
            creates, unknown = create_over_cut_connections(storage, self._open(folder, given))
            return LostResponses(creates, unknown, "as the proxy that was given does")
        with through_proxy(Way(self.url, self.options)) as found:
            if found is None:
                raise _Skipped(
                    f"neither an option {ENDPOINT} nor the URL names a server whose connections "
                    "are not encrypted; give --proxy, a way to the same folder on which "
                    "connections are cut"
                )
            way, proxy = found
            creates, unknown = create_over_cut_connections(storage, self._open(folder, way))
            return LostResponses(creates, unknown, describe_cuts(proxy))


def verdict(results: list[Result]) -> tuple[bool, str]:
    """Whether the storage conforms, and a sentence that says so."""
    failed = [result for result in results if result.state == "failed"]
    skipped = sum(result.state == "skipped" for result in results)
    beside = f"; {skipped} could not be made" if skipped else ""
    if failed:
        return False, f"does NOT conform: {len(failed)} of {len(results)} checks failed{beside}"
    if len(results) == skipped:
        return False, "was not checked: no check was chosen that can be made"
    return True, f"conforms: {len(results) - skipped} checks passed{beside}"
