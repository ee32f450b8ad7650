"""Variables: memory of the session that ops read, or overwrite if they list it in ``mutates``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flow_core.base.dtypes import as_dtype
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.ir.initializers import attr_problem
from flow_core.ops.rules import split_all_axes
from flow_core.plugins.specs import REQUIRED, InferContext, OpSpec, Sample, SbpContext
from flow_core.sharding.sbp import P, S, Sbp, Signature, Signatures


def _infer(ctx: InferContext) -> tuple[TensorType, ...]:
    shape = tuple(ctx.attrs["shape"])
    ctx.check(all(n >= 0 for n in shape), f"shape {shape}", "sizes of at least 0")
    problem = attr_problem(ctx.attrs["initializer"])
    ctx.check(
        problem is None,
        f"initializer {ctx.attrs['initializer']!r}: {problem}",
        "a result of flow.*_initializer",
    )
    regularizer = ctx.attrs["regularizer"]
    ctx.check(
        regularizer is None or (len(regularizer) == 3 and regularizer[0] == "l1_l2"),
        f"regularizer {regularizer!r}",
        "None or a result of flow.regularizers.*",
    )
    return (tensor_type(shape, as_dtype(ctx.attrs["dtype"])),)


def _infer_assign(ctx: InferContext) -> tuple[TensorType, ...]:
    ref, value = ctx.inputs
    ctx.check(ref == value, f"a value of type {value} for {ref}", str(ref))
    return ()


def _assign_sbp(ctx: SbpContext) -> Signatures:
    kinds: tuple[Sbp, ...] = (*map(S, range(len(ctx.inputs[0].shape))), P)
    return tuple(Signature((kind, kind), ()) for kind in kinds)


def _assign_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((7,), (3, 5), (), (0, 2)):
        yield Sample((rng.uniform(-3, 3, shape), rng.uniform(-3, 3, shape)), gradient=False)
    yield Sample((rng.integers(-9, 9, (4,)), rng.integers(-9, 9, (4,))), gradient=False)


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        type="variable",
        inputs=(),
        infer=_infer,
        attrs={
            "shape": REQUIRED,
            "dtype": "float32",
            "initializer": REQUIRED,
            "trainable": True,
            "regularizer": None,
            "seed": None,
        },
        sbp=split_all_axes,
        doc="A variable of the session; jobs share it by the op's name.",
    ),
    OpSpec(
        type="assign",
        inputs=("ref", "value"),
        outputs=(),
        infer=_infer_assign,
        sbp=_assign_sbp,
        reference=lambda ref, value: value.copy(),
        samples=_assign_samples,
        mutates=(0,),
        effect=True,
        doc="Overwrite a variable.",
    ),
)
