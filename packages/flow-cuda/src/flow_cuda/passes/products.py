"""Products with what follows them become one op each: bias, activation, and sums of gradients.

* ``matmul``, ``bias_add`` and ``relu`` become ``cuda_matmul``;
* a ``matmul`` whose result goes into ``relu_grad`` alone, and the sum over rows of that, become
  ``cuda_matmul_grad``; the forward product then saves a mask;
* a ``matmul`` that sums over the rows of a gradient, and the sum over rows of that gradient, become
  ``cuda_matmul_sum``.

Gelu is treated like relu where a setting allows the library's form with tanh.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flow_core.ir.graph import Attrs, Graph, Op, TensorType, Value, rebuild
from flow_core.plugins.specs import KernelQuery
from flow_cuda.device.config import settings
from flow_cuda.kernels.matmul import can_finish
from flow_cuda.ops import saved_type

ALIASES = ("reshape",)
GRADS = {"relu": "relu_grad", "gelu": "gelu_grad"}


@dataclass(frozen=True)
class FuseProducts:
    """The pass.

    Attributes:
        activations: those that products may end with.
        device: the device type whose ops it joins.
    """

    activations: tuple[str, ...] = ("relu",)
    device: str = "gpu"
    name: str = "cuda_products"

    def apply(self, graph: Graph, context: object) -> Graph:
        """The graph with fused products."""
        products = [op for op in graph.of_type("matmul") if op.placement.device_type == self.device]
        if not products:
            return graph
        work = _Work(graph, self.activations, graph.consumers())
        for op in products:
            work.join_bias(op)
        for op in products:
            work.join_sum(op)
        return work.finish()


@dataclass(slots=True)
class _Work:
    """The graph under change: ops are replaced where they stand, or dropped.

    Attributes:
        graph: as it was.
        activations: those that products may end with.
        readers: ops that read each value, as it was.
        put: new ops, by the name of the op in whose place they stand.
        gone: names of dropped ops.
        same: values that others stand for.
        types: of new ops.
    """

    graph: Graph
    activations: tuple[str, ...]
    readers: Mapping[Value, list[Op]]
    put: dict[str, Op] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    same: dict[Value, Value] = field(default_factory=dict)
    types: dict[str, tuple[TensorType, ...]] = field(default_factory=dict)

    # ------------------------------------------------------------------------- what is there

    def _of(self, value: Value, type_: str) -> list[Op]:
        return [op for op in self.readers.get(value, []) if op.type == type_]

    def _only(self, value: Value, type_: str) -> Op | None:
        """The op of a type that alone reads a value."""
        found = self.readers.get(value, [])
        alone = len(found) == 1 and found[0].type == type_ and value not in self.graph.results
        return found[0] if alone else None

    def _fresh(self, *ops: Op) -> bool:
        """Whether none of some ops has been joined."""
        return not any(op.name in self.gone or op.name in self.put for op in ops)

    def _source(self, value: Value) -> tuple[Op | None, list[Op]]:
        """The matmul whose result alone reaches a value, and the aliases on the way."""
        way: list[Op] = []
        op = self.graph.ops[value.op]
        while op.type in ALIASES and self._alone(op.output()):
            way.append(op)
            op = self.graph.ops[op.inputs[0].op]
        if op.type != "matmul" or not self._alone(op.output()) or not self._fresh(op, *way):
            return None, way
        return op, way

    def _alone(self, value: Value) -> bool:
        return len(self.readers.get(value, [])) == 1 and value not in self.graph.results

    def _row_sum(self, value: Value) -> Op | None:
        """The sum over the rows of a matrix, where there is one."""
        found = [
            s
            for s in self._of(value, "reduce_sum")
            if s.attrs["axis"] == (0,) and not s.attrs["keepdims"] and self._fresh(s)
        ]
        return found[0] if len(found) == 1 else None

    # ------------------------------------------------------------------------------- rewrites

    def join_bias(self, product: Op) -> None:
        """A product, its bias and its activation; and the gradient of that."""
        add = self._only(product.output(), "bias_add")
        if add is None or not self._fresh(product, add) or add.inputs[0] != product.output():
            return
        if add.attrs["axis"] % 2 != 1:
            return
        activation = next((a for a in self._activations(add)), None)
        last = activation or add
        kind = last.type if activation else ""
        grad = self._gradient(add, activation) if activation else None
        if kind == "gelu" and grad is None and not self._alone(add.output()):
            return
        attrs = {**product.attrs, "activation": kind, "saved": grad is not None}
        out = self.graph.type_of(last.output())
        types = (out, saved_type(out, kind)) if grad else (out,)
        if self._replace(last, "cuda_matmul", attrs, (*product.inputs, add.inputs[1]), types):
            self.gone |= {product.name, *((add.name,) if activation else ())}
            if grad:
                self._join_gradient(last, kind, *grad)

    def _activations(self, add: Op) -> Iterator[Op]:
        """An activation behind a bias: gelu's gradient reads the sum, too."""
        for kind in self.activations:
            for op in self._of(add.output(), kind):
                others = [r for r in self.readers[add.output()] if r is not op]
                grads = [r for r in others if kind == "gelu" and r.type == GRADS[kind]]
                if others == grads and add.output() not in self.graph.results and self._fresh(op):
                    yield op

    def _gradient(self, add: Op, activation: Op) -> tuple[Op, Op, list[Op]] | None:
        """The op of an activation's gradient, the product before it, and aliases between."""
        kind = activation.type
        read = activation.output() if kind == "relu" else add.output()
        grads = [g for g in self._of(read, GRADS[kind]) if g.inputs[0] == read]
        if len(grads) != 1 or not self._fresh(*grads):
            return None
        (grad,) = grads
        product, way = self._source(grad.inputs[1])
        if product is None or product.placement != grad.placement:
            return None
        same = self.graph.type_of(product.output()) == self.graph.type_of(grad.output())
        full = all(self.graph.type_of(v).size for v in product.inputs)
        return (grad, product, way) if same and full else None

    def _join_gradient(self, forward: Op, kind: str, grad: Op, product: Op, way: list[Op]) -> None:
        total, out = self._row_sum(grad.output()), self.graph.type_of(grad.output())
        attrs = {**product.attrs, "activation": kind, "summed": total is not None}
        types = (out, *((self.graph.type_of(total.output()),) if total else ()))
        inputs = (*product.inputs, Value(forward.name, 1))
        self.put[grad.name] = self._made(grad, "cuda_matmul_grad", attrs, inputs)
        self.types[grad.name] = types
        self.gone |= {product.name, *(op.name for op in way)}
        if total:
            self.gone.add(total.name)
            self.same[total.output()] = Value(grad.name, 1)

    def join_sum(self, product: Op) -> None:
        """A product over the rows of a gradient, and the sum of these."""
        if not self._fresh(product) or product.attrs["alpha"] != 1.0:
            return
        flips = (product.attrs["transpose_a"], not product.attrs["transpose_b"])
        for value, side, over_rows in zip(product.inputs, "ab", flips, strict=True):
            total = self._row_sum(self.same.get(value, value)) if over_rows else None
            if total is None or total.placement != product.placement:
                continue
            order = {name: i for i, name in enumerate(self.graph.ops)}
            first = min(product, total, key=lambda op: order[op.name])
            if any(order[v.op] > order[first.name] for v in product.inputs):
                continue
            types = tuple(self.graph.type_of(op.output()) for op in (product, total))
            attrs = {**product.attrs, "side": side}
            made = self._made(product, "cuda_matmul_sum", attrs, product.inputs)
            if self._accepted(made, types):
                self.put[first.name] = made
                self.types[made.name] = types
                self.gone |= {total.name, product.name} - {first.name}
                self.same[total.output()] = Value(made.name, 1)
                return

    # ------------------------------------------------------------------------------- changes

    def _made(self, op: Op, type_: str, attrs: Mapping[str, Any], inputs: tuple[Value, ...]) -> Op:
        return Op(op.name, type_, inputs, Attrs(attrs), op.placement, control=op.control)

    def _accepted(self, op: Op, types: tuple[TensorType, ...]) -> bool:
        known = [self.types.get(v.op, self.graph.types.get(v.op, ())) for v in op.inputs]
        inputs = tuple(t[v.index] for t, v in zip(known, op.inputs, strict=True))
        return can_finish(KernelQuery(op.type, op.attrs, inputs, types))

    def _replace(
        self,
        op: Op,
        type_: str,
        attrs: Mapping[str, Any],
        inputs: tuple[Value, ...],
        types: tuple[TensorType, ...],
    ) -> bool:
        """Puts a new op in the place of another one, where kernels take it."""
        made = self._made(op, type_, attrs, inputs)
        if not self._accepted(made, types):
            return False
        self.put[op.name], self.types[op.name] = made, types
        return True

    def finish(self) -> Graph:
        """The new graph, in the old order."""
        if not self.put:
            return self.graph
        kept = [op for op in self.graph.ops.values() if op.name not in self.gone]
        ops = [self._redirected(self.put.get(op.name, op)) for op in kept]
        results = tuple(self.same.get(v, v) for v in self.graph.results)
        lines = dict(self.graph.lines)
        types = {**self.graph.types, **self.types}
        return rebuild(self.graph, ops, types=types, results=results, lines=lines)

    def _redirected(self, op: Op) -> Op:
        return op.with_inputs(tuple(self.same.get(v, v) for v in op.inputs))


def configured() -> FuseProducts:
    """The pass, as the settings want it."""
    return FuseProducts(("relu", "gelu") if settings().tanh_gelu else ("relu",))
