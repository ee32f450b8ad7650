"""Puts fused ops in place of chains that one primitive computes, one rewrite per function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from flow_core.base.dtypes import uint8
from flow_core.ir.graph import AttrValue, Graph, Op, TensorType, Value, tensor_type
from flow_core.plugins.specs import KernelQuery, KernelSpec
from flow_core.rewriting.editor import Editor, changed, edit
from flow_onednn import binding
from flow_onednn.kernels.norm import mask_bytes
from flow_onednn.kernels.pool import places_bytes
from flow_onednn.kernels.upcast import computed
from flow_onednn.recipes import BY_OP, Problem, problem


@dataclass(slots=True)
class _Match:
    """The graph under change with the readers of each value."""

    editor: Editor
    readers: dict[Value, list[Op]]

    def only_reader(self, value: Value, type_: str) -> Op | None:
        """The op of a type that is the only one to read a value."""
        found = self.readers.get(value, [])
        if len(found) != 1 or found[0].type != type_ or value in self.editor.graph.results:
            return None
        return found[0]

    def readers_of(self, value: Value, type_: str) -> list[Op]:
        """The ops of a type that read a value."""
        return [op for op in self.readers.get(value, []) if op.type == type_]

    def type_of(self, value: Value) -> TensorType:
        """The type of a value."""
        return self.editor.type_of(value)


Rewrite = Callable[[_Match, Op], bool]


@dataclass(frozen=True)
class Fusions:
    """The pass.

    Attributes:
        kernels: ours, by op.
        devices: device types whose ops run on the CPU.
    """

    kernels: Mapping[str, Sequence[KernelSpec]]
    devices: tuple[str, ...] = ("cpu",)
    name: str = "onednn_fusions"

    def apply(self, graph: Graph, context: object) -> Graph:
        """The graph with fused ops."""
        for type_, rewrite in REWRITES:
            graph = self._rewrite(graph, type_, rewrite)
        options: Mapping[str, object] = context.options  # type: ignore[attr-defined]  # PassContext
        math = options.get("math_mode")
        for type_ in (*PACKING, "batch_matmul") if math in binding.MATH else ():
            graph = self._rewrite(graph, type_, partial(rounded, str(math)))
        return graph

    def _rewrite(self, graph: Graph, type_: str, rewrite: Rewrite) -> Graph:
        """One rewrite, wherever it fits: matches of one kind do not overlap."""
        found = [op for op in graph.of_type(type_) if op.placement.device_type in self.devices]
        if not found:
            return graph
        match = _Match(edit(graph, self.kernels), graph.consumers())
        done = [rewrite(match, op) for op in found if op.name in match.editor.ops]
        return match.editor.finish() if any(done) else graph


def _drop(match: _Match, op: Op, now: Value) -> None:
    """Takes an op of one output away; another value stands for it."""
    del match.editor.ops[op.name]
    match.editor.same[op.output()] = now


def relu_grad_before_pool_grad(match: _Match, grad: Op) -> bool:
    """relu'(x) . pool'(x, y, dy) = pool'(x, y, relu'(y) . dy): the mask of the smaller tensor.

    The maximum of a window is positive exactly where the element it came from is.
    """
    x, y, dy = grad.inputs
    mask = match.only_reader(grad.output(), "relu_grad")
    if mask is None or mask.inputs != (x, grad.output()):
        return False
    name = f"{mask.name}/pooled"
    small = Op(name, "relu_grad", (y, dy), mask.attrs, mask.placement)
    match.editor.add(small, (match.type_of(dy),), grad)
    late = Op(mask.name, grad.type, (x, y, small.output()), grad.attrs, grad.placement)
    match.editor.add(late, (match.type_of(x),), mask)
    del match.editor.ops[grad.name]
    return True


def conv_with_bias(match: _Match, conv: Op) -> bool:
    """conv, bias_add and relu in one."""
    return _with_bias(match, conv, {**conv.attrs}, ("relu",))


def matmul_with_bias(match: _Match, op: Op) -> bool:
    """matmul, bias_add and relu in one."""
    return _with_bias(match, op, {**op.attrs, "activation": ""}, ("relu",))


PLAIN = ("l1", "l2", "weight_decay")
"""What an update has none of if it is the gradient alone that changes the variable."""


def matmul_with_update(match: _Match, op: Op) -> bool:
    """The gradient of a weight that SGD alone reads: the product is added to the weight itself."""
    update = match.only_reader(op.output(), "sgd_update")
    if update is None or update.inputs[1] != op.output():
        return False
    model, _, rate, *factor = update.inputs
    if any(update.attrs[k] for k in PLAIN) or model in op.inputs or len(op.inputs) != 2:
        return False
    if any(not match.type_of(v).dtype.is_floating for v in factor):
        return False  # skip_if
    attrs: dict[str, AttrValue] = {k: op.attrs[k] for k in ("transpose_a", "transpose_b")}
    attrs["scale"] = update.attrs["scale"] * op.attrs["alpha"]
    new = changed(update, "onednn_matmul_sgd", attrs, model, *op.inputs, rate, *factor)
    if not match.editor.accepts(new, ()):
        return False
    match.editor.add(new, (), update)
    del match.editor.ops[op.name]
    return True


_GRADS = ("onednn_conv_data_grad", "onednn_conv_filter_grad")
_FUSED = {
    "matmul": "onednn_matmul", "batch_matmul": "onednn_matmul", "onednn_conv": "onednn_conv",
}  # fmt: skip


def _with_bias(
    match: _Match, op: Op, attrs: dict[str, AttrValue], activations: Sequence[str]
) -> bool:
    add = match.only_reader(op.output(), "bias_add")
    rank = len(match.type_of(op.output()).shape)
    if add is None or len(op.inputs) != 2 or add.inputs[0] != op.output():
        return False
    if add.attrs["axis"] % rank != rank - 1:
        return False
    last = add
    for name in activations:
        act = match.only_reader(add.output(), name)
        if act is not None:
            attrs["activation"], last = name, act
    type_ = match.type_of(last.output())
    new = changed(last, _FUSED[op.type], attrs, *op.inputs, add.inputs[1])
    if not match.editor.accepts(new, (type_,)):
        return False
    match.editor.add(new, (type_,), last)
    for gone in {op.name: op, add.name: add}.values():
        if gone.name != last.name:
            del match.editor.ops[gone.name]
    return True


def filter_and_bias_grad(match: _Match, grad: Op) -> bool:
    """The gradients of weights and bias read dy once."""
    dy, axes = grad.inputs[0], (0, 1, 2)
    sums = [s for s in match.readers_of(dy, "reduce_sum") if s.attrs["axis"] == axes]
    if len(sums) != 1 or sums[0].attrs["keepdims"]:
        return False
    (total,) = sums
    types = (*match.editor.types[grad.name], match.type_of(total.output()))
    new = changed(grad, grad.type, grad.attrs.with_(bias=True), *grad.inputs)
    if not match.editor.accepts(new, types):
        return False
    first = min(grad, total, key=lambda op: match.editor.rank[op.name])
    match.editor.add(new, types, first)
    _drop(match, total, Value(grad.name, 1))
    return True


def pool_with_places(match: _Match, pool: Op) -> bool:
    """Max pooling that tells its gradient where the maxima were."""
    x, y = pool.inputs[0], pool.output()
    grads = [g for g in match.readers_of(y, "max_pool_2d_grad") if g.inputs[:2] == (x, y)]
    shapes = match.type_of(x).shape, match.type_of(y).shape
    if len(grads) != 1 or pool.attrs["data_format"] != "channels_last":
        return False
    size = places_bytes(dict(pool.attrs), *shapes)
    if size is None:
        return False
    (grad,) = grads
    attrs = {**pool.attrs, "space": shapes[1][1:3], "places": size}
    types = (match.type_of(y), tensor_type((size,), uint8))
    match.editor.add(changed(pool, "onednn_max_pool", attrs, x), types, pool)
    back = {**pool.attrs, "space": shapes[0][1:3]}
    new = changed(grad, "onednn_max_pool_grad", back, grad.inputs[2], Value(pool.name, 1))
    match.editor.add(new, match.editor.types[grad.name], grad)
    return True


def norm_add_relu(match: _Match, norm: Op) -> bool:
    """Batch normalisation, a sum and relu, as where a residual block ends, in one loop."""
    x, y = norm.inputs[0], norm.output()
    image = match.type_of(x)
    add = match.only_reader(y, "broadcast_add")
    relu = match.only_reader(add.output(), "relu") if add is not None else None
    last = norm.attrs["axis"] % len(image.shape) == len(image.shape) - 1
    if add is None or relu is None or not norm.attrs["training"] or not last:
        return False
    if add.name not in match.editor.ops:
        return False  # its other side was joined
    others = [v for v in add.inputs if v != y]
    if len(others) != 1 or match.type_of(others[0]) != image:
        return False
    attrs = {k: norm.attrs[k] for k in ("epsilon", "momentum")}
    new = changed(norm, "onednn_norm_add_relu", attrs, *norm.inputs, *others)
    types = match.editor.types[norm.name]
    if not match.editor.accepts(new, types):
        return False
    match.editor.add(new, types, relu)
    del match.editor.ops[add.name]
    _drop(match, relu, y)
    return True


def norm_with_relu(match: _Match, norm: Op) -> bool:
    """Batch normalisation and relu, and the gradients of both, in one primitive each way."""
    x, y = norm.inputs[0], norm.output()
    relu = match.only_reader(y, "relu")
    if relu is None or not norm.attrs["training"]:
        return False
    attrs = {k: norm.attrs[k] for k in ("epsilon", "momentum")}
    image = match.type_of(x)
    size = mask_bytes(Problem("onednn_norm_relu", (image,), (image,), tuple(attrs.items())))
    if size is None:
        return False
    attrs["mask"] = size
    types = (*match.editor.types[norm.name], tensor_type((size,), uint8))
    new = changed(norm, "onednn_norm_relu", attrs, *norm.inputs)
    if norm.attrs["axis"] % len(image.shape) != len(image.shape) - 1:
        return False
    if not match.editor.accepts(new, types):
        return False
    match.editor.add(new, types, norm)
    _drop(match, relu, y)
    _fuse_gradient(match, norm, relu)
    return True


def _fuse_gradient(match: _Match, norm: Op, relu: Op) -> None:
    """relu's gradient goes into that of the normalisation, where nobody else reads it."""
    for mask in match.readers_of(relu.output(), "relu_grad"):
        grad = match.only_reader(mask.output(), "normalization_grad")
        if mask.inputs[0] != relu.output() or grad is None:
            continue
        x, dy, mean, inverse, gamma = grad.inputs
        if dy != mask.output() or mean != Value(norm.name, 1):
            continue
        inputs = (x, mask.inputs[1], mean, inverse, gamma, Value(norm.name, 3))
        attrs = {"epsilon": grad.attrs["epsilon"]}
        new = changed(grad, "onednn_norm_relu_grad", attrs, *inputs)
        if match.editor.accepts(new, match.editor.types[grad.name]):
            match.editor.add(new, match.editor.types[grad.name], grad)
            del match.editor.ops[mask.name]


_ADAM = ("beta1", "beta2", "epsilon")
SPARSE = {
    "sgd_update": ("onednn_sparse_sgd", 0, ()),
    "adam_update": ("onednn_sparse_adam", 2, _ADAM),
}
"""Sparse form, number of states, and attributes of updates."""


def sparse_update(match: _Match, total: Op) -> bool:
    """An update by the sum per row of an embedding's gradient, without one of the table's size."""
    readers = match.readers.get(total.output(), [])
    update = match.only_reader(total.output(), readers[0].type) if readers else None
    if update is None or update.type not in SPARSE or update.inputs[1] != total.output():
        return False
    if any(update.attrs[k] for k in PLAIN):
        return False
    sparse, states, extra = SPARSE[update.type]
    model, _, rate, *more = update.inputs
    if any(not match.type_of(v).dtype.is_floating for v in more[states:]):
        return False  # skip_if
    data, index = total.inputs
    attrs = {k: total.attrs[k] for k in ("axis", "first")}
    attrs |= {k: update.attrs[k] for k in ("scale", *extra)}
    new = changed(update, sparse, attrs, model, index, data, rate, *more)
    if not match.editor.accepts(new, ()):
        return False
    match.editor.add(new, (), update)
    del match.editor.ops[total.name]
    return True


def sum_into_rows(match: _Match, total: Op) -> bool:
    """A dense gradient and the rows of an embedding's: the rows are added to the dense one."""
    (out,) = match.editor.types[total.name]
    add = match.only_reader(total.output(), "add_n")
    if add is None or len(add.inputs) != 2 or add.inputs[0] == add.inputs[1]:
        return False
    (base,) = (v for v in add.inputs if v != total.output())
    data, index = total.inputs
    attrs = {"axis": total.attrs["axis"], "first": total.attrs["first"]}
    new = changed(add, "onednn_add_to_rows", attrs, base, index, data)
    if not match.editor.accepts(new, (out,)):
        return False
    match.editor.add(new, (out,), add)
    del match.editor.ops[total.name]
    return True


OWN_MEMORY = "packed operands, in memory of the library"


def told_copies(match: _Match, op: Op) -> bool:
    """Weights that a kernel copies into its primitive's layout are told of, in bytes.

    So is memory that the library takes by itself, but not of products that are only added up over
    devices: the compiler may do that where they arise, which it does to a plain ``matmul``.
    """
    fused = _FUSED.get(op.type, op.type)
    types = match.editor.types[op.name]
    query = KernelQuery(op.type, op.attrs, tuple(map(match.type_of, op.inputs)), types)
    made = BY_OP[op.type](problem(computed(query))) if match.editor.accepts(op, types) else None
    summed = op.type == "matmul" and match.only_reader(op.output(), "boxing") is not None
    if made is None or not (made.reorders or (made.allocates and not summed)):
        return False
    attrs: dict[str, AttrValue] = {**op.attrs}
    if made.reorders:
        reason = "weights as the primitive likes them"
        attrs |= {"reordered": made.reorders, "reason": reason}
    if made.allocates:
        attrs["memory"] = OWN_MEMORY
    if op.type in ("matmul", "batch_matmul"):
        attrs["activation"] = ""
    match.editor.add(changed(op, fused, attrs, *op.inputs), types, op)
    return True


def rounded(math: str, match: _Match, op: Op) -> bool:
    """A product that may round its operands."""
    types = match.editor.types[op.name]
    attrs: dict[str, AttrValue] = {**op.attrs, "math": math}
    if op.type in ("matmul", "batch_matmul"):
        attrs["activation"] = ""
    new = changed(op, _FUSED.get(op.type, op.type), attrs, *op.inputs)
    if not match.editor.accepts(new, types):
        return False
    match.editor.add(new, types, op)
    return True


PACKING = ("matmul", "onednn_matmul", "onednn_matmul_sgd", "onednn_conv", *_GRADS)
"""Ops whose kernels may copy weights."""

REWRITES: tuple[tuple[str, Rewrite], ...] = (
    ("max_pool_2d_grad", relu_grad_before_pool_grad),
    ("onednn_conv", conv_with_bias),
    ("matmul", matmul_with_bias),
    ("matmul", matmul_with_update),
    ("onednn_conv_filter_grad", filter_and_bias_grad),
    ("max_pool_2d", pool_with_places),
    ("normalization", norm_add_relu),
    ("normalization", norm_with_relu),
    ("unsorted_segment_sum", sparse_update),
    ("unsorted_segment_sum", sum_into_rows),
    *((type_, told_copies) for type_ in PACKING),
)
