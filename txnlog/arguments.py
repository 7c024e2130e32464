"""Arguments of a wrong type: an error of our own in the place of Python's.

Nothing is checked where a call succeeds: only what Python complains of is compared with the
annotations.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import sys
import types
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from txnlog.config import is_whole_number
from txnlog.errors import InvalidOption

_Class = TypeVar("_Class", bound=type)
_P = ParamSpec("_P")
_R = TypeVar("_R")
_COMPLAINTS: Final = (TypeError, AttributeError, ValueError, OverflowError, LookupError)


def names_wrong_arguments(*without: str) -> Callable[[_Class], _Class]:
    """Make the public methods of a class raise InvalidOption for arguments of a wrong type.

    It is raised where the method, or the generator that it returns, would raise an error of
    Python's, and an argument is not what its annotation says. Other errors are left as they are.

    Args:
        without: methods that are called too often to be wrapped.
    """

    def wrap(cls: _Class) -> _Class:
        for name, method in [*vars(cls).items()]:
            if not name.startswith("_") and name not in without and inspect.isfunction(method):
                setattr(cls, name, naming_wrong_arguments(method))
        return cls

    return wrap


def naming_wrong_arguments(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a function raise InvalidOption as :func:`names_wrong_arguments` says."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            result = function(*args, **kwargs)
        except _COMPLAINTS as error:
            _raise_if_wrong(function, args, kwargs, error)
            raise
        if isinstance(result, types.GeneratorType):
            return _each(result, function, args, kwargs)  # type: ignore[return-value]
        return result

    return call


def _each(
    found: Generator[Any, None, None],
    method: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Generator[Any, None, None]:
    try:
        yield from found
    except _COMPLAINTS as error:
        _raise_if_wrong(method, args, kwargs, error)
        raise


def _raise_if_wrong(
    method: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    error: Exception,
) -> None:
    signature = inspect.signature(method)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return  # what is missing, or unknown, Python says well
    names = _Names(sys.modules[method.__module__].__dict__)
    for name, given in bound.arguments.items():
        parameter = signature.parameters[name]
        expected = names.type_of(parameter.annotation)
        values = given if parameter.kind is parameter.VAR_POSITIONAL else (given,)
        for value in values:
            if not _fits(value, expected):
                raise InvalidOption(
                    f"{method.__qualname__}(): argument {name} must be {parameter.annotation}, "
                    f"not {_kind(value)}"
                ) from error


class _Names(dict[str, Any]):
    """The names that annotations use; one that only type checkers import stands for Any."""

    def __missing__(self, name: str) -> Any:  # noqa: ANN401 - a type, or what stands for all
        return getattr(builtins, name, Any)

    def type_of(self, annotation: object) -> object:
        """The type that an annotation names; Any if it cannot be told."""
        if not isinstance(annotation, str):  # ``self`` has none
            return Any
        of_it = types.SimpleNamespace(__annotations__={"it": annotation})
        try:
            return get_type_hints(of_it, {}, self)["it"]
        except (TypeError, AttributeError):  # what stands for all has no parts and no parameters
            return Any


def _kind(value: object) -> str:
    """The type of a value, with the types inside it. The value itself may be a secret.

    Only None, numbers and bools are shown as they are.
    """
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    name = _type_name(value)
    if isinstance(value, Mapping):
        return f"{name}[{_kinds(value.keys())}, {_kinds(value.values())}]"
    if isinstance(value, (list, tuple, set, frozenset)) and not hasattr(value, "_fields"):
        return f"{name}[{_kinds(value)}]"
    return name


def _kinds(values: Iterable[object]) -> str:
    return " | ".join(dict.fromkeys(map(_type_name, values)))


def _type_name(value: object) -> str:
    """The name of its type; of a NamedTuple with those of its fields."""
    name = type(value).__name__
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return f"{name}({', '.join(type(field).__name__ for field in value)})"
    return name


def _fits(value: object, expected: Any) -> bool:  # noqa: ANN401 - a type in any form
    """Whether a value may be of a type; true if it cannot be told."""
    origin, inner = get_origin(expected), get_args(expected)
    if expected is Any:
        return True
    if expected is None:
        return value is None
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if origin is Annotated:
        return _fits(value, inner[0])
    kind = origin if isinstance(origin, type) else expected
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    if kind in (int, float):
        return is_whole_number(value) or (kind is float and isinstance(value, float))
    if not isinstance(value, kind) or (isinstance(value, (str, bytes)) and inner):
        return False  # a text is no list of its letters
    if isinstance(value, tuple) and hasattr(kind, "_fields"):  # a NamedTuple
        return all(map(_fits, value, get_type_hints(kind).values()))
    return _holds(value, inner)


def _holds(value: object, inner: tuple[Any, ...]) -> bool:
    if isinstance(value, Mapping) and len(inner) == 2:
        return all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in value.items())
    if isinstance(value, Iterable) and not isinstance(value, Iterator) and len(inner) == 1:
        return all(_fits(one, inner[0]) for one in value)
    return True
