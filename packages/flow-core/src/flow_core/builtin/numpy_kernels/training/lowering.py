"""Statements of a formula as calls of numpy functions, for any tile of the arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from flow_core.ir.formulas import ONE, Atom, Elements, Scalar, Statement, arrays_read

Operand: TypeAlias = str | Scalar
"""The name of an array, or a coefficient."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a numpy function, whose result overwrites an array."""

    function: Callable[..., object]
    operands: tuple[Operand, ...]
    out: str


def temporary(level: int) -> str:
    """Return the name of an array for intermediate results."""
    return f"temporary{level}"


@dataclass(slots=True)
class Lowering:
    """The calls that compute the assignments to arrays, with few temporary arrays."""

    calls: list[Call] = field(default_factory=list)
    temporaries: int = 0  # number of temporary arrays

    def assign(self, name: str, value: Elements) -> None:
        """Add the calls of an assignment to an array, which may be one of its own terms."""
        others = Elements(tuple(term for term in value.terms if term[1].name != name))
        if len(others.terms) < len(value.terms) and name in arrays_read(Statement(name, others)):
            raise ValueError(f"{name} is overwritten before a function of {name} is computed")
        self._put(value, name, 0)

    def _put(self, x: Elements, out: str, level: int) -> None:
        """Compute elements in ``out``; ``level`` is the index of the first free temporary."""
        (factor, atom), *rest = sorted(x.terms, key=lambda term: term[1].name != out)
        total = self._term(factor, atom, out, level)
        for factor, atom in rest:
            minus = factor == -1.0 and atom != ONE
            factor = 1.0 if minus else factor
            own = total == out
            term: Operand = factor
            if atom != ONE:
                place = self._temporary(level) if own else out
                term = self._term(factor, atom, place, level + own)
            self._call(np.subtract if minus else np.add, total, term, out=out)
            total = out
        if total != out:
            self._call(np.positive, total, out=out)

    def _term(self, factor: Scalar, atom: Atom, out: str, level: int) -> str:
        """Return the array of a coefficient times an atom: one that has it already, or ``out``."""
        x = self._atom(atom, out, level) if atom.args else atom.name
        if factor == 1.0:
            return x
        self._call(np.multiply, x, factor, out=out)
        return out

    def _value(self, x: Elements, level: int, out: str = "") -> str:
        """Return the array of elements: one that has them already, ``out`` or a temporary."""
        (factor, atom), *rest = x.terms
        if factor == 1.0 and not atom.args and not rest:
            return atom.name
        if not out:
            out, level = self._temporary(level), level + 1
        self._put(x, out, level)
        return out

    def _atom(self, atom: Atom, out: str, level: int) -> str:
        x = self._value(atom.args[-1], level, out)
        if atom.name == "divide":
            self._call(np.divide, self._value(atom.args[0], level), x, out=out)
        elif atom.name == "square":
            self._call(np.multiply, x, x, out=out)
        elif atom.name == "positive":
            self._call(np.maximum, x, 0.0, out=out)
        else:
            self._call({"sign": np.sign, "sqrt": np.sqrt}[atom.name], x, out=out)
        return out

    def _temporary(self, level: int) -> str:
        self.temporaries = max(self.temporaries, level + 1)
        return temporary(level)

    def _call(self, function: Callable[..., object], *operands: Operand, out: str) -> None:
        self.calls.append(Call(function, operands, out))


def lower(statements: Sequence[Statement]) -> Lowering:
    """Return the calls of the assignments to arrays among statements."""
    lowering = Lowering()
    for s in statements:
        if isinstance(s.value, Elements):
            lowering.assign(s.name, s.value)
    return lowering
