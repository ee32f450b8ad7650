"""softmax(q k^T scale + mask) v becomes one op of cuDNN, its gradients another one.

The pattern is two products with a softmax between them, perhaps a factor and a mask, and on the
way back the five ops of their gradients; nobody else may read what lies between.  The mask must
not be differentiated.  Half types only: that is what cuDNN has.  Dropout of probabilities is
not joined, as the library draws other numbers than a step on the CPU does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from flow_core.base.dtypes import float32
from flow_core.ir.graph import Graph, Op, TensorType, Value, rebuild, tensor_type
from flow_core.plugins.specs import KernelQuery
from flow_cuda.cudnn.pass_base import CudnnPass, new_op, planned, search
from flow_cuda.cudnn.plans import DnnPlans
from flow_cuda.cudnn.problems import Search
from flow_cuda.kernels.dnn import attention_problem
from flow_cuda.passes.convolutions import first_device

HALF = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Match:
    """The ops of one attention.

    Attributes:
        product: of queries and keys.
        between: factor and mask, as far as they are there.
        softmax: the probabilities.
        out: their product with the values.
        scale: factor of the scores.
        mask: what is added to them.
        back: the ops of the gradients in their order, none where there are none.
    """

    product: Op
    between: tuple[Op, ...]
    softmax: Op
    out: Op
    scale: float
    mask: Value | None
    back: tuple[Op, ...]

    @property
    def operands(self) -> tuple[Value, ...]:
        """Queries, keys and values."""
        return (*self.product.inputs, self.out.inputs[1])

    @property
    def gone(self) -> set[str]:
        """What is no longer there."""
        inner = {op.name for op in (self.product, *self.between, self.softmax)}
        return inner | {op.name for op in self.back}


@dataclass(frozen=True)
class JoinAttention(CudnnPass):
    """The pass."""

    name: str = "cudnn_attention"

    def find(self, graph: Graph) -> list[Match]:
        """Attention, with its gradients where there are any."""
        readers = _Readers(graph, graph.consumers())
        found = map(readers.match, self.of(graph, "softmax"))
        return [match for match in found if match is not None]

    def rewritten(
        self, graph: Graph, found: Sequence[Match], plans: DnnPlans, options: Mapping[str, Any]
    ) -> Graph:
        """The graph with ops of cuDNN."""
        order = {name: i for i, name in enumerate(graph.ops)}
        work = _Work(graph, plans, search(options), order)
        for match in found:
            work.join(match)
        return work.finish()


@dataclass(frozen=True, slots=True)
class _Readers:
    """Finds the pattern.

    Attributes:
        graph: where.
        readers: ops that read each value.
    """

    graph: Graph
    readers: Mapping[Value, list[Op]]

    def _read_by(self, value: Value, *types: str) -> list[Op] | None:
        """The ops that read a value, if they are of these types exactly."""
        found = self.readers.get(value, [])
        fits = sorted(op.type for op in found) == sorted(types) and value not in self.graph.results
        return found if fits else None

    def match(self, softmax: Op) -> Match | None:
        """The attention around a softmax."""
        value = softmax.output()
        type_ = self.graph.type_of(value)
        if type_.dtype.name not in HALF or len(type_.shape) not in (3, 4):
            return None
        if softmax.attrs["axis"] % len(type_.shape) != len(type_.shape) - 1:
            return None
        way = self._scores(softmax.inputs[0])
        if way is None:
            return None
        product, between, scale, mask = way
        forward = self._read_by(value, "batch_matmul")
        training = self._read_by(value, "batch_matmul", "batch_matmul", "softmax_grad")
        found = forward or training
        out = next((op for op in found or () if _is_product(op) and op.inputs[0] == value), None)
        if out is None or out.attrs["alpha"] != 1.0:
            return None
        match = Match(product, between, softmax, out, scale, mask, ())
        if forward:
            alone = all(self._read_by(op.output(), t) for op, t in _steps(match))
            return match if alone else None
        return self._backward(match)

    def _scores(self, value: Value) -> tuple[Op, tuple[Op, ...], float, Value | None] | None:
        """The product behind scores, what lies between, the factor and the mask."""
        between: list[Op] = []
        mask, scale = None, 1.0
        op = self.graph.ops[value.op]
        if op.type == "broadcast_add":
            own = [v for v in op.inputs if self._is_of_product(v)]
            if len(own) != 1 or op.inputs[0] == op.inputs[1]:
                return None
            (mask,) = (v for v in op.inputs if v != own[0])
            between, op = [op], self.graph.ops[own[0].op]
        if op.type == "scalar_mul":
            scale *= float(op.attrs["operand"])
            between, op = [op, *between], self.graph.ops[op.inputs[0].op]
        if not _is_product(op, transpose_b=True):
            return None
        return op, tuple(between), scale * float(op.attrs["alpha"]), mask

    def _is_of_product(self, value: Value) -> bool:
        """Whether a value is a product, or one times a number."""
        op = self.graph.ops[value.op]
        op = self.graph.ops[op.inputs[0].op] if op.type == "scalar_mul" else op
        return _is_product(op, transpose_b=True)

    def _backward(self, m: Match) -> Match | None:
        """The same with the ops of the gradients, if they are all there and read nothing else."""
        p, v = m.softmax.output(), m.operands[2]
        by_p = self.readers[p]
        (slope,) = (op for op in by_p if op.type == "softmax_grad")
        (dv,) = (op for op in by_p if op.type == PRODUCT and op is not m.out)
        dp = self.graph.ops[slope.inputs[1].op]
        if not (_is_product(dv, transpose_a=True) and _is_product(dp, transpose_b=True)):
            return None
        if slope.inputs[0] != p or dv.inputs[0] != p or dp.inputs != (dv.inputs[1], v):
            return None
        if any(op.attrs["alpha"] != 1.0 for op in (dp, dv)):
            return None
        rest = self._of_scores(m, slope)
        inner = (*_steps(m)[:-1], (dp, "softmax_grad"))
        if rest is None or any(self._read_by(op.output(), t) is None for op, t in inner):
            return None
        return replace(m, back=(dp, dv, slope, *rest))

    def _of_scores(self, m: Match, slope: Op) -> tuple[Op, ...] | None:
        """The factor, if there is one, and the gradients of queries and keys."""
        q, k, _ = m.operands
        scaled: list[Op] = []
        for factor in (op for op in m.between if op.type == "scalar_mul"):
            scaled = self._read_by(slope.output(), "scalar_mul") or []
            if [op.attrs["operand"] for op in scaled] != [factor.attrs["operand"]]:
                return None
        scores = (*scaled, slope)[0].output()
        last = self._read_by(scores, PRODUCT, PRODUCT) or []
        dq = [op for op in last if _is_product(op) and op.inputs[1] == k]
        dk = [op for op in last if _is_product(op, transpose_a=True) and op.inputs[1] == q]
        alpha = m.product.attrs["alpha"]
        if len(dq) != 1 or len(dk) != 1 or any(op.attrs["alpha"] != alpha for op in last):
            return None
        return (*scaled, *dq, *dk)


PRODUCT = "batch_matmul"


def _is_product(op: Op, transpose_a: bool = False, transpose_b: bool = False) -> bool:
    flips = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    return op.type == PRODUCT and all(op.attrs[k] == v for k, v in flips.items())


def _steps(match: Match) -> list[tuple[Op, str]]:
    """Each op of the forward pass, and the type of the only one that reads it."""
    chain = [match.product, *match.between, match.softmax]
    return [*((a, b.type) for a, b in pairwise(chain)), (chain[-1], PRODUCT)]


@dataclass(slots=True)
class _Work:
    """The graph under change.

    Attributes:
        graph: as it was.
        plans: chooses plans.
        search: which ones are allowed.
        order: places of ops.
        put: new ops, by the name of the op in whose place they stand.
        types: of new ops.
        same: values that others stand for.
        gone: names of dropped ops.
    """

    graph: Graph
    plans: DnnPlans
    search: Search
    order: Mapping[str, int]
    put: dict[str, Op] = field(default_factory=dict)
    types: dict[str, tuple[TensorType, ...]] = field(default_factory=dict)
    same: dict[Value, Value] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    def join(self, m: Match) -> None:
        """Puts an attention in place, if the library has plans for all of it."""
        if not self._fits(m):
            return
        mask, out = (() if m.mask is None else (m.mask,)), self.graph.type_of(m.out.output())
        stats = tensor_type((*out.shape[:-1], 1), float32)
        made = (out, stats) if m.back else (out,)
        attrs = {"scale": m.scale, "saves": bool(m.back)}
        inputs = (*m.operands, *mask)
        forward = self._planned(m.out, "cudnn_attention", inputs, made, attrs)
        if forward is None:
            return
        if not m.back:
            self._keep(forward, made, m)
            return
        dp, dv, *_, dq, dk = m.back
        types = tuple(self.graph.type_of(op.output()) for op in (dq, dk, dv))
        given = (*m.operands, m.out.output(), dp.inputs[0], Value(m.out.name, 1), *mask)
        first = min(m.back, key=lambda op: self.order[op.name])
        if self.order[first.name] < self.order[m.out.name]:
            return
        known = {Value(m.out.name, 1): stats}
        more = {"scale": m.scale, "deterministic": self.search.deterministic}
        back = self._planned(first, "cudnn_attention_grad", given, types, more, known)
        if back is None:
            return
        self._keep(forward, made, m)
        self._keep(back, types, m)
        for i, op in enumerate((dq, dk, dv)):
            self.same[op.output()] = Value(back.name, i)

    def _fits(self, m: Match) -> bool:
        """Whether sizes are an attention's, and the mask spreads over the scores alone."""
        q, k, v = (self.graph.type_of(x) for x in m.operands)
        if len({t.dtype for t in (q, k, v)}) > 1 or not (q.size and k.size and v.size):
            return False
        same = q.shape[:-2] == k.shape[:-2] == v.shape[:-2] and k.shape[-2] == v.shape[-2]
        if m.mask is None or not same:
            return same
        mask = self.graph.type_of(m.mask)
        full = (*q.shape[:-1], k.shape[-2])
        wide = (*(1,) * (len(full) - len(mask.shape)), *mask.shape)
        spreads = len(wide) == len(full) and all(
            a in (1, b) for a, b in zip(wide, full, strict=True)
        )
        return mask.dtype == q.dtype and spreads and wide[-1] == full[-1]

    def _planned(
        self,
        at: Op,
        type_: str,
        inputs: tuple[Value, ...],
        types: tuple[TensorType, ...],
        attrs: dict[str, Any],
        known: Mapping[Value, TensorType] = {},
    ) -> Op | None:
        """An op with the plan that was chosen for it."""
        given = tuple(known[v] if v in known else self.graph.type_of(v) for v in inputs)
        problem = attention_problem(KernelQuery(type_, attrs, given, types))
        choice = self.plans.choose(problem, self.search)
        return None if choice is None else planned(new_op(at, type_, inputs, **attrs), choice)

    def _keep(self, op: Op, types: tuple[TensorType, ...], m: Match) -> None:
        self.put[op.name], self.types[op.name] = op, types
        self.gone |= m.gone - self.put.keys()

    def finish(self) -> Graph:
        """The new graph, in the old order."""
        if not self.put:
            return self.graph
        gone = self.gone - self.put.keys()
        ops = [self.put.get(op.name, op) for op in self.graph.ops.values() if op.name not in gone]
        ops = [op.with_inputs(tuple(self.same.get(v, v) for v in op.inputs)) for op in ops]
        results = tuple(self.same.get(v, v) for v in self.graph.results)
        return rebuild(self.graph, ops, types={**self.graph.types, **self.types}, results=results)


def configured() -> JoinAttention:
    """The pass on machines with devices; it asks the first one."""
    return JoinAttention(first_device)
