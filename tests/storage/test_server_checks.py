"""What a process knows of a server: which check it has passed, or that it was refused."""

from __future__ import annotations

import pytest

from txnlog.errors import PutIfAbsentBroken, StorageError
from txnlog.storage.server_checks import check_once, mark_passed, was_probed


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
