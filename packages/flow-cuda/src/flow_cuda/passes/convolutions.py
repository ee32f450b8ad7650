"""Replace convolutions and their gradients by ops of cuDNN if the library has a plan.

A convolution is fused with the bias addition, the addition of a tensor and the relu that follow, or
with some of these ops, if one plan computes them all. The pass chooses the plan; the plan's name
and workspace size become attributes of the op. Convolutions without a plan do not change and run on
this package's own kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flow_core.authoring.pass_api import PassContext, Rewriter, like_op, option
from flow_core.authoring.specs import Graph, KernelQuery, Op, TensorType, Value
from flow_cuda.cudnn.pass_base import CudnnPass, Form, planned
from flow_cuda.cudnn.plans import DnnError, DnnPlans
from flow_cuda.cudnn.problems import ALGORITHMS, Search
from flow_cuda.device.config import allows_tf32
from flow_cuda.kernels.dnn import conv_problem

FORCED = {
    kind: f"cudnn_conv_force_{name}_algo"
    for kind, name in (("forward", "fwd"), ("data_grad", "bwd_data"), ("filter_grad", "bwd_filter"))
}
"""For each kind of problem, the setting that forces a family of plans."""
SHARED = (
    "data_format", "kernel_size", "strides", "padding_before", "dilation_rate", "groups"
)  # fmt: skip
HALF = {"float16", "bfloat16"}


@dataclass(frozen=True)
class Convolutions(CudnnPass):
    """The pass that replaces convolutions by ops of cuDNN."""

    heuristic: bool = option(
        True,
        "whether to estimate the fastest plan or to measure",
        "cudnn_conv_heuristic_search_algo",
    )
    pseudo_half: bool = option(
        True, "whether float16 is summed in float32", "cudnn_conv_enable_pseudo_half"
    )
    fwd: int | None = option(None, "the only family of forward plans", FORCED["forward"])
    bwd_data: int | None = option(None, "the same for gradients of data", FORCED["data_grad"])
    bwd_filter: int | None = option(
        None, "the same for gradients of weights", FORCED["filter_grad"]
    )
    name: str = "cudnn_convolutions"

    def find(self, rewriter: Rewriter) -> list[Op]:
        return self.of(rewriter.graph, *REWRITES)

    def rewrite(
        self, rewriter: Rewriter, found: Sequence[Op], plans: DnnPlans, context: PassContext
    ) -> None:
        """Replace convolutions by ops of cuDNN."""
        planner = _Planner(plans, self, allows_tf32(context.settings))
        for op in found:
            planner.rewrite(rewriter, op)


@dataclass(frozen=True, slots=True)
class _Planner:
    """Rewriter of single convolutions."""

    plans: DnnPlans
    options: Convolutions
    tf32: bool  # whether float32 may be rounded to TF32

    def rewrite(self, rewriter: Rewriter, op: Op) -> None:
        """Replace an op by the first fused form for which cuDNN has a plan."""
        graph = rewriter.graph
        types = (*graph.input_types(op), *graph.types[op.name])
        if not all(t.size for t in types) or len({t.dtype for t in types}) > 1:
            return
        refused: list[Op] = []
        for last, between, new in REWRITES[op.type](rewriter, op):
            made = self._planned(graph, new, graph.types[last.name])
            if made is not None:
                rewriter.replace(last, made)
                for dropped in between:
                    rewriter.drop(dropped)
                return
            refused.append(new)
        if refused:
            self._check_forced(graph, op, refused[-1])

    def _planned(self, graph: Graph, new: Op, types: tuple[TensorType, ...]) -> Op | None:
        """Return an op with its chosen plan, or None if cuDNN has no plan."""
        inputs = graph.input_types(new)
        if len({t.dtype for t in inputs}) > 1:
            return None  # the bias has another type
        compute = self._compute(types[0].dtype.name)
        new = like_op(new, new.type, {**new.attrs, "compute": compute}, new.inputs)
        problem = conv_problem(KernelQuery(new.type, new.attrs, inputs, types))
        choice = self.plans.choose(problem, self._search(problem.kind))
        return None if choice is None else planned(new, choice)

    def _compute(self, dtype: str) -> str:
        pseudo = dtype != "float16" or self.options.pseudo_half
        return "float32" if dtype in HALF and pseudo else dtype

    def _search(self, kind: str) -> Search:
        forced = self._forced(kind)
        return self.options.search(
            measured=not self.options.heuristic,
            tf32=self.tf32,
            family="" if forced is None else ALGORITHMS[kind][forced],
        )

    def _forced(self, kind: str) -> int | None:
        options = self.options
        return {
            "forward": options.fwd,
            "data_grad": options.bwd_data,
            "filter_grad": options.bwd_filter,
        }[kind]

    def _check_forced(self, graph: Graph, op: Op, new: Op) -> None:
        """Check that the program does not force an algorithm for which cuDNN has no plan.

        Raises `DnnError` if the program forces an algorithm for which cuDNN has no plan.
        """
        kind = NEW[new.type]
        number = self._forced(kind)
        if number is None:
            return
        name = FORCED[kind]
        raise DnnError(
            f"choosing a plan of cuDNN for {op.type} {op.name!r}",
            at=graph.lines.get(op.name),
            found=f"{name}={number}, which asks for {ALGORITHMS[kind][number]!r}; cuDNN "
            "does not support this algorithm for these sizes and types",
            allowed=f"another number, or no {name}",
        )


def _window(op: Op) -> dict[str, Any]:
    return {name: op.attrs[name] for name in SHARED}


def _forward(rewriter: Rewriter, op: Op) -> Iterator[Form]:
    """Yield the forms fused with the bias, addition and relu that follow, largest first."""
    attrs = _window(op) | {"padding_after": op.attrs["padding_after"] or op.attrs["padding_before"]}

    def form(last: Op, between: tuple[Op, ...], inputs: tuple[Value, ...], relu: bool) -> Form:
        activation = "relu" if relu else ""
        return (
            last,
            between,
            like_op(last, "cudnn_conv", {**attrs, "activation": activation}, inputs),
        )

    add = rewriter.only_reader(op.output(), "bias_add")
    if add is not None and _adds_to_channels(rewriter.graph, add, op):
        inputs = (*op.inputs, add.inputs[1])
        for total, addend in _sums(rewriter, add.output()):
            relu = rewriter.only_reader(total.output(), "relu")
            if relu is not None:
                yield form(relu, (op, add, total), (*inputs, addend), True)
            yield form(total, (op, add), (*inputs, addend), False)
        relu = rewriter.only_reader(add.output(), "relu")
        if relu is not None:
            yield form(relu, (op, add), inputs, True)
        yield form(add, (op,), inputs, False)
    yield form(op, (), op.inputs, False)


def _sums(rewriter: Rewriter, value: Value) -> Iterator[tuple[Op, Value]]:
    """Yield additions of a value and another one of its type, as at the end of a residual block."""
    total = rewriter.only_reader(value, "broadcast_add")
    if total is not None:
        type_ = rewriter.graph.type_of
        same = (v for v in total.inputs if v != value and type_(v) == type_(value))
        yield from ((total, other) for other in same)


def _adds_to_channels(graph: Graph, add: Op, conv: Op) -> bool:
    rank = len(graph.type_of(conv.output()).shape)
    channel = 1 if conv.attrs["data_format"] == "channels_first" else rank - 1
    return add.inputs[0] == conv.output() and add.attrs["axis"] % rank == channel


def _space(type_: TensorType, op: Op) -> tuple[int, ...]:
    first = op.attrs["data_format"] == "channels_first"
    return type_.shape[2:] if first else type_.shape[1:-1]


def _data_grad(rewriter: Rewriter, op: Op) -> Iterator[Form]:
    """Yield the form of an input gradient or of a transposed convolution; both compute the same."""
    space = _space(rewriter.graph.type_of(op.output()), op)
    attrs = {**_window(op), "space": space}
    yield op, (), like_op(op, "cudnn_conv_data_grad", attrs, op.inputs[:2])


def _filter_grad(rewriter: Rewriter, op: Op) -> Iterator[Form]:
    yield op, (), like_op(op, "cudnn_conv_filter_grad", _window(op), op.inputs)


DIMS = (1, 2, 3)
REWRITES: Mapping[str, Callable[[Rewriter, Op], Iterator[Form]]] = {
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
    """Return the pass, which takes plans from the first device."""
    return Convolutions(first_device)


def first_device() -> DnnPlans | None:
    """Return the cuDNN planner of device 0; None if cuDNN is not available."""
    from flow_cuda.driver.cupy_hardware import dnn_plans

    return dnn_plans(0)
