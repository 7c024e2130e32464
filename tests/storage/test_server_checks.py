"""What a process knows of a server: which check it has passed, or that it was refused."""

from __future__ import annotations

import pytest

from txnlog.errors import PutIfAbsentBroken, StorageError
from txnlog.storage import fork_safe_lock
from txnlog.storage.fork_safe_lock import ForkSafeLock
from txnlog.storage.server_storage import check_once, mark_passed, was_probed


def never() -> None:
    raise AssertionError("it was checked once more")


def test_who_is_trusted_need_not_be_probed_yet() -> None:
    """A task that trusts its job's server may write there; a store is made after a probe alone."""
    server = object()
    mark_passed(server, probed=False)
    check_once(server, never)
    assert not was_probed(server)
    mark_passed(server, probed=True)
    mark_passed(server, probed=False)
    assert was_probed(server)
    assert not was_probed(object())


def test_a_check_that_passes_is_made_once() -> None:
    server, made = object(), []
    check_once(server, lambda: made.append(1))
    check_once(server, never)
    assert made == [1]
    assert not was_probed(server)


def test_a_refusal_stands_and_a_failure_does_not() -> None:
    server = object()

    def fail() -> None:
        raise StorageError("the connection was reset")

    def refuse() -> None:
        raise PutIfAbsentBroken("two writers won")

    with pytest.raises(StorageError, match="reset"):
        check_once(server, fail)
    with pytest.raises(PutIfAbsentBroken):
        check_once(server, refuse)
    with pytest.raises(PutIfAbsentBroken, match="two writers won"):
        check_once(server, never)


def test_writes_to_a_known_server_leave_nothing() -> None:
    """Each asks whether it is checked: a process that writes for months must not grow."""
    server = object()
    mark_passed(server, probed=True)
    before = {*fork_safe_lock._LOCKS}
    made: list[object] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("os.register_at_fork", lambda **calls: made.append(calls))
        patched.setattr(ForkSafeLock, "__init__", made.append)
        for _ in range(10):
            check_once(server, never)
            assert was_probed(server)
    assert made == []
    assert {*fork_safe_lock._LOCKS} == before
