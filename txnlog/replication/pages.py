"""The page of ``txnlog ui`` about the roots of a replicated store."""

from __future__ import annotations

import os
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from txnlog.errors import InvalidOption
from txnlog.replication.roots.description import ReplicasDescription, describe
from txnlog.replication.roots.epochs import Member, Root
from txnlog.replication.roots.members import MemberOpener
from txnlog.replication.roots.replicated_storage import ReplicatedStorage, find_replicated
from txnlog.replication.sound_copies import SoundCopies
from txnlog.storage.base import Storage
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store
from txnlog.ui.console import Console
from txnlog.ui.jobs import Job


class _CountedOpener(MemberOpener):
    """Opens members whose requests are counted, each by its kind."""

    def __init__(self, opener: MemberOpener, counting: CountingStorage) -> None:
        super().__init__(opener.options)
        self._opener = opener
        self._counting = counting

    def root(self, url: str | os.PathLike[str]) -> Storage:
        return self._counting.beside(self._opener.root(url))

    def controller(self, url: str | os.PathLike[str]) -> Storage:
        return self._counting.beside(self._opener.controller(url))

    def at(self, root: Root, member: Member, store: str) -> Storage:
        return self._counting.beside(self._opener.at(root, member, store))


def counted(storage: ReplicatedStorage, counting: CountingStorage) -> ReplicatedStorage:
    """Wrap a replicated storage so that requests to the controller and to each root are counted.

    For reading only: through the counting wrapper the roots' local paths are unknown.
    """
    opener = storage.open_member
    controller = counting.beside(storage.agreement.controller.storage)
    clock = storage.agreement.clock
    if isinstance(opener, MemberOpener):
        found = ReplicatedStorage(controller, _CountedOpener(opener, counting), clock=clock)
    else:
        found = ReplicatedStorage(controller, lambda *of: counting.beside(opener(*of)), clock=clock)
    found.agreement.begin_as(storage.agreement)
    return found


def show_replicas(console: Console, request: Request) -> Response:
    """The roots of a replicated store; with ``lag`` in the URL what those that are out lack."""
    compared = console.ask_job(request, "lag", _compare_roots)
    found = next((told for _, told in compared.shown), None) if compared else None
    return console.page(
        request,
        "replicas.html",
        {
            "title": "Roots",
            "found": found or _describe_roots(console.store, console.requests, with_lag=False),
            "compared": compared,
            "now_ms": console.store.logs.clock.now_ms(),
        },
    )


def _compare_roots(store: Store, job: Job) -> None:
    assert isinstance(store.storage, CountingStorage)
    job.reach("listing roots whole")
    job.keep("roots", _describe_roots(store, store.storage, with_lag=True))


def _describe_roots(
    store: Store, counting: CountingStorage, *, with_lag: bool
) -> ReplicasDescription:
    """Describe the roots; requests to each of them are counted.

    Raises InvalidOption: the store has no replicas.
    """
    replicated = find_replicated(store.storage)
    if replicated is None:
        raise InvalidOption(f"{store.url} has no replicas: it is a store on one root")
    judge = SoundCopies(store.logs)
    roots = counted(replicated, counting)
    return describe(roots, with_lag=with_lag, named=judge.needed, unnamed=judge.unnamed)


PAGES: Final = {"/store/replicas": show_replicas}
