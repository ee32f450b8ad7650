"""The registered records."""

import numpy as np

from flow_core.authoring.op_rules import (
    any_partial,
    floating_like_input,
    split_all_axes,
    with_nondecreasing,
)
from flow_core.authoring.specs import (
    REQUIRED,
    KernelSpec,
    OpSpec,
    S,
    Sample,
    Signature,
    tensor_type,
)
from flow_core.base.dtypes import float64

FLOW_PLUGIN_API = "1.0"
FLOATS = ("float32", "float64")


def infer(ctx):
    """Keep the type."""
    return floating_like_input(ctx)


def samples(rng):
    """Yield numbers of both signs, away from the kink at 0."""
    for shape in ((7,), (3, 5), (0, 4)):
        yield Sample((rng.uniform(0.1, 2, shape) * rng.choice((-1, 1), shape),))


def split_rows(ctx):
    """Split the samples of a batch."""
    return (Signature((S(0),) * len(ctx.inputs), (S(0),) * len(ctx.outputs)),)


def read_infer(ctx):
    """Return two numbers for each sample."""
    size, region = ctx.attrs["batch_size"], ctx.attrs["region"]
    ctx.check(size > 0, f"batch_size {size}", "1 or more")
    buffer = ctx.attrs["shuffle_buffer_size"]
    ctx.check(buffer > 0, f"shuffle_buffer_size {buffer}", "1 or more")
    rows = region[0][1] - region[0][0] if region else size
    return (tensor_type((rows, 2), float64),)


def decode_infer(ctx):
    """Return a column for each of the two numbers of a sample."""
    (x,) = ctx.inputs
    ctx.check(x.dtype is float64 and x.shape[1:] == (2,), f"input of type {x}", "float64[n, 2]")
    return (tensor_type((x.shape[0], 1), float64),) * 2


def decode_sbp(ctx):
    """Split the samples; of any kind of P, both columns are parts, too."""
    return (*split_rows(ctx), *any_partial(ctx, 0))


def decode_samples(rng):
    """Yield pairs of numbers."""
    for rows in (1, 5, 0):
        yield Sample((rng.uniform(-3, 3, (rows, 2)),), fixed=(0,))


def flow_register_ops():
    """Return the ops."""
    one = {
        "inputs": ("in",),
        "infer": infer,
        "samples": samples,
        "elementwise": True,
        "inplace": (0,),
    }
    return [
        OpSpec(
            type="myrelu",
            sbp=with_nondecreasing(split_all_axes),
            reference=lambda x: np.maximum(x, 0),
            **one,
        ),
        OpSpec(
            type="myop",
            sbp=split_all_axes,
            gradient=lambda g: (g.dy * g.x * 6.0,),
            reference=lambda x: 3 * x * x,
            **one,
        ),
        OpSpec(
            type="MiniReader",
            inputs=(),
            infer=read_infer,
            attrs={
                "data_dir": REQUIRED,
                "data_part_num": REQUIRED,
                "batch_size": REQUIRED,
                "part_name_prefix": "part-",
                "part_name_suffix_length": -1,
                "random_shuffle": False,
                "shuffle_after_epoch": False,
                "shuffle_buffer_size": 1024,
                "seed": -1,
                "region": None,
            },
            sbp=split_rows,
            localize=lambda ctx: {"region": ctx.outputs[0].region},
            random=True,
            host=True,
        ),
        OpSpec(
            type="mini_decoder",
            inputs=("in",),
            outputs=("x", "y"),
            infer=decode_infer,
            sbp=decode_sbp,
            reference=lambda x: (x[:, :1], x[:, 1:]),
            samples=decode_samples,
            host=True,
        ),
    ]


def floats(query):
    """Whether the first input is of a type that the kernels have."""
    return query.dtypes[0].name in FLOATS


def flow_register_kernels():
    """Return the kernels."""
    kernels = "flow_tutorial.kernels"
    return [
        KernelSpec("myrelu", "cpu", f"{kernels}:relu", floats, name="tutorial.myrelu"),
        KernelSpec("myop", "cpu", f"{kernels}:square", floats, name="tutorial.myop"),
        KernelSpec("MiniReader", "cpu", f"{kernels}:read", name="tutorial.MiniReader"),
        KernelSpec("mini_decoder", "cpu", f"{kernels}:decode", name="tutorial.mini_decoder"),
    ]
