"""Names that need no second look: as long as no unclean election ends what was known of them."""

from __future__ import annotations

import pytest

from txnlog.replication.roots import puts
from txnlog.replication.roots.epochs import Proposer, elected_unclean, first_epoch, without
from txnlog.replication.roots.puts import Everywhere

WHO = Proposer("test", 0, "")
FIRST = first_epoch({"a": "heap://a", "b": "heap://b"}, {}, WHO)
SECOND = without(FIRST, "b-0", WHO)
UNCLEAN = elected_unclean(SECOND, "b-0", WHO)


def known(found: Everywhere, paths: str) -> str:
    return "".join(path for path in paths if found.has(path))


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puts, "_MOST_NAMES", 3)
    found = Everywhere()
    for path in "abc":
        found.add(FIRST, path)
    found.drop("b")
    found.add(FIRST, "de")
    assert known(found, "abcde") == "cde"


def test_an_unclean_election_ends_what_was_known() -> None:
    """Also what is only told afterwards: it was seen before."""
    found = Everywhere()
    found.add(FIRST, "a")
    found.follow(SECOND)
    assert known(found, "a") == "a"
    found.follow(UNCLEAN)
    found.add(SECOND, "b")
    found.add(UNCLEAN, "c")
    assert known(found, "abc") == "c"
