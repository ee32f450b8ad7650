"""Fuse matrix products with the ops that follow them: bias, activation, and sums of gradients.

* ``matmul``, ``bias_add`` and ``relu`` become ``cuda_matmul``;
* a ``matmul`` that reduces over the rows of a gradient, and the sum over the rows of that gradient,
  become ``cuda_matmul_sum``.

Gelu is treated like relu if a setting allows cuBLASLt's tanh approximation and no gradient reads
its input.
"""

from __future__ import annotations

from dataclasses import dataclass

from flow_core.authoring.pass_api import PassContext, Rewriter, like_op
from flow_core.authoring.specs import Graph, KernelQuery, Op, TensorType, Value
from flow_cuda.device.config import settings
from flow_cuda.kernels.matmul import can_finish


@dataclass(frozen=True)
class FuseProducts:
    """The pass that fuses matrix products with the ops that follow them."""

    activations: tuple[str, ...] = ("relu",)  # op types of the activations to fuse
    device: str = "gpu"  # the device type whose ops are fused
    name: str = "cuda_products"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        products = [op for op in graph.of_type("matmul") if op.placement.device_type == self.device]
        if not products:
            return graph
        rewriter = Rewriter(graph)
        joins = _Joins(rewriter, self.activations)
        for op in products:
            joins.join_bias(op)
        for op in products:
            joins.join_sum(op)
        return rewriter.finish()


@dataclass(frozen=True, slots=True)
class _Joins:
    """The rewriter of single products."""

    rewriter: Rewriter
    activations: tuple[str, ...]  # op types of the activations to fuse

    # ------------------------------------------------------------------------- queries

    def _type(self, value: Value) -> TensorType:
        return self.rewriter.graph.type_of(value)

    def _row_sum(self, value: Value) -> Op | None:
        """Return the op that sums over the rows of a matrix if exactly one exists."""
        found = [
            s
            for s in self.rewriter.readers(value, "reduce_sum")
            if s.attrs["axis"] == (0,) and not s.attrs["keepdims"] and self.rewriter.is_untouched(s)
        ]
        return found[0] if len(found) == 1 else None

    # ------------------------------------------------------------------------------- rewrites

    def join_bias(self, product: Op) -> None:
        """Fuse a product with its bias and activation."""
        add = self.rewriter.only_reader(product.output(), "bias_add")
        if add is None or add.inputs[0] != product.output() or add.attrs["axis"] % 2 != 1:
            return
        found = (self.rewriter.only_reader(add.output(), kind) for kind in self.activations)
        activation = next((op for op in found if op is not None), None)
        last = activation or add
        attrs = {**product.attrs, "activation": activation.type if activation else ""}
        new = like_op(last, "cuda_matmul", attrs, (*product.inputs, add.inputs[1]))
        if self._replace(last, new, (self._type(last.output()),)):
            for dropped in (product, add) if activation else (product,):
                self.rewriter.drop(dropped)

    def join_sum(self, product: Op) -> None:
        """Join a product that reduces over the rows of a gradient with the sum of these rows."""
        if not self.rewriter.is_untouched(product) or product.attrs["alpha"] != 1.0:
            return
        flips = (product.attrs["transpose_a"], not product.attrs["transpose_b"])
        for value, side, over_rows in zip(product.inputs, "ab", flips, strict=True):
            total = self._row_sum(self.rewriter.resolve(value)) if over_rows else None
            if total is None or total.placement != product.placement:
                continue
            order = self.rewriter.position
            first = min(product, total, key=lambda op: order[op.name])
            if any(order[v.op] > order[first.name] for v in product.inputs):
                continue
            types = tuple(self._type(op.output()) for op in (product, total))
            attrs = {**product.attrs, "side": side}
            made = like_op(product, "cuda_matmul_sum", attrs, product.inputs)
            if self._replace(product, made, types):
                self.rewriter.before(first).move(made)
                self.rewriter.drop(total)
                self.rewriter.replace_value(total.output(), product.output(1))
                return

    def _replace(self, old: Op, new: Op, types: tuple[TensorType, ...]) -> bool:
        """Replace an op if the kernels support the new one."""
        inputs = tuple(map(self.rewriter.type_of, new.inputs))
        if not can_finish(KernelQuery(new.type, new.attrs, inputs, types)):
            return False
        self.rewriter.replace(old, new, types)
        return True


def configured() -> FuseProducts:
    """Return the pass, configured by environment variables."""
    return FuseProducts(("relu", "gelu") if settings().tanh_gelu else ("relu",))
