"""One kind of result for what goes over many things, of which some may be damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NoReturn, TypeVar

from txnlog.errors import IncompleteResult, TxnlogError

T_co = TypeVar("T_co", covariant=True)


class Found(Generic[T_co]):
    """Things of one type, read while they are taken.

        for topic in store.topics.describe_all():
            print(topic.topic)

    Iterating yields everything that can be read. If something could not be, it ends with
    :class:`~txnlog.errors.IncompleteResult`, which has all the errors: nothing is missing in
    silence. What reads a store reads it anew in each iteration.
    """

    def __init__(self, read: Callable[[], Iterable[T_co | TxnlogError]]) -> None:
        self._read = read

    @classmethod
    def done(cls, items: Iterable[T_co | TxnlogError]) -> Found[T_co]:
        """Take all items now, which does their work, and keep the results."""
        results = [*items]
        return cls(lambda: results)

    def __iter__(self) -> Iterator[T_co]:
        errors = []
        for item in self._read():
            if isinstance(item, TxnlogError):
                errors.append(item)
            else:
                yield item
        if errors:
            raise IncompleteResult(errors)

    def with_errors(self) -> Iterator[T_co | TxnlogError]:
        """Yield each thing, or in its place the error of reading it; raise none of these."""
        return iter(self._read())

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "this reads while it is iterated, in this process: send [*found], or the store, and "
            "ask there"
        )

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "this reads while it is iterated: take [*found] first, or next(iter(found))"
        )
