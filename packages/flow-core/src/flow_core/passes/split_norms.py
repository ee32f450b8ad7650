"""LARS and LAMB updates, which are scaled by norms, for variables that are split over devices.

LARS and LAMB scale the change of a variable by the norm of the whole variable and by the norm of
its gradient (LARS) or change (LAMB).  A single update op needs the whole variable on every device.
If the variable is split, this pass makes each device compute the sum of squares of its part; this
is a partial result, a single number, which boxing all-reduces.  Each device computes the rest of
the update for its own part, as in other updates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod, sqrt
from types import MappingProxyType

from flow_core.base.dtypes import DType, float64, int64
from flow_core.ir.graph import Graph, Op
from flow_core.ir.update_rules import BY_TYPE, DIFF, MODEL, RATE, optional_inputs
from flow_core.ops.build import Maker, Sym
from flow_core.passes.base import PassContext
from flow_core.passes.rewrite import Parts, Rule, cast_to, decompose, with_sbp
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
            if op.type in _RULES and (layout := self._split(graph, op)) is not None:
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


@dataclass(frozen=True, slots=True)
class _Update:
    """One update during its decomposition.

    Attributes:
        op: the update.
        layout: SBP of the variable and its states.
        inputs: the inputs of the update.
    """

    op: Op
    layout: NdSbp
    inputs: tuple[Sym, ...]

    @property
    def wide(self) -> DType:
        return self.inputs[MODEL].dtype.accumulate

    @property
    def model(self) -> Sym:
        return cast_to(self.inputs[MODEL], self.wide)

    def state(self, index: int) -> Sym:
        """Return the state at an index; states with a single element come last."""
        return self.inputs[BY_TYPE[self.op.type].first_state + index]

    def diff(self) -> Sym:
        """Return the gradient with scales and penalties applied, split like the variable."""
        attrs, (scale, _) = self.op.attrs, self._optional()
        diff = cast_to(with_sbp(self.inputs[DIFF], self.layout), self.wide)
        if attrs["scale"] != 1.0:
            diff = diff * attrs["scale"]
        if scale is not None:
            diff = diff * _number(scale, self.wide)
        return self.penalized(diff, attrs["l1"], attrs["l2"])

    def penalized(self, diff: Sym, l1: float, l2: float) -> Sym:
        """Return diff + l1 * sign(model) + l2 * model."""
        if not l1 and not l2:
            return diff
        maker = diff.maker
        return maker.one("l1_l2_regularize_gradient", self.model, diff, l1=l1, l2=l2)

    def decayed(self, change: Sym) -> Sym:
        """Return a change plus the weight decay term."""
        return self.penalized(change, 0.0, self.op.attrs["weight_decay"])

    def emit(self, type_: str, change: Sym, factor: Sym, *states: Sym, **attrs: float) -> None:
        """Emit an update op of another type for a change, scaled by a factor."""
        skip = self.skip()
        given = (self.inputs[MODEL], change, self.inputs[RATE], *states, cast_to(factor, self.wide))
        change.maker.all(type_, *given, *(() if skip is None else (skip,)), **attrs)

    def put(self, state: Sym, new: Sym) -> None:
        """Overwrite a state unless the update is skipped."""
        maker, skip, new = new.maker, self.skip(), cast_to(new, state.dtype)
        if skip is not None:
            condition = maker.one("reshape", skip, shape=(1,) * max(1, len(state.shape)))
            new = maker.one("where", condition, state, new)
        maker.all("assign", state, new)

    def skip(self) -> Sym | None:
        return self._optional()[1]

    def _optional(self) -> tuple[Sym | None, Sym | None]:
        row = BY_TYPE[self.op.type]
        found = optional_inputs(row, tuple(x.type for x in self.inputs))
        scale, skip = (None if i is None else self.inputs[i] for i in found)
        return scale, skip


def _apart(maker: Maker, op: Op, *, layout: NdSbp) -> Parts:
    _RULES[op.type](_Update(op, layout, tuple(Sym(maker, v) for v in op.inputs)))
    return ()


def _lars(u: _Update) -> None:
    """Emit a momentum update with a factor from the norms of the variable and the gradient."""
    attrs, diff = u.op.attrs, u.diff()
    model_norm, diff_norm = _root_mean_square(u.model), _root_mean_square(diff)
    below = diff_norm + attrs["epsilon"]
    if attrs["weight_decay"]:
        step, decay = _number(u.inputs[RATE + 1], int64), model_norm * attrs["weight_decay"]
        below = below + diff.maker.one("where_scalar_y", step, decay, operand=0.0)
    factor = _ratio(model_norm, below, below, otherwise=0.0) * attrs["lars_coefficient"]
    if attrs["zero_ratio"]:
        both = diff.maker.one("scalar_logical_not_equal", model_norm * diff_norm, operand=0.0)
        factor = diff.maker.one("where_scalar_y", both, factor, operand=attrs["zero_ratio"])
    beta = attrs["momentum_beta"]
    u.emit("momentum_update", u.decayed(diff), factor, u.state(0), beta=beta)


def _lamb(u: _Update) -> None:
    """Emit an update by Adam's change, scaled by the norms of the variable and the change."""
    attrs, diff = u.op.attrs, u.diff()
    maker, betas = diff.maker, (attrs["beta1"], attrs["beta2"])
    shares = (diff, maker.one("square", diff))
    moments = [
        cast_to(u.state(i), u.wide) * beta + share * (1 - beta)
        for i, (beta, share) in enumerate(zip(betas, shares, strict=True))
    ]
    powers = [_power(u.state(2 + i), beta) for i, beta in enumerate(betas)]
    m, v = (
        moment * cast_to(1 / (1 - power), u.wide)
        for moment, power in zip(moments, powers, strict=True)
    )
    change = m / maker.one("sqrt", v + attrs["epsilon"])
    above, below = _norm(u.model), _norm(change)
    factor = _ratio(above, below, above * below, otherwise=1.0)
    u.emit("sgd_update", u.decayed(change), factor)
    for i, new in enumerate((*moments, *powers)):
        state = u.state(i)
        u.put(state, new if i < len(moments) else maker.one("reshape", new, shape=state.shape))


def _power(state: Sym, beta: float) -> Sym:
    """Return the next power of a beta in float64, rounded to the type of its state.

    The result is in float64 because ``1 - power`` would lose digits in a smaller type.
    """
    return cast_to(cast_to(_number(state, float64) * beta, state.dtype), float64)


def _number(x: Sym, dtype: DType) -> Sym:
    """Return a one-element value as a scalar of an element type."""
    return cast_to(x.maker.one("reshape", x, shape=()), dtype)


def _norm(x: Sym) -> Sym:
    """Return the square root of the sum of squares over all devices."""
    return x.maker.one("sqrt", x.maker.one("square_sum", x, wide=True))


def _root_mean_square(x: Sym) -> Sym:
    return _norm(x) * (1 / sqrt(max(prod(x.shape), 1)))


def _ratio(above: Sym, below: Sym, positive: Sym, otherwise: float) -> Sym:
    """Return ``above / below`` where ``positive`` is above 0, else ``otherwise``."""
    maker = above.maker
    defined = maker.one("scalar_logical_greater", positive, operand=0.0)
    below = maker.one("where_scalar_y", defined, below, operand=1.0)
    return maker.one("where_scalar_y", defined, above / below, operand=otherwise)


_RULES = {"lars_update": _lars, "lamb_update": _lamb}
