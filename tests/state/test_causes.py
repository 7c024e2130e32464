"""What rests on something hidden, in its pure form (invariant S3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from txnlog.names import TopicPartition
from txnlog.state.cut import CommittedUnit, Part, consistent_cut, hide_effects

A, B, C = (TopicPartition(topic, 0) for topic in "abc")
ENDS = {A: 9, B: 9, C: 9}


def shown(
    unit: str,
    offsets: Mapping[TopicPartition, int],
    *,
    new: Sequence[TopicPartition] | None = None,
    needs: Mapping[TopicPartition, int] | None = None,
    was_known: bool = False,
) -> CommittedUnit:
    new_ones = [(where, offsets[where]) for where in (offsets if new is None else new)]
    return CommittedUnit(unit, was_known, offsets, new_ones, needs or {})


def test_what_has_consumed_something_hidden_is_hidden_with_what_has_consumed_that() -> None:
    units = [
        shown("partial", {A: 3}),
        shown("effect", {B: 1}, needs={A: 4}),
        shown("its effect", {C: 1}, needs={B: 2}),
        shown("free", {C: 0}, needs={A: 3, B: 1}),
        shown("ahead", {B: 8}, new=[], needs={C: 10}),
    ]
    for ordered in (units, units[::-1]):
        hidden, is_closed = hide_effects(ordered, {"partial"}, ENDS)
        assert hidden == {"partial", "effect", "its effect", "ahead"}
        assert is_closed


def test_what_is_new_behind_something_hidden_is_hidden() -> None:
    """Its writer may have seen it acknowledged; the writer of what was there before has not."""
    units = [
        shown("partial", {A: 3}),
        shown("behind", {A: 4, B: 5}),
        shown("behind that", {B: 6}),
        shown("older", {A: 5, C: 1}, new=[C]),
        shown("before", {A: 2, B: 4}),
    ]
    hidden, is_closed = hide_effects(units, {"partial"}, ENDS)
    assert hidden == {"partial", "behind", "behind that"}
    assert is_closed


def test_what_was_known_before_stays_and_then_it_is_not_certain() -> None:
    """It rests on nothing that is partial; it might on what was hidden for being behind that."""
    partial, behind = shown("partial", {A: 3}), shown("behind", {A: 4, B: 5})
    known = shown("known", {A: 5}, was_known=True)
    assert hide_effects([partial, known], {"partial"}, ENDS) == ({"partial"}, True)
    for known in (
        shown("known", {B: 6}, was_known=True),
        shown("known", {C: 0}, needs={B: 6}, was_known=True),
    ):
        found = hide_effects([partial, behind, known], {"partial"}, ENDS)
        assert found == ({"partial", "behind"}, False)


def test_a_cut_hides_what_has_consumed_more_than_it_shows() -> None:
    """And what lies behind that, and what has consumed it in turn."""
    parts = [
        Part("effect", {B: 2}),
        Part("effect", {}, needs={A: 5}),
        Part("behind", {B: 3, C: 4}),
        Part("its effect", {C: 1}),
        Part("its effect", {}, needs={B: 3}),
        Part("free", {C: 0}),
        Part("free", {}, needs={A: 4, B: 2}),
    ]
    assert consistent_cut({A: 4, B: 9, C: 9}, parts) == {A: 4, B: 2, C: 1}
    assert consistent_cut({A: 5, B: 9, C: 9}, parts) == {A: 5, B: 9, C: 9}
    assert consistent_cut({B: 9, C: 9}, parts[:3]) == {B: 2, C: 4}
