"""LARS and LAMB updates, which are scaled by norms, for variables that are split over devices.

LARS and LAMB scale the change of a variable by the norm of the whole variable and by the norm of
its gradient (LARS) or change (LAMB).  A single update op needs the whole variable on every device.
If the variable is split, this pass makes each device compute the sum of squares of its part; this
is a partial result, a single number, which boxing all-reduces.  Each device computes the rest of
the update for its own part.  All ops are written from the rule's formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import add
from types import MappingProxyType
from typing import Any, cast

from flow_core.base.dtypes import float64
from flow_core.ir.formulas import ONE, PYTHON, Atom, Elements, Norm, Number, Scalar
from flow_core.ir.graph import Graph, Op
from flow_core.ir.update_rules import (
    BY_TYPE,
    COMMON,
    DIFF,
    MODEL,
    RATE,
    TABLE,
    optional_inputs,
    traced,
)
from flow_core.ops.build import Maker, Sym
from flow_core.passes.base import PassContext
from flow_core.passes.rewriting.decomposition import Parts, Rule, cast_to, decompose, with_sbp
from flow_core.sharding.sbp import NdSbp, Split


@dataclass(frozen=True)
class SplitNorms:
    """A pass that decomposes the LARS and LAMB updates of split variables.

    Attributes:
        fixed: the SBP of each variable whose distribution an earlier job has fixed, by name.
    """

    fixed: Mapping[str, NdSbp] = field(default_factory=lambda: MappingProxyType({}))
    name: str = "split_norms"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph in which no update needs the whole of a split variable."""
        rules: dict[str, Rule] = {}
        for op in graph.ops.values():
            if decomposes(op) and (layout := self._split(graph, op)) is not None:
                rules[op.name] = partial(_apart, layout=layout)
        return decompose(graph, context, rules, required=True) if rules else graph

    def _split(self, graph: Graph, op: Op) -> NdSbp | None:
        """Return the SBP of an update's variable if the variable is split, else None."""
        variable = graph.ops[op.inputs[MODEL].op]
        asked = self.fixed.get(variable.name) or (variable.sbp[0] if variable.sbp else None)
        several = op.placement == variable.placement and op.placement.size > 1
        is_split = asked is not None and any(isinstance(s, Split) for s in asked)
        return asked if several and is_split else None


def decomposes(op: Op) -> bool:
    """Return whether this pass can decompose an update into ops on parts of the variable."""
    return op.type in _RULES


_RULES = {row.type for row in TABLE if not row.local}


def _where(test: Sym, yes: Any, no: Any) -> Sym:
    """Return one of two numbers: the first if ``test`` is not 0."""
    maker = test.maker
    test = maker.one("scalar_logical_not_equal", test, operand=0.0)
    if isinstance(no, float):
        return maker.one("where_scalar_y", test, yes, operand=no)
    if isinstance(yes, float):
        return maker.one("where_scalar_x", test, no, operand=yes)
    return maker.one("where", test, yes, no)


def _ratio(above: Sym, below: Sym) -> Sym:
    """Return the quotient of two numbers, 0 if the divisor is 0."""
    return _where(below, above / _where(below, below, 1.0), 0.0)


def _test(kind: str) -> Callable[[Sym], Sym]:
    def test(x: Sym) -> Sym:
        return cast_to(x.maker.one(f"scalar_logical_{kind}", x, operand=0.0), float64)

    return test


def _one(type_: str) -> Callable[..., Sym]:
    return lambda *xs: xs[0].maker.one(type_, *xs)


FUNCTIONS: Mapping[str, Any] = {
    **PYTHON, "ratio": _ratio, "where": _where, "fabs": _one("abs"), "sqrt": _one("sqrt"),
    "is_zero": _test("equal"), "is_positive": _test("greater"),
}  # fmt: skip
"""The functions that the texts of numbers call, of graph values."""
ELEMENT_OPS = {"divide": "broadcast_div", "positive": "relu"}
"""The ops of functions of elements that have another name."""


def _apart(maker: Maker, op: Op, *, layout: NdSbp) -> Parts:
    """Emit the statements of an update's formula; numbers are in float64, as in kernels."""
    row, inputs = BY_TYPE[op.type], [Sym(maker, v) for v in op.inputs]
    wide = inputs[MODEL].dtype.accumulate
    names = ("model", "model_diff", "rate", *row.inputs[RATE + 1 :])
    given = dict(zip(names, inputs, strict=False))
    given["model_diff"] = with_sbp(inputs[DIFF], layout)
    found = optional_inputs(row, tuple(x.type for x in inputs))
    scale, skip = (None if i is None else inputs[i] for i in found)

    def number_of(x: Sym) -> Sym:
        return cast_to(maker.one("reshape", x, shape=()), float64)

    single = {"rate", "train_step", *row.numbers}
    elements = {k: cast_to(x, wide) for k, x in given.items() if k not in single}
    numbers: dict[str, Any] = {k: number_of(x) for k, x in given.items() if k in single}
    if scale is not None:
        numbers["scale"] = number_of(scale) * float(op.attrs["scale"])
    known = {k: float(op.attrs[k]) for k in (*COMMON, *row.attrs) if k not in numbers}
    known["size"] = float(max(inputs[MODEL].type.size, 1))

    def number(x: Scalar) -> Sym | float:
        found: Sym | float = eval(x.text, dict(FUNCTIONS), numbers) if isinstance(x, Number) else x
        return found

    def term(factor: Sym | float, atom: Atom) -> Sym | float:
        """Return a product; the factor is rounded once."""
        factor = cast_to(factor, wide) if isinstance(factor, Sym) else factor
        if atom == ONE:
            return factor
        args = [total(arg) for arg in atom.args]
        type_ = ELEMENT_OPS.get(atom.name, atom.name)
        value = maker.one(type_, *args) if args else elements[atom.name]
        return value if factor == 1.0 else value * factor

    def total(x: Elements) -> Sym:
        terms = (term(number(factor), atom) for factor, atom in x.terms)
        return cast(Sym, reduce(add, terms))  # an array is not made of numbers alone

    for s in traced(row, known, stored=bool(known["l1"] or known["l2"])):
        if isinstance(s.value, Elements):
            elements[s.name] = total(s.value)
        elif isinstance(s.value, Norm):
            squares = maker.one("square_sum", total(s.value.of), wide=True)
            numbers[s.name] = maker.one("sqrt", squares)
        else:
            numbers[s.name] = number(s.value)
    for name in ("model", *row.states, *row.numbers):
        new = numbers[name] if name in single else elements[name]
        _assign(given[name], new, skip)
    return ()


def _assign(state: Sym, new: Sym, skip: Sym | None) -> None:
    """Overwrite a variable or state unless the update is skipped."""
    maker, new = state.maker, cast_to(new, state.dtype)
    new = new if new.shape == state.shape else maker.one("reshape", new, shape=state.shape)
    if skip is not None:
        condition = maker.one("reshape", skip, shape=(1,) * max(1, len(state.shape)))
        new = maker.one("where", condition, state, new)
    maker.all("assign", state, new)
