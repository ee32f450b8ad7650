"""The kernels."""

from functools import partial

import numpy as np


def shifted_sum(ctx):
    (x,), (out,) = ctx.inputs, ctx.outputs
    return partial(np.sum, x, 0, out=out), partial(np.add, out, 1, out)


def upside_down(ctx):
    (x,), (out,) = ctx.inputs, ctx.outputs
    return partial(np.copyto, out, x[::-1])


def column_sum(ctx):
    (x,), (out,) = ctx.inputs, ctx.outputs
    return partial(np.sum, x, 0, out=out)
