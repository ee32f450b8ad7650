"""Batch normalisation in training becomes an op of cuDNN, with a sum and relu behind it.

A sum joins it only with relu, as where a residual block ends; OneFlow's setting
``enable_cudnn_fused_normalization_add_relu`` says whether it may.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flow_core.ir.graph import Graph, Op, Value, rebuild
from flow_core.plugins.specs import KernelQuery
from flow_cuda.cudnn.pass_base import CudnnPass, Form, new_op, only_reader, planned, search
from flow_cuda.cudnn.plans import DnnPlans
from flow_cuda.cudnn.problems import Search
from flow_cuda.kernels.dnn import norm_problem, takes_norm
from flow_cuda.passes.convolutions import first_device


@dataclass(frozen=True)
class Norms(CudnnPass):
    """The pass."""

    name: str = "cudnn_norms"

    def find(self, graph: Graph) -> list[Op]:
        """Batch normalisation in training, and its gradients."""
        found = self.of(graph, "normalization", "normalization_grad")
        return [op for op in found if op.attrs["training"]]

    def rewritten(
        self, graph: Graph, found: Sequence[Op], plans: DnnPlans, options: Mapping[str, Any]
    ) -> Graph:
        """The graph with ops of cuDNN."""
        wishes: Mapping[str, Any] = options.get("cudnn", {})
        adds = bool(wishes.get("enable_cudnn_fused_normalization_add_relu", True))
        allowed = search(options, tf32=True)  # nothing is multiplied by it
        work = _Work(graph, plans, allowed, adds, graph.consumers())
        for op in found:
            work.rewrite(op)
        return work.finish()


@dataclass(slots=True)
class _Work:
    """The graph under change.

    Attributes:
        graph: as it was.
        plans: chooses plans.
        search: which ones are allowed.
        adds: whether sums may join.
        readers: ops that read each value.
        put: new ops, by the name of the op in whose place they stand; they keep the
            normalisation's own name.
        gone: names of ops that are not where they were.
        same: values that others stand for.
    """

    graph: Graph
    plans: DnnPlans
    search: Search
    adds: bool
    readers: Mapping[Value, list[Op]]
    put: dict[str, Op] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    same: dict[Value, Value] = field(default_factory=dict)

    def rewrite(self, op: Op) -> None:
        """Puts the first form that the library has a plan for in the place of an op."""
        forms = self._grads(op) if op.type == "normalization_grad" else self._forms(op)
        for place, joined, new in forms:
            made = self._planned(new, op)
            if made is None:
                continue
            self.put[place.name] = made
            self.gone |= {x.name for x in (op, *joined)} - {place.name}
            self.same |= {x.output(): op.output() for x in joined}
            return

    def _forms(self, op: Op) -> Iterator[Form]:
        """With sum and relu, with relu, alone."""
        attrs = {key: op.attrs[key] for key in ("axis", "epsilon", "momentum")}
        add, relu = self._only(op, "broadcast_add"), self._only(op, "relu")
        last = self._only(add, "relu") if add is not None else None
        if self.adds and add is not None and last is not None and self._late(op, last):
            others = [v for v in add.inputs if v != op.output()]
            if len(others) == 1 and self._type(others[0]) == self._type(op.output()):
                new = new_op(op, "cudnn_norm", (*op.inputs, *others), activation="relu", **attrs)
                yield last, (add, last), new
        if relu is not None:
            yield op, (relu,), new_op(op, "cudnn_norm", op.inputs, activation="relu", **attrs)
        yield op, (), new_op(op, "cudnn_norm", op.inputs, activation="", **attrs)

    def _grads(self, op: Op) -> Iterator[Form]:
        yield op, (), new_op(op, "cudnn_norm_grad", op.inputs, axis=op.attrs["axis"])

    def _type(self, value: Value) -> Any:
        return self.graph.type_of(value)

    def _only(self, op: Op, type_: str) -> Op | None:
        """The op of a type that alone reads the first output of an op, and is still there."""
        found = only_reader(self.graph, self.readers, op.output(), type_)
        return None if found is None or found.name in {*self.gone, *self.put} else found

    def _late(self, op: Op, last: Op) -> bool:
        """Whether nothing but gradients reads an op's other outputs, or changes what it changes."""
        statistics = (r for i in (1, 2) for r in self.readers.get(Value(op.name, i), []))
        moving = (r for v in op.inputs[1:3] for r in self.readers.get(v, []))
        others = all(r.type == "normalization_grad" for r in statistics)
        return others and all(r is op for r in moving)

    def _planned(self, new: Op, op: Op) -> Op | None:
        """An op with the plan that was chosen for it."""
        types = self.graph.types[op.name]
        query = KernelQuery(new.type, new.attrs, tuple(map(self._type, new.inputs)), types)
        if not takes_norm(query):
            return None
        choice = self.plans.choose(norm_problem(query), self.search)
        return None if choice is None else planned(new, choice)

    def finish(self) -> Graph:
        """The new graph, in the old order."""
        if not self.put:
            return self.graph
        ops = [
            self.put.get(op.name, op)
            for op in self.graph.ops.values()
            if op.name in self.put or op.name not in self.gone
        ]
        ops = [op.with_inputs(tuple(self.same.get(v, v) for v in op.inputs)) for op in ops]
        results = tuple(self.same.get(v, v) for v in self.graph.results)
        return rebuild(self.graph, ops, results=results)


def configured() -> Norms:
    """The pass on machines with devices; it asks the first one."""
    return Norms(first_device)
