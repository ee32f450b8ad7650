"""Functions of a batch, to be replayed with other batch sizes than that of their trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import public_arrays
import public_layers
import public_math
import public_nn

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.dtypes import as_dtype

m, nn = flow.math, flow.nn
Function = Callable[[Any], Any]

WIDTH = 6
"""The functions take blobs of shape (batch size, WIDTH)."""

ANY_SIZE: dict[str, Function] = {
    "mean of columns": lambda x: m.reduce_mean(x, axis=0),
    "mean": lambda x: m.reduce_mean(x),
    "mean, keepdims": lambda x: x - m.reduce_mean(x, axis=0, keepdims=True),
    "mean of rows": lambda x: m.reduce_mean(x, axis=1),
    "variance": lambda x: m.reduce_variance(x, axis=0),
    "std": lambda x: m.reduce_std(x, axis=0),
    "norm": lambda x: m.reduce_euclidean_norm(x, axis=0),
    "logsumexp": lambda x: m.reduce_logsumexp(x, axis=0),
    "moments": lambda x: flow.concat(list(nn.moments(x, [0])), 0),
    "mean of softmax": lambda x: m.reduce_mean(nn.softmax(x), axis=0),
    "mean of int32": lambda x: m.reduce_mean(flow.cast(100.0 * x, flow.int32), axis=0),
    "MSELoss": lambda x: nn.MSELoss(x, 0.5 * x),
    "L1Loss": lambda x: nn.L1Loss(x, 0.5 * x),
    "BCELoss": lambda x: nn.BCELoss(m.sigmoid(x), m.sigmoid(2.0 * x)),
    "BCEWithLogitsLoss": lambda x: nn.BCEWithLogitsLoss(x, m.sigmoid(x)),
    "KLDivLoss": lambda x: nn.KLDivLoss(nn.logsoftmax(x), nn.softmax(2.0 * x), reduction="mean"),
    "TripletMarginLoss": lambda x: nn.TripletMarginLoss(x, 2.0 * x, 3.0 * x),
    "sum": lambda x: m.reduce_sum(x, axis=0),
    "max": lambda x: m.reduce_max(x, axis=0),
    "reshape to -1": lambda x: flow.reshape(x, (-1, 2, 3)),
    "transpose": lambda x: flow.transpose(x, (1, 0)),
    "concat": lambda x: flow.concat([x, x], 0),
    "layer norm": lambda x: flow.layers.layer_norm(x, center=False, scale=False),
    "l2_normalize": lambda x: m.l2_normalize(x, axis=0, epsilon=1e-12),
    "softmax of columns": lambda x: nn.softmax(x, axis=0),
    "zeros_like": lambda x: x + flow.ones_like(x),
    "matmul": lambda x: flow.matmul(x, x, transpose_b=True),
    "columns": lambda x: flow.slice(x, [None, 1], [None, 2]),
    "einsum": lambda x: flow.einsum("bij,bkj,bl->kb", *[flow.reshape(x, (-1, 2, 3))] * 2, x),
    "cumsum": lambda x: flow.cumsum(x, 0),
    "roll": lambda x: flow.roll(x, (0, 2), (0, 1)),
    "attention": lambda x: nn.attention(*[flow.reshape(x, (-1, 1, 2, 3))] * 3, causal=True),
    "scan": lambda x: flow.scan(
        lambda s, e: (s + e, s), flow.zeros_like(x[:, 0]), flow.transpose(x)
    )[1],
    "cond": lambda x: flow.cond(
        flow.constant(1, flow.int8, (1,)), lambda x: x * 2.0, m.negative, x
    ),
}  # fmt: skip
"""Functions whose ops are the same for all batch sizes."""

BY_SIZE: dict[str, Function] = {
    "x / x.shape[0]": lambda x: x / x.shape[0],
    "x * x.shape[0]": lambda x: x * float(x.shape[0]),
    "sum / x.shape[0]": lambda x: m.reduce_sum(x, axis=0) / x.shape[0],
    "last row": lambda x: flow.slice(x, [x.shape[0] - 1, 0], [1, WIDTH]),
    "constant of the batch's size": lambda x: x + flow.constant(
        1.0, flow.float, (x.shape[0], WIDTH)
    ),
    "constant rows": lambda x: flow.constant(1.0, flow.float, (x.shape[0], 1)) * 2.0,
    "reshape by x.shape": lambda x: flow.reshape(x, (x.shape[0], 2, 3)),
    "flat by x.shape": lambda x: flow.reshape(x, (x.shape[0] * WIDTH,)),
    "reshape to the constant size": lambda x: flow.reshape(x, (4, 2, 3)),
    "range": lambda x: flow.range(0, x.shape[0], 1, dtype=flow.float),
}  # fmt: skip
"""Functions with numbers that follow from the batch size."""

FIXED: dict[str, Function] = {
    "an op per row": lambda x: flow.concat(
        [flow.slice(x, [i, 0], [1, WIDTH]) for i in range(x.shape[0])], 0
    ),
    "another op for large batches": lambda x: x if x.shape[0] < 5 else -x,
    "a constant of 4 rows": lambda x: x + flow.constant(1.0, flow.float, (4, WIDTH)),
    "a square": lambda x: x * float(x.shape[0] ** 2),
}  # fmt: skip
"""Functions that saved models cannot describe for other batch sizes."""

# --- calls of public functions

FAMILIES = (public_math, public_arrays, public_nn, public_layers)
DYNAMIC = (
    "argwhere", "argwhere: int64", "nonzero", "sync_dynamic_resize", "where: condition only",
)  # fmt: skip
"""Functions whose results have as many rows as the data say; saved models do not have them."""

CALLS: dict[str, public_math.Call] = {
    key: call
    for family in FAMILIES
    for key, call in family.CALLS.items()
    if call[1] and call[1][0].ndim and key not in DYNAMIC
}
"""Calls of public functions with a batch, as in `public_math`."""


def batch_arguments(arrays: Sequence[Any]) -> list[int]:
    """Return the arguments that have as many rows as the first one."""
    return [i for i, x in enumerate(arrays) if x.shape and x.shape[0] == arrays[0].shape[0]]


def job_of(key: str, rows: int) -> Any:
    """Return a job that calls the function with a batch; other arguments are variables."""
    function, arrays, _ = CALLS[key]
    fed = batch_arguments(arrays)

    def job(xs: Any) -> Any:
        given = [
            xs[fed.index(i)]
            if i in fed
            else flow.get_variable(
                f"c{i}", x.shape, as_dtype(x.dtype), trainable=False,
                initializer=flow.ones_initializer(),
            )
            for i, x in enumerate(arrays)
        ]  # fmt: skip
        found = function(*given)
        return tuple(found) if isinstance(found, list | tuple) else found

    places = [
        tp.Numpy.Placeholder((rows, *arrays[i].shape[1:]), as_dtype(arrays[i].dtype)) for i in fed
    ]
    job.__annotations__ = {"xs": tuple[*places]}
    return flow.global_function()(job)


def other_sizes(key: str) -> tuple[int, ...]:
    rows = CALLS[key][1][0].shape[0]
    return 1, rows + 1, 3 * rows + 1


def of_size(x: Any, rows: int) -> Any:
    return np.resize(x, (rows, *x.shape[1:]))
