"""The table of kernels: the function that runs each op, and for which types and attributes.

The table names the functions as strings, so torch is imported only when a plan first uses one.
"""

from math import prod

import numpy as np

from flow_core.authoring.specs import KernelSpec

DEVICE = "torch"
FLOATS = ("float32", "float64")


def is_floating(query):
    """Return whether all arrays have the same type, which is float32 or float64."""
    names = {dtype.name for dtype in query.dtypes}
    return len(names) == 1 and names <= set(FLOATS)


def has_floating_input(query):
    """Return whether all arrays but the second input have the same type, float32 or float64."""
    names = {t.dtype.name for t in (query.inputs[0], *query.inputs[2:], *query.outputs)}
    return len(names) == 1 and names <= set(FLOATS)


def is_plain_update(query):
    """Return whether an update has no penalty, loss scale or condition."""
    attrs, types = query.attrs, [t.dtype.name for t in query.inputs]
    required = {"sgd_update": 3, "momentum_update": 4, "adam_update": 5}[query.op]
    plain = not (attrs["l1"] or attrs["l2"])
    return plain and len(types) == required and {*types} <= {"float32"}


def is_plain_conv(query):
    """Return whether torch supports a convolution: channels first, equal padding on both sides."""
    attrs = query.attrs
    first = attrs["data_format"] == "channels_first"
    return first and is_floating(query) and _some(query) and _has_torch_shape(query)


def _has_torch_shape(query):
    """Return whether the small side of a convolution has the size that torch computes."""
    if query.op == "conv2d":
        big, small = query.inputs[0], query.outputs[0]
    else:
        big, small = query.inputs[-1], query.inputs[0]
    windows = ("kernel_size", "strides", "padding_before", "dilation_rate")
    columns = zip(big.shape[2:], *(query.attrs[name] for name in windows), strict=True)
    sizes = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in columns)
    return sizes == small.shape[2:]


def is_conv_grad_2d(query):
    """Return whether torch supports the convolution of a gradient, over two spatial axes."""
    return query.attrs["num_spatial_dims"] == 2 and is_plain_conv(query)


def pool_padding(attrs, shape, out):
    """Return torch's padding for a pooling op on the spatial axes; None if torch has none."""
    padding = []
    columns = zip(shape, out, attrs["pool_size"], attrs["strides"], strict=True)
    for axis, (n, m, k, s) in enumerate(columns):
        total = max(0, (m - 1) * s + k - n)
        if attrs["padding_before"] is not None and attrs["padding"] == "customized":
            before, after = attrs["padding_before"][axis], attrs["padding_after"][axis]
            total = before + after if before == after else 1
        pad = total // 2
        if total % 2 or pad > k // 2 or (n + 2 * pad - k) // s + 1 != m:
            return None
        padding.append(pad)
    return padding


def is_plain_pool(query):
    """Return whether torch supports a pooling op with its padding."""
    x, y = query.inputs[0], query.inputs[1] if len(query.inputs) == 3 else query.outputs[0]
    if query.attrs["data_format"] != "channels_first" or not is_floating(query) or not _some(query):
        return False
    return pool_padding(query.attrs, x.shape[2:], y.shape[2:]) is not None


def is_own_pool(query):
    """Return whether a pooling op of this package has floating-point elements."""
    return query.dtypes[0].name in FLOATS


def _some(query):
    return all(t.size for t in (*query.inputs, *query.outputs))


def pool_workspace(query):
    """Return the bytes for a pooling op's indices and, in a gradient, for its recomputed output."""
    y = query.inputs[1] if len(query.inputs) == 3 else query.outputs[0]
    return y.size * 8 + (-(-y.nbytes // 64) * 64 if len(query.inputs) == 3 else 0) + 64


def loss_workspace(query):
    """Return the bytes for one index per row, and for a mask with the element type."""
    x = query.inputs[0]
    rows = prod(x.shape[:-1])
    return -(-rows * 8 // 64) * 64 + x.nbytes


def update_workspace(query):
    """Return the bytes for a temporary array with the model's shape."""
    return query.inputs[0].nbytes


def _specs(module, ops, accepts=None, workspace=None):
    for op in ops:
        yield KernelSpec(
            op,
            DEVICE,
            f"flow_torch.kernels.{module}:KERNELS.{op}",
            accepts,
            workspace=workspace,
            name=f"torch.{op}",
        )


SAME_NAME = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "expm1",
    "floor",
    "log",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sigmoid",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
]
"""Unary ops that have the name of their torch function."""
UNARY = [*SAME_NAME, "negative", "rint", "sigmoid_v2"]
BINARY = [
    "broadcast_add",
    "broadcast_div",
    "broadcast_maximum",
    "broadcast_minimum",
    "broadcast_mul",
    "broadcast_sub",
    "elementwise_maximum",
    "elementwise_minimum",
    "multiply",
]
ELEMENTWISE = [
    "add_n",
    "bias_add",
    "relu",
    "relu_grad",
    "scalar_add",
    "scalar_mul",
    "sigmoid_grad",
    "tanh_grad",
    "scalar_mul_by_tensor",
    "scalar_add_by_tensor",
]
MOVES = [
    "constant",
    "copy",
    "expand_dims",
    "flatten",
    "identity",
    "reshape",
    "squeeze",
    "transpose",
    "zero_like",
]

KERNELS = [
    *_specs("elementwise", (*UNARY, *BINARY, *ELEMENTWISE), is_floating),
    *_specs("moves", MOVES),
    *_specs("products", ("matmul", "batch_matmul"), is_floating),
    *_specs("products", ("reduce_sum", "reduce_sum_like", "reduce_max", "reduce_min"), is_floating),
    *_specs("windows", ("conv2d",), is_plain_conv),
    *_specs("windows", ("conv_data_grad", "conv_filter_grad"), is_conv_grad_2d),
    *_specs("windows", ("max_pool_2d", "max_pool_2d_grad"), is_plain_pool, pool_workspace),
    *_specs("windows", ("torch_conv2d",), is_floating),
    *_specs("windows", ("torch_max_pool_2d", "torch_max_pool_2d_grad"), is_own_pool),
    *_specs("losses", ("softmax", "softmax_grad", "log_softmax", "log_softmax_grad"), is_floating),
    *_specs(
        "losses",
        ("sparse_softmax_cross_entropy", "sparse_softmax_cross_entropy_grad"),
        has_floating_input,
        loss_workspace,
    ),
    *_specs("training", ("advance_step", "learning_rate_schedule")),
    *_specs("training", ("adam_bias_correction_learning_rate",), lambda q: _all_float32_rate(q)),
    *_specs("training", ("sgd_update", "momentum_update"), is_plain_update),
    *_specs("training", ("adam_update",), is_plain_update, update_workspace),
]
"""All kernels."""


def _all_float32_rate(query):
    return query.inputs[0].dtype.numpy == np.float32
