"""Replace softmax(q k^T scale + mask) v by one op of cuDNN, and its gradients by another.

The pattern consists of two products with a softmax between them, optionally a factor and a mask,
and in the backward pass the five ops that compute their gradients. No other op may read the
intermediate values, and the mask must not have a gradient. cuDNN supports 16-bit types only.
Dropout of the probabilities is not fused, because the library's random numbers differ from those of
a step on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from flow_core.authoring.pass_api import PassContext, Rewriter, like_op
from flow_core.authoring.specs import Graph, KernelQuery, Op, TensorType, Value, tensor_type
from flow_core.base.dtypes import float32
from flow_cuda.cudnn.pass_base import CudnnPass, planned
from flow_cuda.cudnn.plans import DnnPlans
from flow_cuda.cudnn.problems import Search
from flow_cuda.kernels.dnn import attention_problem
from flow_cuda.passes.convolutions import first_device

HALF = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Match:
    """The ops of one attention."""

    product: Op  # the product of queries and keys
    between: tuple[Op, ...]  # the ops that apply the factor and the mask, if there are any
    softmax: Op  # the op that computes the probabilities
    out: Op  # the product of the probabilities and the values
    scale: float  # the factor by which the scores are multiplied
    mask: Value | None  # the tensor added to the scores; None if there is no mask
    back: tuple[Op, ...]  # ops that compute the gradients, in order; empty without a backward pass

    @property
    def operands(self) -> tuple[Value, ...]:
        return (*self.product.inputs, self.out.inputs[1])


@dataclass(frozen=True)
class JoinAttention(CudnnPass):
    """The pass that replaces attention by fused ops."""

    name: str = "cudnn_attention"

    def find(self, rewriter: Rewriter) -> list[Match]:
        """Return the attention patterns, with their gradients if there are any."""
        readers = _Readers(rewriter)
        found = map(readers.match, self.of(rewriter.graph, "softmax"))
        return [match for match in found if match is not None]

    def rewrite(
        self, rewriter: Rewriter, found: Sequence[Match], plans: DnnPlans, context: PassContext
    ) -> None:
        """Replace attention by ops of cuDNN."""
        planner = _Planner(rewriter, plans, self.search())
        for match in found:
            planner.join(match)


@dataclass(frozen=True, slots=True)
class _Readers:
    """The matcher of the attention pattern."""

    rewriter: Rewriter

    @property
    def graph(self) -> Graph:
        return self.rewriter.graph

    def _read_by(self, value: Value, *types: str) -> list[Op] | None:
        """Return the ops that read a value; None if their types are not the given types."""
        found = self.rewriter.readers(value)
        fits = sorted(op.type for op in found) == sorted(types)
        return found if fits and not self.rewriter.is_result(value) else None

    def match(self, softmax: Op) -> Match | None:
        """Return the attention pattern around a softmax, or None."""
        value = softmax.output()
        type_ = self.graph.type_of(value)
        if type_.dtype.name not in HALF or len(type_.shape) not in (3, 4):
            return None
        if softmax.attrs["axis"] % len(type_.shape) != len(type_.shape) - 1:
            return None
        scores = self._scores(softmax.inputs[0])
        if scores is None:
            return None
        product, between, scale, mask = scores
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
        """Return the product for the scores, the ops that follow it, the factor and the mask."""
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
        """Whether a value is a matrix product, or a matrix product times a number."""
        op = self.graph.ops[value.op]
        op = self.graph.ops[op.inputs[0].op] if op.type == "scalar_mul" else op
        return _is_product(op, transpose_b=True)

    def _backward(self, m: Match) -> Match | None:
        """Return the match with the ops of the gradients, or None if one of them does not match."""
        p, v = m.softmax.output(), m.operands[2]
        by_p = self.rewriter.readers(p)
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
        """Return the op that applies the factor, if any, and the gradients of queries and keys."""
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
    """Return each op of the forward pass with the type of the op's only reader."""
    chain = [match.product, *match.between, match.softmax]
    return [*((a, b.type) for a, b in pairwise(chain)), (chain[-1], PRODUCT)]


@dataclass(frozen=True, slots=True)
class _Planner:
    """Rewriter of single attention patterns."""

    rewriter: Rewriter
    plans: DnnPlans
    search: Search  # that the job allows

    @property
    def graph(self) -> Graph:
        return self.rewriter.graph

    def join(self, m: Match) -> None:
        """Replace an attention pattern if the library has plans for all its ops."""
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
            self._put_forward(m, forward, made)
            return
        dp, dv, *_, dq, dk = m.back
        grads = (dq, dk, dv)
        types = tuple(self.graph.type_of(op.output()) for op in grads)
        given = (*m.operands, m.out.output(), dp.inputs[0], Value(m.out.name, 1), *mask)
        order = self.rewriter.position
        first = min(m.back, key=lambda op: order[op.name])
        if order[first.name] < order[m.out.name]:
            return
        known = {Value(m.out.name, 1): stats}
        more = {"scale": m.scale, "deterministic": self.search.deterministic}
        back = self._planned(first, "cudnn_attention_grad", given, types, more, known)
        if back is None:
            return
        self._put_forward(m, forward, made)
        self.rewriter.replace(first, back, types)
        for op in m.back:
            if op is not first:
                self.rewriter.drop(op)
        for i, op in enumerate(grads):
            self.rewriter.replace_value(op.output(), back.output(i))

    def _fits(self, m: Match) -> bool:
        """Whether the shapes are supported and the mask can be broadcast to the scores."""
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
        """Return an op with its chosen plan, or None if cuDNN has no plan."""
        given = tuple(known[v] if v in known else self.graph.type_of(v) for v in inputs)
        problem = attention_problem(KernelQuery(type_, attrs, given, types))
        choice = self.plans.choose(problem, self.search)
        return None if choice is None else planned(like_op(at, type_, attrs, inputs), choice)

    def _put_forward(self, m: Match, new: Op, types: tuple[TensorType, ...]) -> None:
        """Replace the last product of the pattern by the forward op."""
        self.rewriter.replace(m.out, new, types)
        for op in (m.product, *m.between, m.softmax):
            self.rewriter.drop(op)


def configured() -> JoinAttention:
    """Return the pass, which takes plans from the first device."""
    return JoinAttention(first_device)
