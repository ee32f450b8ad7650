"""Whether a value fits an annotation, and the annotation as text for an error."""

from __future__ import annotations

import inspect
import operator
import types
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from numbers import Real
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import numpy as np

from flow_core.frontend.trace.blob import BlobDef

_UNIONS = (Union, types.UnionType)
_ANY = (Any, object, inspect.Parameter.empty)


def evaluated(annotation: Any, function: Callable[..., Any]) -> Any:
    """Return an annotation that is text as an object; ``Any`` if its names are not loaded."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, inspect.unwrap(function).__globals__)
    except (NameError, AttributeError, TypeError):  # a name for type checkers only
        return Any


def accepts(kind: Any, value: object) -> bool:
    """Return whether a value fits an annotation; kinds that cannot be tested accept all values."""
    if kind in _ANY or isinstance(kind, TypeVar | ParamSpec):
        return True
    if kind is None:
        return value is None
    origin, inner = get_origin(kind), get_args(kind)
    if origin in _UNIONS:
        return any(accepts(each, value) for each in inner)
    if origin is Literal:
        return value in inner
    if origin is Annotated:
        return accepts(inner[0], value)
    if origin is type:
        return isinstance(value, type)
    if origin is not None:
        return _fits_container(origin, inner, value)
    return _fits_class(kind, value)


def _fits_container(origin: Any, inner: tuple[Any, ...], value: object) -> bool:
    if issubclass(origin, Mapping) or not issubclass(origin, Iterable):
        return isinstance(value, origin)
    if not isinstance(value, origin | Sequence | Set | np.ndarray):
        return False
    if isinstance(value, str) and str not in inner:
        return False
    elements = [each for each in inner if each is not ...]
    if len(elements) > 1:
        return len(value) == len(elements) and all(map(accepts, elements, value))
    return not elements or all(accepts(elements[0], each) for each in value)


def _fits_class(kind: Any, value: object) -> bool:
    if kind is int:
        return _is_whole(value)
    if kind is float:
        return isinstance(value, Real | np.bool_)
    if kind is bool:
        return isinstance(value, int | np.bool_)
    try:
        return isinstance(value, kind)
    except TypeError:  # such as a protocol
        return True


def _is_whole(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


_NAMES: dict[Any, str] = {
    BlobDef: "a blob",
    None: "None",
    types.NoneType: "None",
    int: "an integer",
    float: "a number",
    bool: "True or False",
    str: "a text",
}


def as_text(kind: Any) -> str:
    """Return an annotation as text.

    >>> as_text(int | Sequence[int]), as_text(Literal["a", "b"])
    ('an integer or Sequence[int]', "'a' or 'b'")
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin in _UNIONS:
        return " or ".join(map(as_text, inner))
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if kind in _NAMES:
        return _NAMES[kind]
    if origin is None:
        return getattr(kind, "__name__", str(kind))
    return f"{origin.__name__}[{', '.join(map(_short, inner))}]" if inner else origin.__name__


def _short(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else as_text(kind)
