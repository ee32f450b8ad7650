"""Replace chains of ops by fused ops that one primitive computes; each function is one rewrite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from flow_core.authoring.pass_api import KernelRewriter, PassContext, like_op, option
from flow_core.authoring.specs import AttrValue, Graph, KernelSpec, Op, Value, tensor_type
from flow_core.base.dtypes import float32, uint8
from flow_onednn import binding
from flow_onednn.kernels.norm import mask_bytes
from flow_onednn.kernels.pool import places_bytes
from flow_onednn.kernels.upcast import computed, is_half, upcast_type
from flow_onednn.recipes import BY_OP, Problem, problem

Rewrite = Callable[[KernelRewriter, Op], bool]
"""A function that rewrites an op if its pattern matches, and returns whether it did."""


@dataclass(frozen=True)
class Fusions:
    """The pass that fuses ops for this backend."""

    kernels: Mapping[str, Sequence[KernelSpec]]  # the kernels of this backend, by op type
    devices: tuple[str, ...] = ("cpu",)  # device types whose ops run on the CPU
    math_mode: str = option("float32", "the type to which products may round float32", "math_mode")
    name: str = "onednn_fusions"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph with fused ops."""
        for type_, rewrite in REWRITES:
            graph = self._rewrite(graph, type_, rewrite)
        for type_ in (*PACKING, "batch_matmul") if self.math_mode in binding.MATH else ():
            graph = self._rewrite(graph, type_, partial(rounded, self.math_mode))
        return graph

    def _rewrite(self, graph: Graph, type_: str, rewrite: Rewrite) -> Graph:
        """Apply one rewrite to all ops of a type."""
        found = [op for op in graph.of_type(type_) if op.placement.device_type in self.devices]
        if not found:
            return graph
        rewriter = KernelRewriter(graph, self.kernels)
        for op in found:
            if rewriter.is_untouched(op):
                rewrite(rewriter, op)
        return rewriter.finish()


def _drop(rewriter: KernelRewriter, op: Op, replacement: Value) -> None:
    """Drop an op with one output and replace that output by another value."""
    rewriter.drop(op)
    rewriter.replace_value(op.output(), replacement)


def relu_grad_before_pool_grad(rewriter: KernelRewriter, grad: Op) -> bool:
    """Apply relu's gradient to the smaller tensor, before the gradient of max pooling.

    relu'(x) . pool'(x, y, dy) = pool'(x, y, relu'(y) . dy), because the maximum of a window is
    positive if and only if the element that it comes from is positive.
    """
    x, y, dy = grad.inputs
    mask = rewriter.only_reader(grad.output(), "relu_grad")
    if mask is None or mask.inputs != (x, grad.output()):
        return False
    name = f"{mask.name}/pooled"
    small = Op(name, "relu_grad", (y, dy), mask.attrs, mask.placement)
    rewriter.before(grad).add(small, (rewriter.type_of(dy),))
    late = Op(mask.name, grad.type, (x, y, small.output()), grad.attrs, grad.placement)
    rewriter.replace(mask, late, (rewriter.type_of(x),))
    rewriter.drop(grad)
    return True


def conv_with_bias(rewriter: KernelRewriter, conv: Op) -> bool:
    """Fuse a convolution with bias_add and relu."""
    return _with_bias(rewriter, conv, {**conv.attrs}, ("relu",))


def matmul_with_bias(rewriter: KernelRewriter, op: Op) -> bool:
    """Fuse a matrix product with bias_add and relu; half results also with gelu.

    Of half results, gelu as an op of its own mostly converts: it takes twice as long as in the
    product, which has its results in float32.
    """
    half = is_half(rewriter.type_of(op.output()))
    attrs = {**op.attrs, "activation": ""}
    return _with_bias(rewriter, op, attrs, ("relu", "gelu") if half else ("relu",))


PLAIN = ("l1", "l2", "weight_decay")
"""Attributes that are 0 in updates whose change of the variable depends on the gradient only."""


def matmul_with_update(rewriter: KernelRewriter, op: Op) -> bool:
    """Accumulate the gradient of a weight directly into the weight if only SGD reads it."""
    update = rewriter.only_reader(op.output(), "sgd_update")
    if update is None or update.inputs[1] != op.output():
        return False
    model, _, rate, *factor = update.inputs
    if any(update.attrs[k] for k in PLAIN) or model in op.inputs or len(op.inputs) != 2:
        return False
    if any(not rewriter.type_of(v).dtype.is_floating for v in factor):
        return False  # skip_if
    attrs: dict[str, AttrValue] = {k: op.attrs[k] for k in ("transpose_a", "transpose_b")}
    attrs["scale"] = update.attrs["scale"] * op.attrs["alpha"]
    new = like_op(update, "onednn_matmul_sgd", attrs, (model, *op.inputs, rate, *factor))
    if not rewriter.replace_if_accepted(update, new, ()):
        return False
    rewriter.drop(op)
    return True


_GRADS = ("onednn_conv_data_grad", "onednn_conv_filter_grad")
_FUSED = {
    "matmul": "onednn_matmul", "batch_matmul": "onednn_matmul", "onednn_conv": "onednn_conv",
}  # fmt: skip


def _with_bias(
    rewriter: KernelRewriter, op: Op, attrs: dict[str, AttrValue], activations: Sequence[str]
) -> bool:
    add = rewriter.only_reader(op.output(), "bias_add")
    rank = len(rewriter.type_of(op.output()).shape)
    if add is None or len(op.inputs) != 2 or add.inputs[0] != op.output():
        return False
    if add.attrs["axis"] % rank != rank - 1:
        return False
    last = add
    for name in activations:
        act = rewriter.only_reader(add.output(), name)
        if act is not None:
            attrs["activation"], last = name, act
    type_ = rewriter.type_of(last.output())
    new = like_op(last, _FUSED[op.type], attrs, (*op.inputs, add.inputs[1]))
    if not rewriter.replace_if_accepted(last, new, (type_,)):
        return False
    for gone in (op, add):
        if gone is not last:
            rewriter.drop(gone)
    return True


def filter_and_bias_grad(rewriter: KernelRewriter, grad: Op) -> bool:
    """Compute the gradients of weights and bias in one op, so that dy is read once."""
    dy, axes = grad.inputs[0], (0, 1, 2)
    sums = [s for s in rewriter.readers(dy, "reduce_sum") if s.attrs["axis"] == axes]
    if len(sums) != 1 or sums[0].attrs["keepdims"]:
        return False
    (total,) = sums
    types = (*rewriter.types[grad.name], rewriter.type_of(total.output()))
    new = like_op(grad, grad.type, grad.attrs.with_(bias=True), grad.inputs)
    if not rewriter.is_untouched(total) or not rewriter.replace_if_accepted(grad, new, types):
        return False
    if rewriter.position[total.name] < rewriter.position[grad.name]:
        rewriter.before(total).move(new)
    _drop(rewriter, total, new.output(1))
    return True


def pool_with_places(rewriter: KernelRewriter, pool: Op) -> bool:
    """Replace max pooling by an op that also saves the maxima's positions for the gradient."""
    x, y = pool.inputs[0], pool.output()
    grads = [g for g in rewriter.readers(y, "max_pool_2d_grad") if g.inputs[:2] == (x, y)]
    shapes = rewriter.type_of(x).shape, rewriter.type_of(y).shape
    if len(grads) != 1 or pool.attrs["data_format"] != "channels_last":
        return False
    size = places_bytes(dict(pool.attrs), *shapes)
    if size is None:
        return False
    (grad,) = grads
    attrs = {**pool.attrs, "space": shapes[1][1:3], "places": size}
    types = (rewriter.type_of(y), tensor_type((size,), uint8))
    places = rewriter.replace(pool, like_op(pool, "onednn_max_pool", attrs, (x,)), types).output(1)
    back = {**pool.attrs, "space": shapes[0][1:3]}
    rewriter.replace(grad, like_op(grad, "onednn_max_pool_grad", back, (grad.inputs[2], places)))
    return True


def norm_add_relu(rewriter: KernelRewriter, norm: Op) -> bool:
    """Fuse batch normalization with a sum and relu, as at the end of a residual block."""
    x, y = norm.inputs[0], norm.output()
    image = rewriter.type_of(x)
    add = rewriter.only_reader(y, "broadcast_add")
    relu = rewriter.only_reader(add.output(), "relu") if add is not None else None
    last = norm.attrs["axis"] % len(image.shape) == len(image.shape) - 1
    if add is None or relu is None or not norm.attrs["training"] or not last:
        return False
    others = [v for v in add.inputs if v != y]
    if len(others) != 1 or rewriter.type_of(others[0]) != image:
        return False
    attrs = {k: norm.attrs[k] for k in ("epsilon", "momentum")}
    new = like_op(norm, "onednn_norm_add_relu", attrs, (*norm.inputs, *others))
    if not rewriter.replace_if_accepted(norm, new):
        return False
    rewriter.before(relu).move(new)
    rewriter.drop(add)
    _drop(rewriter, relu, y)
    return True


def norm_with_relu(rewriter: KernelRewriter, norm: Op) -> bool:
    """Fuse batch normalization with relu, and their gradients."""
    x, y = norm.inputs[0], norm.output()
    relu = rewriter.only_reader(y, "relu")
    if relu is None or not norm.attrs["training"]:
        return False
    attrs = {k: norm.attrs[k] for k in ("epsilon", "momentum")}
    image = rewriter.type_of(x)
    size = mask_bytes(Problem("onednn_norm_relu", (image,), (image,), tuple(attrs.items())))
    if size is None:
        return False
    attrs["mask"] = size
    types = (*rewriter.types[norm.name], tensor_type((size,), uint8))
    new = like_op(norm, "onednn_norm_relu", attrs, norm.inputs)
    if norm.attrs["axis"] % len(image.shape) != len(image.shape) - 1:
        return False
    if not rewriter.replace_if_accepted(norm, new, types):
        return False
    _drop(rewriter, relu, y)
    _fuse_gradient(rewriter, norm, relu)
    return True


def _fuse_gradient(rewriter: KernelRewriter, norm: Op, relu: Op) -> None:
    """Fuse relu's gradient with the normalization's gradient if no other op reads the former."""
    for mask in rewriter.readers(relu.output(), "relu_grad"):
        grad = rewriter.only_reader(mask.output(), "normalization_grad")
        if mask.inputs[0] != relu.output() or grad is None:
            continue
        x, dy, mean, inverse, gamma = grad.inputs
        if dy != mask.output() or mean != Value(norm.name, 1):
            continue
        inputs = (x, mask.inputs[1], mean, inverse, gamma, Value(norm.name, 3))
        attrs = {"epsilon": grad.attrs["epsilon"]}
        new = like_op(grad, "onednn_norm_relu_grad", attrs, inputs)
        if rewriter.replace_if_accepted(grad, new):
            rewriter.drop(mask)


_ADAM = ("beta1", "beta2", "epsilon")
SPARSE = {
    "sgd_update": ("onednn_sparse_sgd", 0, ()),
    "adam_update": ("onednn_sparse_adam", 2, _ADAM),
}
"""For each update op: its sparse form, the number of states, and the attributes to copy."""


def sparse_update(rewriter: KernelRewriter, total: Op) -> bool:
    """Update a table from its gradient's rows, without a dense gradient as large as the table."""
    update = rewriter.only_reader(total.output(), *SPARSE)
    if update is None or update.inputs[1] != total.output():
        return False
    if any(update.attrs[k] for k in PLAIN):
        return False
    sparse, states, extra = SPARSE[update.type]
    model, _, rate, *more = update.inputs
    if any(not rewriter.type_of(v).dtype.is_floating for v in more[states:]):
        return False  # skip_if
    data, index = total.inputs
    attrs = {k: total.attrs[k] for k in ("axis", "first")}
    attrs |= {k: update.attrs[k] for k in ("scale", *extra)}
    new = like_op(update, sparse, attrs, (model, index, data, rate, *more))
    if not rewriter.replace_if_accepted(update, new, ()):
        return False
    rewriter.drop(total)
    return True


def sum_into_rows(rewriter: KernelRewriter, total: Op) -> bool:
    """Add the rows of an embedding's gradient to a dense gradient in place."""
    add = rewriter.only_reader(total.output(), "add_n")
    if add is None or len(add.inputs) != 2 or add.inputs[0] == add.inputs[1]:
        return False
    (base,) = (v for v in add.inputs if v != total.output())
    data, index = total.inputs
    attrs = {"axis": total.attrs["axis"], "first": total.attrs["first"]}
    new = like_op(add, "onednn_add_to_rows", attrs, (base, index, data))
    if not rewriter.replace_if_accepted(add, new):
        return False
    rewriter.drop(total)
    return True


PAGE = 4096
"""Bytes between addresses that share a set of a core's cache."""


def not_rounded(rewriter: KernelRewriter, op: Op) -> bool:
    """Replace a half product that is only read as float32 by one whose sums are not rounded.

    Gradients of weights are such products: updates read them. A gradient of filters is reordered,
    row by row, to the layout of the variable; if rows of float32 filters are whole pages, this
    takes nine times as long (2048 x 1024: 7.4 ms, rounded 0.86 ms and a cast of 0.5 ms).
    """
    types = rewriter.types[op.name]
    found = [rewriter.only_reader(op.output(i), "cast") for i in range(len(types))]
    casts = [cast for cast in found if cast is not None and cast.attrs["dtype"] == float32.name]
    if len(casts) < len(types) or not all(map(is_half, types)):
        return False
    row = prod(types[0].shape[1:]) * float32.itemsize
    if op.type != "matmul" and row % PAGE == 0:
        return False
    attrs: dict[str, AttrValue] = {**op.attrs, "wide": True}
    if op.type == "matmul":
        attrs["activation"] = ""
    new = like_op(op, _FUSED.get(op.type, op.type), attrs, op.inputs)
    if not rewriter.replace_if_accepted(op, new, tuple(map(upcast_type, types))):
        return False
    for i, cast in enumerate(casts):
        _drop(rewriter, cast, new.output(i))
    return True


OWN_MEMORY = "packed operands, in memory of the library"


def told_copies(rewriter: KernelRewriter, op: Op) -> bool:
    """Record in attributes the bytes of weights that a kernel copies to its primitive's layout.

    Also record whether the library allocates memory of its own.  A ``matmul`` whose result is only
    summed over devices is not replaced by an op with these attributes, because the compiler can sum
    in place only the results of a plain ``matmul``.
    """
    fused = _FUSED.get(op.type, op.type)
    types = rewriter.types[op.name]
    query = rewriter.query(op, types)
    made = BY_OP[op.type](problem(computed(query))) if rewriter.accepts(op, types) else None
    summed = op.type == "matmul" and rewriter.only_reader(op.output(), "boxing") is not None
    if made is None or not (made.reorders or (made.allocates and not summed)):
        return False
    attrs: dict[str, AttrValue] = {**op.attrs}
    if made.reorders:
        reason = "weights in the layout of the primitive"
        attrs |= {"reordered": made.reorders, "reason": reason}
    if made.allocates:
        attrs["memory"] = OWN_MEMORY
    if op.type in ("matmul", "batch_matmul"):
        attrs["activation"] = ""
    rewriter.replace(op, like_op(op, fused, attrs, op.inputs))
    return True


def rounded(math: str, rewriter: KernelRewriter, op: Op) -> bool:
    """Allow a product to round its float32 operands to the type ``math``."""
    attrs: dict[str, AttrValue] = {**op.attrs, "math": math}
    if op.type in ("matmul", "batch_matmul"):
        attrs["activation"] = ""
    new = like_op(op, _FUSED.get(op.type, op.type), attrs, op.inputs)
    return rewriter.replace_if_accepted(op, new)


PACKING = ("matmul", "onednn_matmul", "onednn_matmul_sgd", "onednn_conv", *_GRADS)
"""Ops whose kernels may copy weights."""

REWRITES: tuple[tuple[str, Rewrite], ...] = (
    ("max_pool_2d_grad", relu_grad_before_pool_grad),
    ("onednn_conv", conv_with_bias),
    ("matmul", matmul_with_bias),
    ("matmul", matmul_with_update),
    ("onednn_conv_filter_grad", filter_and_bias_grad),
    ("onednn_conv_filter_grad", not_rounded),
    ("matmul", not_rounded),
    ("max_pool_2d", pool_with_places),
    ("normalization", norm_add_relu),
    ("normalization", norm_with_relu),
    ("unsorted_segment_sum", sparse_update),
    ("unsorted_segment_sum", sum_into_rows),
    *((type_, told_copies) for type_ in PACKING),
)
