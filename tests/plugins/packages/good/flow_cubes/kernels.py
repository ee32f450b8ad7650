"""The kernel, imported when a plan binds it."""

from functools import partial

import numpy as np


def bind(ctx):
    (x,), (out,) = ctx.inputs, ctx.outputs
    return partial(np.multiply, x, x, out), partial(np.multiply, out, x, out)
