"""Convolutions and their gradients become ops of cuDNN, wherever it has a plan for them.

A convolution takes bias, a sum and relu along where one plan does all of it, or a part of it.  The
plan is chosen here: its name and the bytes of its workspace are attributes of the op, so that
the program's plan has both.  What the library has no plan for stays as it is, for kernels of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flow_core.ir.graph import Graph, Op, TensorType, Value, rebuild
from flow_core.plugins.specs import KernelQuery
from flow_cuda.cudnn.pass_base import (
    CudnnPass,
    Form,
    new_op,
    only_reader,
    planned,
    search,
    with_attrs,
)
from flow_cuda.cudnn.plans import DnnError, DnnPlans
from flow_cuda.cudnn.problems import ALGORITHMS, Search
from flow_cuda.device.config import allows_tf32
from flow_cuda.kernels.dnn import conv_problem

KINDS = {"forward": "fwd", "data_grad": "bwd_data", "filter_grad": "bwd_filter"}
SHARED = (
    "data_format", "kernel_size", "strides", "padding_before", "dilation_rate", "groups"
)  # fmt: skip
HALF = {"float16", "bfloat16"}


@dataclass(frozen=True)
class Convolutions(CudnnPass):
    """The pass."""

    name: str = "cudnn_convolutions"

    def find(self, graph: Graph) -> list[Op]:
        """Convolutions and their gradients."""
        return self.of(graph, *REWRITES)

    def rewritten(
        self, graph: Graph, found: Sequence[Op], plans: DnnPlans, options: Mapping[str, Any]
    ) -> Graph:
        """The graph with ops of cuDNN."""
        work = _Work(graph, plans, options, graph.consumers())
        for op in found:
            work.rewrite(op)
        return work.finish()


@dataclass(slots=True)
class _Work:
    """The graph under change.

    Attributes:
        graph: as it was.
        plans: chooses plans.
        options: the job's settings.
        readers: ops that read each value.
        put: new ops, by the name of the op in whose place they stand.
        gone: names of dropped ops.
    """

    graph: Graph
    plans: DnnPlans
    options: Mapping[str, Any]
    readers: Mapping[Value, list[Op]]
    put: dict[str, Op] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    def rewrite(self, op: Op) -> None:
        """Puts the first form that the library has a plan for in the place of an op."""
        types = (*map(self.graph.type_of, op.inputs), *self.graph.types[op.name])
        if not all(t.size for t in types) or len({t.dtype for t in types}) > 1:
            return
        refused: list[Op] = []
        for last, between, new in REWRITES[op.type](self, op):
            made = self._planned(new, self.graph.types[last.name])
            if made is not None:
                self.put[last.name] = made
                self.gone |= {x.name for x in between}
                return
            refused.append(new)
        if refused:
            self._check_forced(op, refused[-1])

    def _planned(self, new: Op, types: tuple[TensorType, ...]) -> Op | None:
        """An op with the plan that was chosen for it."""
        inputs = tuple(map(self.graph.type_of, new.inputs))
        if len({t.dtype for t in inputs}) > 1:
            return None  # a bias of another type
        new = with_attrs(new, compute=self._compute(types[0].dtype.name))
        problem = conv_problem(KernelQuery(new.type, new.attrs, inputs, types))
        choice = self.plans.choose(problem, self._search(problem.kind))
        return None if choice is None else planned(new, choice)

    @property
    def _wishes(self) -> Mapping[str, Any]:
        wishes: Mapping[str, Any] = self.options.get("cudnn", {})
        return wishes

    def _compute(self, dtype: str) -> str:
        pseudo = dtype != "float16" or self._wishes.get("cudnn_conv_enable_pseudo_half", True)
        return "float32" if dtype in HALF and pseudo else dtype

    def _search(self, kind: str) -> Search:
        return search(
            self.options,
            measured=not self._wishes.get("cudnn_conv_heuristic_search_algo", True),
            tf32=allows_tf32(self.options.get("kernels", {})),
            family="" if self._forced(kind) is None else ALGORITHMS[kind][self._forced(kind)],
        )

    def _forced(self, kind: str) -> Any:
        return self._wishes.get(f"cudnn_conv_force_{KINDS[kind]}_algo")

    def _check_forced(self, op: Op, new: Op) -> None:
        """What a program insists on must be there.

        Raises:
            DnnError: it is not.
        """
        kind = NEW[new.type]
        number = self._forced(kind)
        if number is None:
            return
        name = f"cudnn_conv_force_{KINDS[kind]}_algo"
        raise DnnError(
            f"choosing a plan of cuDNN for {op.type} {op.name!r}",
            at=self.graph.lines.get(op.name),
            found=f"{name}={number}, which asks for {ALGORITHMS[kind][number]!r}: there is none "
            "for these sizes and types",
            allowed=f"another number, or no {name}",
        )

    def only(self, value: Value, type_: str) -> Op | None:
        """The op of a type that alone reads a value, and is still there."""
        found = only_reader(self.graph, self.readers, value, type_)
        return None if found is None or found.name in {*self.gone, *self.put} else found

    def finish(self) -> Graph:
        """The new graph, in the old order."""
        if not self.put:
            return self.graph
        ops = [self.put.get(op.name, op) for op in self.graph.ops.values()]
        return rebuild(self.graph, [op for op in ops if op.name not in self.gone])


def _window(op: Op) -> dict[str, Any]:
    return {name: op.attrs[name] for name in SHARED}


def _forward(work: _Work, op: Op) -> Iterator[Form]:
    """With bias, sum and relu, as far as they follow each other; then with less of them."""
    attrs = _window(op) | {"padding_after": op.attrs["padding_after"] or op.attrs["padding_before"]}

    def form(last: Op, between: tuple[Op, ...], inputs: tuple[Value, ...], relu: bool) -> Form:
        activation = "relu" if relu else ""
        return last, between, new_op(last, "cudnn_conv", inputs, activation=activation, **attrs)

    add = work.only(op.output(), "bias_add")
    if add is not None and _adds_to_channels(work.graph, add, op):
        inputs = (*op.inputs, add.inputs[1])
        for total, addend in _sums(work, add.output()):
            relu = work.only(total.output(), "relu")
            if relu is not None:
                yield form(relu, (op, add, total), (*inputs, addend), True)
            yield form(total, (op, add), (*inputs, addend), False)
        relu = work.only(add.output(), "relu")
        if relu is not None:
            yield form(relu, (op, add), inputs, True)
        yield form(add, (op,), inputs, False)
    yield form(op, (), op.inputs, False)


def _sums(work: _Work, value: Value) -> Iterator[tuple[Op, Value]]:
    """The sum of a value and another one of its type, as where a residual block ends."""
    total = work.only(value, "broadcast_add")
    if total is not None:
        type_ = work.graph.type_of
        same = (v for v in total.inputs if v != value and type_(v) == type_(value))
        yield from ((total, other) for other in same)


def _adds_to_channels(graph: Graph, add: Op, conv: Op) -> bool:
    rank = len(graph.type_of(conv.output()).shape)
    channel = 1 if conv.attrs["data_format"] == "channels_first" else rank - 1
    return add.inputs[0] == conv.output() and add.attrs["axis"] % rank == channel


def _space(type_: TensorType, op: Op) -> tuple[int, ...]:
    first = op.attrs["data_format"] == "channels_first"
    return type_.shape[2:] if first else type_.shape[1:-1]


def _data_grad(work: _Work, op: Op) -> Iterator[Form]:
    """A gradient by the input or a transposed convolution: they compute the same."""
    space = _space(work.graph.type_of(op.output()), op)
    yield op, (), new_op(op, "cudnn_conv_data_grad", op.inputs[:2], space=space, **_window(op))


def _filter_grad(work: _Work, op: Op) -> Iterator[Form]:
    yield op, (), new_op(op, "cudnn_conv_filter_grad", op.inputs, **_window(op))


DIMS = (1, 2, 3)
REWRITES: Mapping[str, Callable[[_Work, Op], Iterator[Form]]] = {
    **{f"conv{d}d": _forward for d in DIMS},
    **{f"deconv{d}d": _data_grad for d in DIMS},
    "conv_data_grad": _data_grad,
    "conv_filter_grad": _filter_grad,
}
NEW = {
    "cudnn_conv": "forward", "cudnn_conv_data_grad": "data_grad",
    "cudnn_conv_filter_grad": "filter_grad",
}  # fmt: skip


def configured() -> Convolutions:
    """The pass on machines with devices; it asks the first one."""
    return Convolutions(first_device)


def first_device() -> DnnPlans | None:
    """What chooses plans: the device of number 0."""
    from flow_cuda.driver.cupy_hardware import dnn_plans

    return dnn_plans(0)
