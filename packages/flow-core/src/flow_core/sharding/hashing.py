"""Hashes that are computed once, for immutable records that are keys of caches."""

from __future__ import annotations

from dataclasses import Field, fields
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar


class HashedOnce:
    """A base of frozen dataclasses; the hash is computed on first use.

    The hash is neither a field nor pickled, because hashes of strings differ between processes.  A
    subclass has the line ``__hash__ = HashedOnce.__hash__``, in place of which `dataclasses` would
    write a function that hashes all fields each time.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, slots=True)
    ... class Pair(HashedOnce):
    ...     a: int
    ...     b: int
    ...     __hash__ = HashedOnce.__hash__
    >>> hash(Pair(1, 2)) == hash(Pair(1, 2))
    True
    """

    __slots__ = ("_hash",)
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    _hash: int

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            kind: Any = type(self)
            object.__setattr__(self, "_hash", hash(_compared(kind)(self)))
            return self._hash


@cache
def _compared(kind: type[Any]) -> attrgetter[Any]:
    """Return the function that returns the fields which make two records equal."""
    return attrgetter(*(f.name for f in fields(kind) if f.compare))
