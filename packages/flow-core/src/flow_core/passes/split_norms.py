"""Updates that are scaled by norms, of variables that lie split over devices.

LARS and LAMB scale what they do to a variable by norms of the whole of it, and of its gradient or
its change.  One op that does so needs the whole on every device.  Where the variable is split,
each device takes the sum of squares of its part: a partial result, of which boxing makes the whole
with an all-reduce of one number.  All else is done part by part, as other updates are.
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
from flow_core.passes.rewrite import Parts, Rule, as_type, constrain, take_apart
from flow_core.sharding.sbp import NdSbp, Split


@dataclass(frozen=True)
class SplitNorms:
    """Takes the updates of LARS and LAMB apart whose variables are split.

    Attributes:
        fixed: layouts of variables by earlier jobs, by name.
    """

    fixed: Mapping[str, NdSbp] = field(default_factory=lambda: MappingProxyType({}))
    name: str = "split_norms"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """The graph without updates that need the whole of a split variable."""
        rules: dict[str, Rule] = {}
        for op in graph.ops.values():
            if op.type in _RULES and (layout := self._split(graph, op)) is not None:
                rules[op.name] = partial(_apart, layout=layout)
        return take_apart(graph, context.specs, rules) if rules else graph

    def _split(self, graph: Graph, op: Op) -> NdSbp | None:
        """How the variable of an update lies, if it is split."""
        variable = graph.ops[op.inputs[MODEL].op]
        asked = self.fixed.get(variable.name) or (variable.sbp[0] if variable.sbp else None)
        several = op.placement == variable.placement and op.placement.size > 1
        is_split = asked is not None and any(isinstance(s, Split) for s in asked)
        return asked if several and is_split else None


def takes_apart(op: Op) -> bool:
    """Whether an update can be made part by part although it has no rule that says so."""
    return op.type in _RULES


@dataclass(frozen=True, slots=True)
class _Update:
    """One update while it is taken apart: its inputs, in the type that it computes in.

    Attributes:
        op: the update.
        layout: how the variable and its states lie.
        inputs: the inputs.
    """

    op: Op
    layout: NdSbp
    inputs: tuple[Sym, ...]

    @property
    def wide(self) -> DType:
        return self.inputs[MODEL].dtype.accumulate

    @property
    def model(self) -> Sym:
        return as_type(self.inputs[MODEL], self.wide)

    def state(self, index: int) -> Sym:
        """One of the states, or of the states of one element behind them."""
        return self.inputs[BY_TYPE[self.op.type].first_state + index]

    def diff(self) -> Sym:
        """The gradient with its scales and penalties, split as the variable is."""
        attrs, (scale, _) = self.op.attrs, self._optional()
        diff = as_type(constrain(self.inputs[DIFF], self.layout), self.wide)
        if attrs["scale"] != 1.0:
            diff = diff * attrs["scale"]
        if scale is not None:
            diff = diff * _number(scale, self.wide)
        return self.penalized(diff, attrs["l1"], attrs["l2"])

    def penalized(self, diff: Sym, l1: float, l2: float) -> Sym:
        """diff + l1 sign(model) + l2 model."""
        if not l1 and not l2:
            return diff
        maker = diff.maker
        return maker.one("l1_l2_regularize_gradient", self.model, diff, l1=l1, l2=l2)

    def decayed(self, change: Sym) -> Sym:
        """A change and the share of the model that weight decay takes off."""
        return self.penalized(change, 0.0, self.op.attrs["weight_decay"])

    def emit(self, type_: str, change: Sym, factor: Sym, *states: Sym, **attrs: float) -> None:
        """The plain update by a change, which is still to be scaled by a number."""
        skip = self.skip()
        given = (self.inputs[MODEL], change, self.inputs[RATE], *states, as_type(factor, self.wide))
        change.maker.all(type_, *given, *(() if skip is None else (skip,)), **attrs)

    def put(self, state: Sym, new: Sym) -> None:
        """Overwrites a state, unless the whole update is to be skipped."""
        maker, skip, new = new.maker, self.skip(), as_type(new, state.dtype)
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
    """Momentum, by a rate that is scaled by the norms of model and gradient."""
    attrs, diff = u.op.attrs, u.diff()
    model_norm, diff_norm = _root_mean_square(u.model), _root_mean_square(diff)
    below = diff_norm + attrs["epsilon"]
    if attrs["weight_decay"]:
        step, decay = _number(u.inputs[RATE + 1], int64), model_norm * attrs["weight_decay"]
        below = below + diff.maker.one("where_scalar_y", step, decay, operand=0.0)
    factor = _ratio(model_norm, below, below, otherwise=0.0) * attrs["lars_coefficient"]
    beta = attrs["momentum_beta"]
    u.emit("momentum_update", u.decayed(diff), factor, u.state(0), beta=beta)


def _lamb(u: _Update) -> None:
    """Adam's change, scaled by the norms of model and change."""
    attrs, diff = u.op.attrs, u.diff()
    maker, betas = diff.maker, (attrs["beta1"], attrs["beta2"])
    shares = (diff, maker.one("square", diff))
    moments = [
        as_type(u.state(i), u.wide) * beta + share * (1 - beta)
        for i, (beta, share) in enumerate(zip(betas, shares, strict=True))
    ]
    powers = [_power(u.state(2 + i), beta) for i, beta in enumerate(betas)]
    m, v = (
        moment * as_type(1 / (1 - power), u.wide)
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
    """The next power of a beta, rounded as its state is, since one less it loses digits."""
    return as_type(as_type(_number(state, float64) * beta, state.dtype), float64)


def _number(x: Sym, dtype: DType) -> Sym:
    """A scalar of an element type."""
    return as_type(x.maker.one("reshape", x, shape=()), dtype)


def _norm(x: Sym) -> Sym:
    """The root of the sum of squares, whole on every device."""
    return x.maker.one("sqrt", _number(x.maker.one("square_sum", x), float64))


def _root_mean_square(x: Sym) -> Sym:
    return _norm(x) * (1 / sqrt(max(prod(x.shape), 1)))


def _ratio(above: Sym, below: Sym, positive: Sym, otherwise: float) -> Sym:
    """above / below where a number is positive, else another number."""
    maker = above.maker
    defined = maker.one("scalar_logical_greater", positive, operand=0.0)
    below = maker.one("where_scalar_y", defined, below, operand=1.0)
    return maker.one("where_scalar_y", defined, above / below, operand=otherwise)


_RULES = {"lars_update": _lars, "lamb_update": _lamb}
