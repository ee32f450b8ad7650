"""The kernel, imported on first use."""

from functools import partial

import numpy as np


def bind(ctx):
    (x,), (y,) = ctx.inputs, ctx.outputs
    cap = np.array(ctx.attrs["cap"], x.dtype)
    return (
        partial(np.divide, x, cap, y),
        partial(np.tanh, y, y),
        partial(np.multiply, y, cap, y),
    )
