"""Replace batch normalization in training by an op of cuDNN, fused with an addition and relu.

An addition is fused only together with relu, as at the end of a residual block, and only if
OneFlow's setting ``enable_cudnn_fused_normalization_add_relu`` is on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flow_core.authoring.pass_api import PassContext, Rewriter, like_op, option
from flow_core.authoring.specs import KernelQuery, Op, Value
from flow_cuda.cudnn.pass_base import CudnnPass, Form, planned
from flow_cuda.cudnn.plans import DnnPlans
from flow_cuda.cudnn.problems import Search
from flow_cuda.kernels.dnn import norm_problem, takes_norm
from flow_cuda.passes.convolutions import first_device


@dataclass(frozen=True)
class Norms(CudnnPass):
    """The pass that replaces training norms by ops of cuDNN."""

    adds: bool = option(
        True,
        "whether norms are fused with an addition and relu",
        "enable_cudnn_fused_normalization_add_relu",
    )
    name: str = "cudnn_norms"

    def find(self, rewriter: Rewriter) -> list[Op]:
        """Return the batch normalizations (norms) in training, and their gradients."""
        found = self.of(rewriter.graph, "normalization", "normalization_grad")
        return [op for op in found if op.attrs["training"]]

    def rewrite(
        self, rewriter: Rewriter, found: Sequence[Op], plans: DnnPlans, context: PassContext
    ) -> None:
        """Replace norms by ops of cuDNN."""
        allowed = self.search(tf32=True)  # nothing to round to TF32: all plans allowed
        planner = _Planner(rewriter, plans, allowed, self.adds)
        for op in found:
            planner.rewrite(op)


@dataclass(frozen=True, slots=True)
class _Planner:
    """Rewriter of single norms."""

    rewriter: Rewriter
    plans: DnnPlans
    search: Search  # that the job allows
    adds: bool  # whether additions may be fused

    def rewrite(self, op: Op) -> None:
        """Replace an op by the first form with a plan, at the place of the last fused op.

        The new op keeps the name of the norm.
        """
        forms = self._grads(op) if op.type == "normalization_grad" else self._forms(op)
        for place, joined, new in forms:
            made = self._planned(new, op)
            if made is None:
                continue
            self.rewriter.replace(op, made)
            if place is not op:
                self.rewriter.before(place).move(made)
            for dropped in joined:
                self.rewriter.drop(dropped)
                self.rewriter.replace_value(dropped.output(), op.output())
            return

    def _forms(self, op: Op) -> Iterator[Form]:
        """Yield the forms with addition and relu, with relu only, and without fusion."""
        shared = {key: op.attrs[key] for key in ("axis", "epsilon", "momentum")}
        relu_attrs = {**shared, "activation": "relu"}
        add, relu = self._only(op, "broadcast_add"), self._only(op, "relu")
        last = self._only(add, "relu") if add is not None else None
        if self.adds and add is not None and last is not None and self._late(op, last):
            others = [v for v in add.inputs if v != op.output()]
            if len(others) == 1 and self._type(others[0]) == self._type(op.output()):
                new = like_op(op, "cudnn_norm", relu_attrs, (*op.inputs, *others))
                yield last, (add, last), new
        if relu is not None:
            yield op, (relu,), like_op(op, "cudnn_norm", relu_attrs, op.inputs)
        yield op, (), like_op(op, "cudnn_norm", {**relu_attrs, "activation": ""}, op.inputs)

    def _grads(self, op: Op) -> Iterator[Form]:
        yield op, (), like_op(op, "cudnn_norm_grad", {"axis": op.attrs["axis"]}, op.inputs)

    def _type(self, value: Value) -> Any:
        return self.rewriter.type_of(value)

    def _only(self, op: Op, type_: str) -> Op | None:
        """Return the only reader of an op's first output if it has the type, else None."""
        return self.rewriter.only_reader(op.output(), type_)

    def _late(self, op: Op, last: Op) -> bool:
        """Whether an op can move to the place of ``last``.

        It can if only gradients read its other outputs, and no other op reads its statistics.
        """
        statistics = (r for i in (1, 2) for r in self.rewriter.readers(op.output(i)))
        moving = (r for v in op.inputs[1:3] for r in self.rewriter.readers(v))
        others = all(r.type == "normalization_grad" for r in statistics)
        return others and all(r is op for r in moving)

    def _planned(self, new: Op, op: Op) -> Op | None:
        """Return an op with its chosen plan, or None if cuDNN has no plan."""
        types = self.rewriter.graph.types[op.name]
        query = KernelQuery(new.type, new.attrs, tuple(map(self._type, new.inputs)), types)
        if not takes_norm(query):
            return None
        choice = self.plans.choose(norm_problem(query), self.search)
        return None if choice is None else planned(new, choice)


def configured() -> Norms:
    """Return the pass, which takes plans from the first device."""
    return Norms(first_device)
