"""The registered records."""

import numpy as np

from flow_core.authoring.op_rules import floating_like_input, split_all_axes, with_nondecreasing
from flow_core.authoring.specs import KernelSpec, OpSpec, Sample

FLOW_PLUGIN_API = "1.0"


def infer(ctx):
    ctx.check(ctx.attrs["cap"] > 0, f"cap={ctx.attrs['cap']}", "cap > 0")
    return floating_like_input(ctx)


def reference(x, cap):
    return cap * np.tanh(x / cap)


def gradient(g):
    slope = 1 - g.y * g.y * (1 / g.attrs["cap"] ** 2)
    return (g.dy * slope,)


def samples(rng):
    for shape in ((7,), (3, 5), (0, 4)):
        yield Sample((rng.uniform(-9, 9, shape),), {"cap": 3.0})


def flow_register_ops():
    spec = OpSpec(
        type="softcap",
        inputs=("x",),
        attrs={"cap": 30.0},
        infer=infer,
        sbp=with_nondecreasing(split_all_axes),
        gradient=gradient,
        reference=reference,
        samples=samples,
        elementwise=True,
        inplace=(0,),
    )
    return [spec]


def accepts(query):
    return query.dtypes[0].name in ("float32", "float64")


def flow_register_kernels():
    return [KernelSpec("softcap", "cpu", "flow_softcap.kernels:bind", accepts, name="softcap")]
