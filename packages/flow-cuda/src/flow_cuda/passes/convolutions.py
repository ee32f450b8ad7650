"""Convolutions and their gradients become ops of cuDNN, wherever it has a plan for them.

A convolution takes bias and relu along where one plan does all of it, or only the bias.  The plan
is chosen here: its name and the bytes of its workspace are attributes of the op, so that
the program's plan has both.  What the library has no plan for stays as it is, for kernels of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flow_core.ir import Attrs, Graph, Op, TensorType, Value, rebuild
from flow_core.plugins.specs import KernelQuery
from flow_cuda.cudnn import DnnError, DnnPlans
from flow_cuda.dnn import ALGORITHMS, Search
from flow_cuda.kernels.dnn import conv_problem

KINDS = {"forward": "fwd", "data_grad": "bwd_data", "filter_grad": "bwd_filter"}
SHARED = (
    "data_format", "kernel_size", "strides", "padding_before", "dilation_rate", "groups"
)  # fmt: skip
HALF = {"float16", "bfloat16"}


@dataclass(frozen=True)
class Convolutions:
    """The pass.

    Attributes:
        plans: gives what chooses plans; None where there is no cuDNN.
        device: the device type whose ops it replaces.
    """

    plans: Callable[[], DnnPlans | None]
    device: str = "gpu"
    name: str = "cudnn_convolutions"

    def apply(self, graph: Graph, context: Any) -> Graph:
        """The graph with ops of cuDNN."""
        wishes: Mapping[str, Any] = context.options.get("cudnn", {})
        found = [
            op
            for type_ in REWRITES
            for op in graph.of_type(type_)
            if op.placement.device_type == self.device
        ]
        plans = self.plans() if found and wishes.get("enable_cudnn", True) else None
        if plans is None:
            return graph
        asked = context.options.get("kernels", {})
        tf32 = asked.get("enable_tensor_float_32_compute") is True
        work = _Work(graph, plans, wishes, tf32, graph.consumers())
        for op in found:
            work.rewrite(op)
        return work.finish()


@dataclass(slots=True)
class _Work:
    """The graph under change.

    Attributes:
        graph: as it was.
        plans: chooses plans.
        wishes: the job's settings, by OneFlow's names.
        tf32: whether float32 may be rounded to 10 bits of mantissa.
        readers: ops that read each value.
        put: new ops, by the name of the op in whose place they stand.
        gone: names of dropped ops.
    """

    graph: Graph
    plans: DnnPlans
    wishes: Mapping[str, Any]
    tf32: bool
    readers: Mapping[Value, list[Op]]
    put: dict[str, Op] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    def rewrite(self, op: Op) -> None:
        """Puts the first form that the library has a plan for in the place of an op."""
        refused: list[Op] = []
        for last, between, new in REWRITES[op.type](self, op):
            planned = self._planned(op, new, self.graph.types[last.name])
            if planned is not None:
                self.put[last.name] = planned
                self.gone |= {x.name for x in between}
                return
            refused.append(new)
        if refused:
            self._check_forced(op, refused[-1])

    def _planned(self, op: Op, new: Op, types: tuple[TensorType, ...]) -> Op | None:
        """An op with the plan that was chosen for it."""
        inputs = tuple(map(self.graph.type_of, new.inputs))
        if not all(t.size for t in (*inputs, *types)) or len({t.dtype for t in inputs}) > 1:
            return None
        new = _with(new, compute=self._compute(types[0].dtype.name))
        problem = conv_problem(KernelQuery(new.type, new.attrs, inputs, types))
        choice = self.plans.choose(problem, self._search(problem.kind))
        if choice is None:
            return None
        return _with(new, plan=choice.plan, workspace=choice.workspace)

    def _compute(self, dtype: str) -> str:
        pseudo = dtype != "float16" or self.wishes.get("cudnn_conv_enable_pseudo_half", True)
        return "float32" if dtype in HALF and pseudo else dtype

    def _search(self, kind: str) -> Search:
        return Search(
            measured=not self.wishes.get("cudnn_conv_heuristic_search_algo", True),
            deterministic=bool(self.wishes.get("cudnn_conv_use_deterministic_algo_only", False)),
            tf32=self.tf32,
            limit=int(self.wishes.get("cudnn_buf_limit_mbyte", 1024)) << 20,
            family="" if self._forced(kind) is None else ALGORITHMS[kind][self._forced(kind)],
        )

    def _forced(self, kind: str) -> Any:
        return self.wishes.get(f"cudnn_conv_force_{KINDS[kind]}_algo")

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
        """The op of a type that alone reads a value."""
        found = self.readers.get(value, [])
        alone = len(found) == 1 and found[0].type == type_ and value not in self.graph.results
        return found[0] if alone else None

    def finish(self) -> Graph:
        """The new graph, in the old order."""
        if not self.put:
            return self.graph
        ops = [self.put.get(op.name, op) for op in self.graph.ops.values()]
        return rebuild(self.graph, [op for op in ops if op.name not in self.gone])


Form = tuple[Op, tuple[Op, ...], Op]
"""The op in whose place the new one stands, the ops that go, and the new one."""


def _with(op: Op, **attrs: Any) -> Op:
    changed = Attrs({**op.attrs, **attrs})
    return Op(op.name, op.type, op.inputs, changed, op.placement, control=op.control)


def _new(op: Op, type_: str, inputs: tuple[Value, ...], **attrs: Any) -> Op:
    return Op(op.name, type_, inputs, Attrs(attrs), op.placement, control=op.control)


def _window(op: Op) -> dict[str, Any]:
    return {name: op.attrs[name] for name in SHARED}


def _forward(work: _Work, op: Op) -> Iterator[Form]:
    """With bias and relu, with bias, alone."""
    attrs = _window(op) | {"padding_after": op.attrs["padding_after"] or op.attrs["padding_before"]}
    add = work.only(op.output(), "bias_add")
    if add is not None and _adds_to_channels(work.graph, add, op):
        inputs = (*op.inputs, add.inputs[1])
        relu = work.only(add.output(), "relu")
        if relu is not None:
            yield (
                relu,
                (op, add),
                _new(relu, "cudnn_conv", inputs, activation="relu", **attrs),
            )
        yield add, (op,), _new(add, "cudnn_conv", inputs, activation="", **attrs)
    yield op, (), _new(op, "cudnn_conv", op.inputs, activation="", **attrs)


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
    yield op, (), _new(op, "cudnn_conv_data_grad", op.inputs[:2], space=space, **_window(op))


def _filter_grad(work: _Work, op: Op) -> Iterator[Form]:
    yield op, (), _new(op, "cudnn_conv_filter_grad", op.inputs, **_window(op))


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
    from flow_cuda.cupy_hardware import dnn_plans

    return dnn_plans(0)
