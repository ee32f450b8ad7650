"""Tuples of which one object exists for each content, as keys that are cheap to compare."""

from __future__ import annotations

from typing import TypeVar

T_co = TypeVar("T_co", covariant=True)


class Interned(tuple[T_co, ...]):
    """A tuple that is compared by identity; whoever creates tuples keeps one for each content.

    >>> a, b = Interned([1, 2]), Interned([1, 2])
    >>> a == a, a == b, list(a)
    (True, False, [1, 2])
    """

    __slots__ = ()
    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__
