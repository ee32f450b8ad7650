"""Symbols with which an update rule is written once, and from which each backend writes its kernel.

A formula is a function that reads and assigns the attributes of its argument.  With an argument of
numpy arrays and Python numbers, it computes; with a `Trace`, it is recorded as a list of
statements.  A symbolic `Number` has one value per step and is computed in double precision.
Symbolic `Elements` have one value per element of a variable; they are linear combinations, so that
a backend rounds each coefficient once: (rate * scale) * g, never rate * (scale * g).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np


@dataclass(frozen=True, slots=True)
class Number:
    """A number as an expression that Python and C read alike."""

    text: str

    def __add__(self, other: Any) -> Any:
        if isinstance(other, Elements):
            return NotImplemented
        return self if other == 0 else Number(f"({self.text} + {_text(other)})")

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, Elements):
            return NotImplemented
        return self if other == 0 else Number(f"({self.text} - {_text(other)})")

    def __rsub__(self, other: float) -> Number:
        return Number(f"({_text(other)} - {self.text})")

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Elements):
            return NotImplemented
        if other in (0, 1):
            return self if other else 0.0
        return Number(f"({self.text} * {_text(other)})")

    __rmul__ = __mul__

    def __truediv__(self, other: Scalar) -> Number:
        return Number(f"({self.text} / {_text(other)})")

    def __rtruediv__(self, other: float) -> Number:
        return Number(f"({_text(other)} / {self.text})")

    def __neg__(self) -> Number:
        return Number(f"(-{self.text})")


Scalar: TypeAlias = Number | float


def _text(value: Scalar) -> str:
    return value.text if isinstance(value, Number) else repr(float(value))


@dataclass(frozen=True, slots=True)
class Atom:
    """An array, or a function of elements."""

    name: str  # name of the array or function; "one" is the constant 1
    args: tuple[Elements, ...] = ()  # the arguments of a function
    version: int = 0  # how often the array was assigned before it is read


ONE = Atom("one")


@dataclass(frozen=True, slots=True)
class Elements:
    """A linear combination: pairs of a coefficient and an atom, each atom once."""

    terms: tuple[tuple[Scalar, Atom], ...]

    def __add__(self, other: Elements | Scalar) -> Elements:
        known = {atom: factor for factor, atom in self.terms}
        added = other.terms if isinstance(other, Elements) else ((other, ONE),)
        for factor, atom in added:
            known[atom] = known[atom] + factor if atom in known else factor
        return Elements(tuple((factor, atom) for atom, factor in known.items()))

    __radd__ = __add__

    def __sub__(self, other: Elements | Scalar) -> Elements:
        return self + -other

    def __rsub__(self, other: Scalar) -> Elements:
        return -self + other

    def __neg__(self) -> Elements:
        return self * -1.0

    def __mul__(self, factor: Scalar) -> Elements:
        if isinstance(factor, Elements):
            return NotImplemented
        return Elements(tuple((own * factor, atom) for own, atom in self.terms))

    __rmul__ = __mul__

    def __truediv__(self, other: Elements) -> Elements:
        factor, above = (1.0, self) if len(self.terms) > 1 else _split(self)
        return Elements(((factor, Atom("divide", (above, other))),))


def _split(x: Elements) -> tuple[Scalar, Elements]:
    """Return the coefficient of the only term, and the term without it."""
    ((factor, atom),) = x.terms
    return factor, Elements(((1.0, atom),))


def _function(name: str, numeric: Callable[..., Any]) -> Callable[[Any], Any]:
    def apply(x: Any) -> Any:
        if isinstance(x, Elements):
            return Elements(((1.0, Atom(name, (x,))),))
        return Number(f"{name}({x.text})") if isinstance(x, Number) else numeric(x)

    return apply


sqrt = _function("sqrt", lambda x: math.sqrt(x) if type(x) is float else np.sqrt(x))
sign = _function("sign", np.sign)
square = _function("square", np.square)
positive = _function("positive", lambda x: np.maximum(x, 0.0))
is_zero = _function("is_zero", lambda x: float(x == 0))
is_positive = _function("is_positive", lambda x: float(x > 0))


def ratio(above: Scalar, below: Scalar) -> Scalar:
    """Return the quotient of two numbers, 0 if the divisor is 0."""
    if isinstance(above, Number) or isinstance(below, Number):
        return Number(f"ratio({_text(above)}, {_text(below)})")
    return above / below if below else 0.0


def where(test: Scalar, yes: Scalar, no: Scalar) -> Scalar:
    """Return one of two numbers: the first if ``test`` is not 0."""
    if yes == no:
        return yes
    if isinstance(test, Number):
        return Number(f"where({test.text}, {_text(yes)}, {_text(no)})")
    return yes if test else no


PYTHON: Mapping[str, Any] = {
    "__builtins__": {}, "fabs": abs, "inf": math.inf, "is_positive": is_positive,
    "is_zero": is_zero, "nan": math.nan, "ratio": ratio, "sqrt": math.sqrt, "where": where,
}  # fmt: skip
"""The functions that the texts of numbers call."""


@dataclass(frozen=True, slots=True)
class Norm:
    """The square root of the sum of squares over all elements of a variable."""

    of: Elements


@dataclass(frozen=True, slots=True)
class Statement:
    """An assignment to an array, to a number, or of a norm to a number."""

    name: str
    value: Elements | Number | Norm
    version: int = 0


class Trace:
    """The argument of a formula that is recorded."""

    statements: list[Statement]

    def __init__(self, arrays: Iterable[str], numbers: Mapping[str, Scalar]) -> None:
        values: dict[str, Any] = {**numbers}
        values |= {name: Elements(((1.0, Atom(name)),)) for name in arrays}
        vars(self).update(values, statements=[])

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the formula reads {name}, which is no input of its rule")

    def __setattr__(self, name: str, value: Elements | Scalar) -> None:
        if isinstance(value, float):
            vars(self)[name] = value
            return
        version = 1 + sum(s.name == name for s in self.statements)
        self.statements.append(Statement(name, value, version))
        array = isinstance(value, Elements)
        vars(self)[name] = Elements(((1.0, Atom(name, (), version)),)) if array else Number(name)

    def norm(self, x: Elements) -> Scalar:
        """Return the norm of elements, a number that is known when all elements are."""
        factor, x = _split(x) if len(x.terms) == 1 else (1.0, x)
        name = f"norm{sum(isinstance(s.value, Norm) for s in self.statements)}"
        self.statements.append(Statement(name, Norm(x)))
        size = Number(f"fabs({factor.text})") if isinstance(factor, Number) else abs(factor)
        norm: Scalar = Number(name) * size
        return norm


def phases(statements: Sequence[Statement]) -> tuple[Sequence[Statement], Sequence[Statement]]:
    """Split statements into those up to the last norm and those that may read the norms."""
    norms = [i for i, s in enumerate(statements) if isinstance(s.value, Norm)]
    end = norms[-1] + 1 if norms else len(statements)
    return statements[:end], statements[end:]


def arrays_read(*statements: Statement) -> set[str]:
    """Return the names of the arrays that statements read."""
    values = (s.value.of if isinstance(s.value, Norm) else s.value for s in statements)
    return {name for x in values if isinstance(x, Elements) for name in _read(x)}


def _read(x: Elements) -> Iterator[str]:
    for _, atom in x.terms:
        if not atom.args and atom != ONE:
            yield atom.name
        for arg in atom.args:
            yield from _read(arg)
