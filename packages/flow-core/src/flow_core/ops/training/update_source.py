"""The formulas of updates as statements that C and C++ read alike.

The text calls ``sqrt_``, ``sign_``, ``square_`` and ``positive_`` of elements, and ``sqrt``,
``fabs``, ``ratio``, ``where``, ``is_zero`` and ``is_positive`` of numbers in double precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flow_core.ir.formulas import (
    ONE,
    Atom,
    Elements,
    Norm,
    Number,
    Scalar,
    Statement,
    arrays_read,
    phases,
)
from flow_core.ir.update_rules import Update, traced


@dataclass(slots=True)
class Phase:
    """A loop over the elements of a variable, and the numbers that the loop reads.

    Local variables have the name of an array followed by the number of assignments before.

    Attributes:
        kind: the type in which elements are computed.
        prefix: first letter of the names of coefficients.
        numbers: numbers in double precision, in the order in which they are computed.
        coefficients: names of numbers of type ``kind``, by their text.
        lines: the statements of the loop.
        reads: local variables that the loop reads, with the names of their arrays.
        stores: local variables that the loop stores, by the names of their arrays.
        norms: elements of whose squares the loop computes sums.
    """

    kind: str
    prefix: str
    numbers: dict[str, str] = field(default_factory=dict)
    coefficients: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    reads: dict[str, str] = field(default_factory=dict)
    stores: dict[str, str] = field(default_factory=dict)
    norms: list[str] = field(default_factory=list)

    def add(self, s: Statement) -> None:
        """Add a statement."""
        if isinstance(s.value, Number):
            self.numbers[s.name] = s.value.text
        elif isinstance(s.value, Norm):
            self.norms.append(self._sum(s.value.of.terms))
        else:
            local = f"{s.name}{s.version}"
            value = self._changed(s) if s.name == "model" else self._sum(s.value.terms)
            self.lines.append(f"const {self.kind} {local} = {value};")
            self.stores[s.name] = local

    def _changed(self, s: Statement) -> str:
        """Return a change added to the old value, as 1 less a small number would lose digits."""
        old = Atom(s.name, (), s.version - 1)
        terms = [(c - 1.0 if atom == old else c, atom) for c, atom in _terms(s.value)]
        return f"{self._atom(old)} + ({self._sum([term for term in terms if term[0] != 0])})"

    def _sum(self, terms: Sequence[tuple[Scalar, Atom]]) -> str:
        """Return a sum from the last term to the first."""
        (factor, atom), *rest = terms
        if atom == ONE:
            text = self._coefficient(factor)
        else:
            times = "" if factor == 1.0 else f"{self._coefficient(factor)} * "
            text = times + self._atom(atom)
        return f"{text} + ({self._sum(rest)})" if rest else text

    def _coefficient(self, value: Scalar) -> str:
        if not isinstance(value, Number):
            return f"({self.kind}){value!r}"
        return self.coefficients.setdefault(value.text, f"{self.prefix}{len(self.coefficients)}")

    def _atom(self, atom: Atom) -> str:
        args = [self._sum(x.terms) for x in atom.args]
        if atom.name == "divide":  # a coefficient multiplies the dividend, beside the divisor
            return f"({args[0]}) / ({args[1]})"
        if args:
            return f"{atom.name}_({', '.join(args)})"
        local = f"{atom.name}{atom.version}"
        if self.stores.get(atom.name) != local:
            self.reads[local] = atom.name
        return local


def _terms(value: Elements | Number | Norm) -> Sequence[tuple[Scalar, Atom]]:
    return value.terms if isinstance(value, Elements) else ()


def update_source(row: Update, kind: str, penalties: bool) -> tuple[Phase, ...]:
    """Return the phases of an update: a second one reads the norms that the first one computes.

    Arrays that are no inputs are computed again in the second phase.

    Args:
        kind: the type in which elements are computed.
        penalties: whether the gradient has the penalties l1 and l2.
    """
    known = {} if penalties else {"l1": 0.0, "l2": 0.0}
    first, second = phases(traced(row, known, stored=penalties))
    inputs = ("model", "model_diff", *row.states, *row.numbers)
    again: list[Statement] = []
    for s in reversed(first):
        if s.name not in inputs and s.name in arrays_read(*again, *second):
            again.insert(0, s)
    made = [Phase(kind, prefix) for prefix in "cd"[: 1 + bool(second)]]
    for phase, statements in zip(made, (first, (*again, *second)), strict=False):
        for s in statements:
            phase.add(s)
        phase.stores = {name: local for name, local in phase.stores.items() if name in inputs}
    return tuple(made)
