"""Detection of weights that start at zero and can never change.

A set of variables stays zero if the gradient of each is zero whenever all variables of the set are
zero.  For example, two consecutive layers with zero weights keep each other from learning.  To find
the largest such set, assume that all variables that start at zero stay zero, compute which values
of the graph must then be zero, drop the variables whose gradients need not be zero, and repeat.

`RULES` lists under which conditions an op's results are zero; results of other ops count as
nonzero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flow_core.base.errors import SourceLine, ZeroWeightsWarning
from flow_core.ir.graph import Graph, Op, Value
from flow_core.plugins.specs import OpSpec

Alternatives = tuple[tuple[int, ...], ...]
"""Sets of inputs; if all inputs of one of the sets are zero, the op's results are zero."""

ALL = -1
"""Stands for all inputs of an op, as an element of a set of inputs."""

FIRST: Alternatives = ((0,),)
SECOND: Alternatives = ((1,),)
EITHER: Alternatives = ((0,), (1,))
EVERY: Alternatives = ((ALL,),)


def _rows(alternatives: Alternatives, names: str) -> dict[str, Alternatives]:
    return dict.fromkeys(names.split(), alternatives)


RULES: Mapping[str, Alternatives] = {
    **_rows(
        EITHER,
        "batch_matmul broadcast_mul conv1d conv2d conv3d conv_data_grad conv_filter_grad deconv1d "
        "deconv2d deconv3d dropout dropout_grad fused_cast_scale matmul multiply relu_grad "
        "scalar_mul_by_tensor sigmoid_grad softmax_grad",
    ),
    **_rows(
        FIRST,
        "abs asin asinh atan atanh avg_pool_1d avg_pool_2d avg_pool_3d batch_gather broadcast_div "
        "broadcast_like broadcast_to cast cast_like cast_to_mirrored cast_to_static_shape copy "
        "dim_gather elu erf expand_dims expm1 flatten gather gather_nd gelu "
        "hardswish identity l2_normalize leaky_relu log1p max_pool_1d max_pool_2d max_pool_3d "
        "negative pad_grad parallel_cast prelu reduce_max reduce_mean reduce_min reduce_sum "
        "reduce_sum_like reflection_pad2d reflection_pad2d_grad relu reshape reshape_like rint "
        "round scalar_div_by_tensor sign sin sinh slice slice_grad split split_like sqrt square "
        "square_sum squeeze tan tanh transpose "
        "unsorted_batch_segment_sum unsorted_segment_sum unsorted_segment_sum_like upsample",
    ),
    **_rows(SECOND, "dim_scatter_add_like scatter_nd"),
    **_rows(
        EVERY,
        "add_n bias_add broadcast_add broadcast_maximum broadcast_minimum broadcast_sub "
        "cast_from_mirrored concat elementwise_maximum elementwise_minimum "
        "l1_l2_regularize_gradient multi_square_sum scalar_add_by_tensor scalar_sub_by_tensor",
    ),
    "layer_norm": ((0, 1), (1, 2)),
    "matmul_onto": ((0, 2), (1, 2)),
    "normalization": ((3, 4),),
    "scatter_nd_like": ((2,),),
    "slice_update": ((0, 1),),
    "where": ((1, 2),),
    "where_scalar_x": (),
    "zero_like": ((),),
}
"""Rules by op type.  Gradient ops are linear in their incoming gradient; see `alternatives`."""

GRADIENTS = ("dy", "loss_grad")
"""The names that gradient ops give to the input for the incoming gradient."""

CONSTANTS: Mapping[str, tuple[str, Alternatives]] = {
    "constant": ("value", ((),)),
    "constant_like": ("value", ((),)),
    "pad": ("floating_constant_value", FIRST),
    "scalar_add": ("operand", FIRST),
}
"""Ops whose results are zero only if an attribute is zero, too: the attribute, and the sets of
inputs of which one must be zero, besides."""

ONLY_FIRST_RESULT = frozenset({"layer_norm", "normalization"})
"""Ops whose rules hold only for the first result; their other results count as nonzero."""


def alternatives(op: Op, spec: OpSpec) -> Alternatives:
    """Return the sets of inputs that make an op's results zero."""
    known = RULES.get(op.type, ())
    if op.type in CONSTANTS:
        attr, known = CONSTANTS[op.type]
        if op.attrs[attr] != 0:
            known = ()
    if op.type == "scalar_mul":
        known = FIRST if op.attrs["operand"] != 0 else ((),)
    linear = ((i,) for i, name in enumerate(spec.inputs) if name in GRADIENTS)
    return (*known, *(linear if spec.type.endswith("_grad") else ()))


def zero_values(
    graph: Graph, specs: Mapping[str, OpSpec], variables: Iterable[str]
) -> frozenset[Value]:
    """Return the values of a graph that must be zero if the given variables are zero."""
    zero = {Value(name, 0) for name in variables}
    for op in graph.ops.values():
        for inputs in alternatives(op, specs[op.type]):
            chosen = op.inputs if inputs == (ALL,) else _chosen(op, inputs)
            if chosen is not None and all(value in zero for value in chosen):
                count = 1 if op.type in ONLY_FIRST_RESULT else len(graph.types[op.name])
                zero.update(Value(op.name, i) for i in range(count))
                break
    return frozenset(zero)


def _chosen(op: Op, inputs: tuple[int, ...]) -> tuple[Value, ...] | None:
    """Return the inputs of an op with the given indices, None if one of them is absent."""
    if any(i >= len(op.inputs) for i in inputs):
        return None
    return tuple(op.inputs[i] for i in inputs)


def updates(graph: Graph, specs: Mapping[str, OpSpec]) -> dict[str, list[Value]]:
    """Return the gradients that update each variable; none if other ops, too, overwrite it."""
    found: dict[str, list[Value]] = {}
    others: set[str] = set()
    for op in graph.ops.values():
        spec = specs[op.type]
        for index in spec.overwrites(op.attrs):
            if index < len(op.inputs):
                name = op.inputs[index].op
                if index == 0 and spec.inputs[:2] == ("model", "model_diff"):
                    found.setdefault(name, []).append(op.inputs[1])
                else:
                    others.add(name)
    return {name: gradients for name, gradients in found.items() if name not in others}


def stuck(graph: Graph, specs: Mapping[str, OpSpec], zeros: Iterable[str]) -> frozenset[str]:
    """Return those of the given zero variables that stay zero forever."""
    gradients = updates(graph, specs)
    left = frozenset(name for name in zeros if name in gradients)
    while left:
        zero = zero_values(graph, specs, left)
        kept = frozenset(name for name in left if all(g in zero for g in gradients[name]))
        if kept == left:
            break
        left = kept
    return left


def begins_at_zero(op: Op) -> bool:
    """Return whether the initializer of a ``variable`` op produces zeros."""
    kind, *numbers = op.attrs["initializer"]
    return kind != "variance_scaling" and all(number == 0 for number in numbers)


MOST_NAMED = 8
"""The largest number of variables that the warning names."""


def warn_of_zero_weights(
    job: str, line: SourceLine | None, graph: Graph, specs: Mapping[str, OpSpec], session: Any
) -> None:
    """Issue a warning if weights of a train job start at zero and can never change.

    The warning does not name biases and variables with nonzero values.  A job with a single layer
    causes no warning, because zero weights of such a job are optimal if their gradient is zero.
    """
    weights = [name for name in updates(graph, specs) if len(graph.types[name][0].shape) > 1]
    zeros = [op.name for op in graph.of_type("variable") if begins_at_zero(op)]
    if not {*weights} & {*zeros}:
        return
    found = stuck(graph, specs, [name for name in zeros if session.is_still_zero(name)])
    names = [name for name in graph.ops if name in found and name in weights]
    if names and len(weights) > 1:
        some = [f"{name!r} at {graph.lines.get(name)}" for name in names[:MOST_NAMED]]
        more = [f"and {len(names) - len(some)} more"] if len(names) > len(some) else []
        session.warn(_text(job, line, "\n    ".join([*some, *more])), ZeroWeightsWarning, line)


def _text(job: str, line: SourceLine | None, names: str) -> str:
    return (
        f"job {job!r} (at {line}) never changes these weights: they begin at zero, and their "
        f"gradients are zero as long as they are\n    {names}\n"
        "  next:    begin with random numbers: kernel_initializer="
        "flow.glorot_uniform_initializer() of a layer, or initializer= of flow.get_variable; "
        "layers begin at zero if nothing else is said"
    )
