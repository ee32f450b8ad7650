"""Fuse matrix products with the ops that follow them: bias, activation, and sums of gradients.

* ``matmul``, ``bias_add`` and ``relu`` become ``cuda_matmul``;
* a ``matmul`` whose only reader is ``relu_grad``, the ``relu_grad`` and the sum over its rows
  become ``cuda_matmul_grad``; the forward product then saves a mask;
* a ``matmul`` that reduces over the rows of a gradient, and the sum over the rows of that gradient,
  become ``cuda_matmul_sum``.

Gelu is treated like relu if a setting allows cuBLASLt's tanh approximation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flow_core.authoring.pass_api import PassContext, Rewriter, like_op
from flow_core.authoring.specs import Graph, KernelQuery, Op, TensorType, Value
from flow_cuda.device.config import settings
from flow_cuda.kernels.matmul import can_finish
from flow_cuda.ops import saved_type

ALIASES = ("reshape",)
GRADS = {"relu": "relu_grad", "gelu": "gelu_grad"}


@dataclass(frozen=True)
class FuseProducts:
    """The pass that fuses matrix products with the ops that follow them.

    Attributes:
        activations: op types of the activations to fuse.
        device: the device type whose ops are fused.
    """

    activations: tuple[str, ...] = ("relu",)
    device: str = "gpu"
    name: str = "cuda_products"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with fused products."""
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
    """The rewriter of single products.

    Attributes:
        rewriter: the rewriter of the graph.
        activations: op types of the activations to fuse.
    """

    rewriter: Rewriter
    activations: tuple[str, ...]

    # ------------------------------------------------------------------------- queries

    def _type(self, value: Value) -> TensorType:
        return self.rewriter.graph.type_of(value)

    def _source(self, value: Value) -> tuple[Op | None, list[Op]]:
        """Return the matmul on which only a value depends, and the aliases between the two."""
        aliases: list[Op] = []
        op = self.rewriter.graph.ops[value.op]
        while op.type in ALIASES and self._has_one_reader(op.output()):
            aliases.append(op)
            op = self.rewriter.graph.ops[op.inputs[0].op]
        fits = op.type == "matmul" and self._has_one_reader(op.output())
        return (op if fits and self.rewriter.is_untouched(op, *aliases) else None), aliases

    def _has_one_reader(self, value: Value) -> bool:
        return len(self.rewriter.readers(value)) == 1 and not self.rewriter.is_result(value)

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
        """Join a product with its bias and activation; join the activation's gradient as well."""
        add = self.rewriter.only_reader(product.output(), "bias_add")
        if add is None or add.inputs[0] != product.output():
            return
        if not self.rewriter.is_untouched(product):
            return
        if add.attrs["axis"] % 2 != 1:
            return
        activation = next((a for a in self._activations(add)), None)
        last = activation or add
        kind = last.type if activation else ""
        grad = self._gradient(add, activation) if activation else None
        if kind == "gelu" and grad is None and not self._has_one_reader(add.output()):
            return
        attrs = {**product.attrs, "activation": kind, "saved": grad is not None}
        out = self._type(last.output())
        types = (out, saved_type(out, kind)) if grad else (out,)
        new = like_op(last, "cuda_matmul", attrs, (*product.inputs, add.inputs[1]))
        if self._replace(last, new, types):
            for dropped in (product, add) if activation else (product,):
                self.rewriter.drop(dropped)
            if grad:
                self._join_gradient(last, kind, *grad)

    def _activations(self, add: Op) -> Iterator[Op]:
        """Yield the activations of a biased product, which gelu's gradient may read as well."""
        for kind in self.activations:
            for op in self.rewriter.readers(add.output(), kind):
                others = [r for r in self.rewriter.readers(add.output()) if r is not op]
                grads = [r for r in others if kind == "gelu" and r.type == GRADS[kind]]
                read = others != grads or self.rewriter.is_result(add.output())
                if not read and self.rewriter.is_untouched(op):
                    yield op

    def _gradient(self, add: Op, activation: Op) -> tuple[Op, Op, list[Op]] | None:
        """Return an activation's gradient op, the product before it, and the aliases between."""
        kind = activation.type
        read = activation.output() if kind == "relu" else add.output()
        grads = [g for g in self.rewriter.readers(read, GRADS[kind]) if g.inputs[0] == read]
        if len(grads) != 1 or not self.rewriter.is_untouched(*grads):
            return None
        (grad,) = grads
        product, aliases = self._source(grad.inputs[1])
        if product is None or product.placement != grad.placement:
            return None
        same = self._type(product.output()) == self._type(grad.output())
        full = all(self._type(v).size for v in product.inputs)
        return (grad, product, aliases) if same and full else None

    def _join_gradient(
        self, forward: Op, kind: str, grad: Op, product: Op, aliases: list[Op]
    ) -> None:
        total, out = self._row_sum(grad.output()), self._type(grad.output())
        attrs = {**product.attrs, "activation": kind, "summed": total is not None}
        types = (out, *((self._type(total.output()),) if total else ()))
        inputs = (*product.inputs, Value(forward.name, 1))
        self.rewriter.replace(grad, like_op(grad, "cuda_matmul_grad", attrs, inputs), types)
        for dropped in (product, *aliases, *((total,) if total else ())):
            self.rewriter.drop(dropped)
        if total:
            self.rewriter.replace_value(total.output(), grad.output(1))

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
